//! `skiff join`: this machine as a node of a cluster that it knows a token of.
//!
//! 1. The cluster proves itself ([`discovery`]), and the token is shown to it.
//! 2. The token goes into a kubeconfig with which the agent has its certificates signed; their keys are made there.
//! 3. The agent is started as `skiff up` starts one, and is waited for until its Node is Ready.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::discovery::{self, Endpoint, Found, Token};
use super::settings::Settings;
use super::{unit, up};
use crate::api::{Api, Refused, text_at};
use crate::arguments::JoinOptions;
use crate::check;
use crate::terminal::{self, Waiting};

/// The annotation by which a machine knows its own Node again.
const INSTANCE: &str = "skiff.dev/instance-id";

pub(crate) async fn run(state_dir: &Path, options: &JoinOptions) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "starting a node needs root");
    up::suits(state_dir)?;
    let token = Token::parse(&options.token)?;
    let endpoint = Endpoint::parse(&options.server)?;
    let known = is_to_join(state_dir)?;
    let waiting = Waiting::start(format!("finding the cluster at {endpoint}"));
    let found = discovery::discover(endpoint, &token, &options.ca_hash).await?;
    let before = Settings {
        joined: Some(found.endpoint.url()),
        ..known.clone().unwrap_or_else(Settings::nothing)
    };
    let settings = Settings::choose(state_dir, &options.node(), Some(&before))?;
    check_name(&settings.node_name)?;
    if !options.skip_checks {
        check::preflight(&super::wanted(state_dir, &settings))?;
    }
    let bootstrap = bootstrap_kubeconfig(&found, &token);
    may_have_name(&bootstrap, state_dir, &settings.node_name, &found).await?;
    waiting.done(&format!("the cluster at {} is the one of the token", found.endpoint));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .context("create the state directory")?;
    settings.write(state_dir)?;
    let joined = async {
        replace_credentials(state_dir, &bootstrap)?;
        start(state_dir, &settings).await
    };
    if let Err(error) = joined.await {
        return Err(take_back(state_dir, known, &settings, &error));
    }
    remove(&set_aside(&super::pki(state_dir)))?;
    // The token has done its work.
    fs::remove_file(super::pki(state_dir).join("bootstrap.kubeconfig")).context("remove the token")?;
    terminal::line(format!(
        "This machine is node {} of the cluster at {}. `skiff leave` undoes it.",
        settings.node_name, found.endpoint
    ))
}

/// Answers the settings of an earlier join into a directory; fails where it holds something else, or a node that runs.
fn is_to_join(state_dir: &Path) -> anyhow::Result<Option<Settings>> {
    let known = Settings::read(state_dir)?;
    match &known {
        None if state_dir.exists() => ensure!(
            up::is_free(state_dir)?,
            "{} holds something else than a node; choose another directory by --state-dir",
            state_dir.display()
        ),
        None => {}
        Some(known) => {
            let Some(server) = &known.joined else {
                bail!(
                    "{} holds a cluster of its own: `skiff down --purge` ends it, or choose another directory by --state-dir",
                    state_dir.display()
                )
            };
            ensure!(
                super::agent(state_dir).running().is_none(),
                "this machine is node {} of the cluster at {server} already; `skiff leave` first",
                known.node_name
            );
        }
    }
    Ok(known)
}

/// Fails for a name that no Node has, or whose certificate the cluster does not sign.
fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let labels = name.split('.').all(|label| {
        let ends = label.bytes().next().is_some_and(plain) && label.bytes().last().is_some_and(plain);
        ends && label.bytes().all(|byte| plain(byte) || byte == b'-')
    });
    ensure!(
        labels && name.len() <= 253,
        "{name:?} is no name for a node: small letters, digits, '-' and '.'; give another one by --node-name"
    );
    ensure!(
        name != "localhost" && name.split('.').next() != Some("kubernetes"),
        "{name:?} is a name of the API server: give this machine another one by --node-name"
    );
    Ok(())
}

