//! `issue` and `issue-node`: certificates for users and nodes, signed by the cluster's authority.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api::certificate::is_the_servers;
use clap::Args;
use server::authn::pki::{LIFETIME, Pki, Profile, kubeconfig, node_user, write_private};

use crate::clock;

/// Options of `issue`.
#[derive(Debug, Clone, Args)]
pub struct Issue {
    /// Directory of the cluster's state
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Name of the user
    #[arg(long)]
    pub user: String,
    /// Group of the user; at most two
    #[arg(long = "group")]
    pub groups: Vec<String>,
    /// URL of the server; by default the one in admin.kubeconfig
    #[arg(long)]
    pub server: Option<String>,
    /// How many seconds the certificate is valid
    #[arg(long, default_value_t = LIFETIME.as_secs(), value_parser = clap::value_parser!(u64).range(60..=315_360_000))]
    pub certificate_seconds: u64,
    /// Where to write the kubeconfig
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Options of `issue-node`.
#[derive(Debug, Clone, Args)]
pub struct IssueNode {
    /// Directory of the cluster's state
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Name of the node
    #[arg(long)]
    pub name: String,
    /// Address of the node; may be given more than once
    #[arg(long = "address", required = true)]
    pub addresses: Vec<IpAddr>,
    /// URL of the server; by default the one in admin.kubeconfig
    #[arg(long)]
    pub server: Option<String>,
    /// How many seconds the certificates are valid; the agent has them renewed
    #[arg(long, default_value_t = LIFETIME.as_secs(), value_parser = clap::value_parser!(u64).range(60..=315_360_000))]
    pub certificate_seconds: u64,
    /// Directory to write agent.kubeconfig, serving.crt, serving.key and ca.crt into
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Writes a kubeconfig for a user.
pub fn issue(options: &Issue) -> anyhow::Result<()> {
    ensure!(!options.user.is_empty(), "the user's name is empty");
    let authority = authority(&options.state_dir, options.certificate_seconds)?;
    let server = server(options.server.as_deref(), &options.state_dir)?;
    let profile = Profile::Client {
        user: options.user.clone(),
        groups: options.groups.clone(),
    };
    let identity = authority.issue(&profile, clock::now())?;
    write_private(
        &options.out,
        &kubeconfig(&server, authority.authority(), &options.user, &identity),
    )?;
    Ok(())
}

/// Writes a node agent's files: its kubeconfig, its serving certificate, and the authority that it
/// trusts.
pub fn issue_node(options: &IssueNode) -> anyhow::Result<()> {
    check_name(&options.name)?;
    let authority = authority(&options.state_dir, options.certificate_seconds)?;
    ensure!(
        !is_the_servers(&options.name, &authority.serving_names()?),
        "clients reach the API server by the name {:?}, which a node must not have: give it another one",
        options.name
    );
    let server = server(options.server.as_deref(), &options.state_dir)?;
    if options.server.is_none() {
        check_reach(&server, &options.addresses)?;
    }
    let now = clock::now();
    let user = node_user(&options.name);
    let client = authority.issue(&Profile::client(&user, &["system:nodes"]), now)?;
    let serving = authority.issue(&Profile::node_serving(&options.name, &options.addresses), now)?;
    server::authn::pki::private_directory(&options.out)?;
    let write = |name: &str, text: &str| write_private(&options.out.join(name), text);
    write(
        "agent.kubeconfig",
        &kubeconfig(&server, authority.authority(), &user, &client),
    )?;
    write("serving.key", &serving.key)?;
    write("serving.crt", &serving.certificate)?;
    write("ca.crt", authority.authority())?;
    Ok(())
}

fn authority(state_dir: &Path, lifetime: u64) -> anyhow::Result<Pki> {
    let directory = state_dir.join("controlplane/pki");
    // Only the server makes an authority: a mistyped directory must not give a new one.
    ensure!(
        directory.join("ca.key").exists(),
        "{} holds no certificate authority: start the control plane first",
        directory.display()
    );
    Ok(Pki::open(&directory, clock::now())?.with_lifetime(Duration::from_secs(lifetime)))
}

/// The server's URL: as given, or as the administrator's kubeconfig says.
fn server(given: Option<&str>, state_dir: &Path) -> anyhow::Result<String> {
    if let Some(url) = given {
        ensure!(
            url.starts_with("https://"),
            "the server's URL does not begin with https://"
        );
        return Ok(url.to_owned());
    }
    let path = state_dir.join("admin.kubeconfig");
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let kubeconfig = api::yaml::to_json(&text)
        .with_context(|| format!("parse {}", path.display()))?
        .value;
    let server = kubeconfig
        .pointer("/clusters/0/cluster/server")
        .and_then(|server| server.as_str());
    server
        .map(str::to_owned)
        .with_context(|| format!("{} names no server; give --server", path.display()))
}

/// A node elsewhere would ask itself where this machine's clients ask for the server.
fn check_reach(server: &str, node: &[IpAddr]) -> anyhow::Result<()> {
    let here = ["https://127.", "https://[::1]", "https://localhost"];
    // A node with a loopback address is this machine.
    let elsewhere = node.first().filter(|_| !node.iter().any(IpAddr::is_loopback));
    if let Some(address) = elsewhere.filter(|_| here.iter().any(|begin| server.starts_with(begin))) {
        bail!("the administrator's kubeconfig names {server}, which a node at {address} cannot reach: give --server");
    }
    Ok(())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if name.len() > 253 || !name.bytes().all(allowed) || !ends(name.bytes().next()) || !ends(name.bytes().last()) {
        bail!(
            "{name:?} is no name for a node: small letters, digits, '-' and '.', beginning and ending with a letter or digit"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_reach;

    #[test]
    fn a_node_elsewhere_needs_a_server_that_it_can_reach() {
        let (elsewhere, here) = (["10.0.0.7".parse().unwrap()], ["127.0.0.1".parse().unwrap()]);
        let refused = check_reach("https://127.0.0.1:6443", &elsewhere)
            .unwrap_err()
            .to_string();
        assert!(
            refused.ends_with("which a node at 10.0.0.7 cannot reach: give --server"),
            "{refused}"
        );
        check_reach("https://127.0.0.1:6443", &here).unwrap();
        check_reach("https://127.0.0.1:6443", &[elsewhere, here].concat()).unwrap();
        check_reach("https://10.0.0.1:6443", &elsewhere).unwrap();
    }
}