fn bootstrap_kubeconfig(found: &Found, token: &Token) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "join",
        "clusters": [{"name": "join", "cluster": {
            "server": found.endpoint.url(), "certificate-authority-data": STANDARD.encode(&found.authority),
        }}],
        "users": [{"name": "join", "user": {"token": token.to_string()}}],
        "contexts": [{"name": "join", "context": {"cluster": "join", "user": "join"}}],
    });
    format!("{kubeconfig:#}\n")
}

/// Fails when another machine has the name and is Ready, and when the token is not taken.
async fn may_have_name(bootstrap: &str, state_dir: &Path, name: &str, found: &Found) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::from_yaml(bootstrap)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let node = Api::new(config)?.get(&format!("/api/v1/nodes/{name}")).await;
    let at = &found.endpoint;
    match node.as_ref().map_err(|error| error.downcast_ref::<Refused>()) {
        Ok(node) if up::is_ready(node) && !is_of(node, &super::instance_id(state_dir)) => bail!(
            "another machine is node {name} of the cluster at {at}, and Ready: give this one another name by --node-name. If it is \
             this machine, `skiff delete node {name}` on the server lets it come again"
        ),
        Ok(_) => Ok(()),
        Err(Some(refused)) if refused.code == 404 => Ok(()),
        Err(Some(refused)) if refused.code == 401 => bail!(
            "the cluster at {at} does not take the token: it has expired or is not for authentication; make another one there with \
             `skiff token create`"
        ),
        Err(Some(refused)) if refused.code == 403 => bail!(
            "the token may not see nodes: the cluster at {at} lacks the binding kubeadm:get-nodes, or the token the group \
             system:bootstrappers:kubeadm:default-node-token ({refused})"
        ),
        Err(_) => node.map(|_| ()).context("ask for a node of the same name"),
    }
}

/// Tells whether a Node is that of an instance.
fn is_of(node: &Value, instance: &str) -> bool {
    let annotations = node.pointer("/metadata/annotations");
    annotations.and_then(|all| all.get(INSTANCE)).and_then(Value::as_str) == Some(instance)
}

/// Puts the token where the agent looks for it, and nothing beside it: certificates of an earlier join prove nothing here.
fn replace_credentials(state_dir: &Path, bootstrap: &str) -> anyhow::Result<()> {
    let pki = super::pki(state_dir);
    remove(&set_aside(&pki))?;
    match fs::rename(&pki, set_aside(&pki)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("set earlier credentials aside");
        }
        Ok(()) | Err(_) => {}
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&pki);
    made.with_context(|| format!("create {}", pki.display()))?;
    let path = pki.join("bootstrap.kubeconfig");
    let mut file = fs::OpenOptions::new();
    let written = file.write(true).create_new(true).mode(0o600).open(&path);
    let written = written.and_then(|mut file| file.write_all(bootstrap.as_bytes()));
    written.with_context(|| format!("write {}", path.display()))
}

/// The place of the credentials of an earlier join, until this one has succeeded.
fn set_aside(pki: &Path) -> PathBuf {
    pki.with_extension("before")
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Puts earlier credentials where they were, in place of what this join has left, the token with it.
fn restore_credentials(state_dir: &Path) -> anyhow::Result<()> {
    let pki = super::pki(state_dir);
    remove(&pki)?;
    match fs::rename(set_aside(&pki), &pki) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("put earlier credentials back")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Starts the agent of a node that joins or has joined, unless it runs, and waits until the node is Ready.
pub(super) async fn start(state_dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let (daemon, name) = (super::agent(state_dir), &settings.node_name);
    let waiting = Waiting::start("starting the node agent");
    let begun = OffsetDateTime::now_utc().format(&Rfc3339)?;
    let launch = || {
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(super::agent_arguments(state_dir, settings));
        daemon.start(&super::sibling("skiff-agent")?, &arguments)
    };
    let as_unit = unit::is_its(state_dir);
    let mut child = None;
    let mut keep = || {
        if as_unit {
            Ok(false)
        } else {
            up::keep(&mut child, &daemon, launch).map(|()| child.is_some())
        }
    };
    let mut started = keep()?;
    if as_unit && daemon.running().is_none() {
        unit::start(state_dir, settings)?;
        started = true;
    }
    // What a Node says counts from when its agent has said something.
    let since = if started { begun.as_str() } else { "" };
    waiting.now(format!("waiting for node {name} to be Ready"));
    let ready = async {
        loop {
            keep()?;
            if let Ok(node) = own_node(state_dir, name, since).await {
                return anyhow::Ok(node);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let node = up::within(ready, &daemon, "the node is not Ready").await;
    let node = node.map_err(|error| {
        if as_unit {
            error.context("see `journalctl -u skiff-agent`")
        } else {
            error
        }
    })?;
    waiting.done(&if up::lacks_network(&node) {
        format!("node {name} is up; it will be Ready when there is a CNI configuration")
    } else {
        format!("node {name} is Ready")
    });
    Ok(())
}

/// The node's own connection, once it has its credentials.
pub(super) async fn own_api(state_dir: &Path) -> anyhow::Result<Api> {
    Api::from_kubeconfig(&super::pki(state_dir).join("agent.kubeconfig")).await
}

/// The Node, where it is up and has renewed its lease since a moment.
async fn own_node(state_dir: &Path, name: &str, since: &str) -> anyhow::Result<Value> {
    tokio::net::UnixStream::connect(super::agent_directory(state_dir).join("agent.sock")).await?;
    let api = own_api(state_dir).await?;
    let lease = api.get(&format!("{}/{name}", up::LEASES)).await?;
    let time = |text: &str| OffsetDateTime::parse(text, &Rfc3339);
    // The lease is renewed by this machine's clock, too.
    ensure!(
        since.is_empty() || time(&up::renewed(&lease))? > time(since)?,
        "the lease is old"
    );
    let node = api.get(&format!("/api/v1/nodes/{name}")).await?;
    ensure!(
        up::is_ready(&node) || up::lacks_network(&node),
        "{} is not Ready",
        text_at(&node, "/metadata/name")
    );
    Ok(node)
}

/// Ends what was started, and leaves the machine as it was.
fn take_back(state_dir: &Path, known: Option<Settings>, settings: &Settings, error: &anyhow::Error) -> anyhow::Error {
    let waiting = Waiting::start("taking back what was started");
    let mut failures = super::down::end(state_dir, settings, false, &waiting).1;
    failures.extend(restore_credentials(state_dir).err());
    let restored = match known {
        Some(known) => known.write(state_dir),
        None if failures.is_empty() => super::down::remove_state(state_dir),
        None => Ok(()),
    };
    failures.extend(restored.err());
    let told = format!("{error:#}\nIt is stopped again; mend that and give the line once more.");
    let texts = failures.iter().map(|failure| format!("\nMoreover: {failure:#}"));
    anyhow!(told + &texts.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_names_of_their_own() {
        for (name, good) in [
            ("n1", true),
            ("rack-1.example.com", true),
            ("kubernetes-1", true),
            ("localhost", false),
            ("kubernetes", false),
            ("kubernetes.default.svc", false),
            ("N1", false),
            ("-n", false),
            ("n.", false),
            ("a..b", false),
            ("", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn a_machine_knows_its_own_node() {
        let node = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        for (node, own) in [
            (node(json!({"skiff.dev/instance-id": "a"})), true),
            (node(json!({"skiff.dev/instance-id": "b"})), false),
            (node(json!({})), false),
            (json!({"metadata": {}}), false),
        ] {
            assert_eq!(is_of(&node, "a"), own, "{node}");
        }
    }
}
