//! Bootstrap of the agent's credentials by a bootstrap token, as in a kubelet
//! (`pkg/kubelet/certificate/bootstrap/bootstrap.go`). Keys are generated here and never leave the
//! machine.

use std::time::Duration;

use agent::connection::Servers;
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tracing::info;

use crate::command::Arguments;
use crate::renewal::{self, CLIENT_SIGNER, Own, SERVING_SIGNER, Wanted};

/// Longest time to wait for the certificate to be signed; the kubelet's hour is too long for a
/// machine that joins interactively.
const LIMIT: Duration = Duration::from_secs(30);

/// Requests missing or expired certificates, if a bootstrap kubeconfig is given.
pub(crate) async fn run(arguments: &Arguments, servers: &Servers) -> anyhow::Result<()> {
    let Some(bootstrap) = &arguments.bootstrap_kubeconfig else {
        return Ok(());
    };
    let (kubeconfig, files) = (arguments.kubeconfig(), arguments.tls_files());
    let user = format!("system:node:{}", arguments.node_name);
    let own = Own {
        common_name: user.clone(),
        ..Own::default()
    };
    if !is_valid(&renewal::read(kubeconfig).unwrap_or_default()) {
        let text = renewal::read(bootstrap).with_context(|| {
            format!(
                "{} holds no certificate that is valid now, and there is no token to get one: give a line of `skiff token create` \
                 here once more",
                kubeconfig.display()
            )
        })?;
        let wanted = Wanted {
            signer: CLIENT_SIGNER,
            usage: "client auth",
            own: &own,
            names: Vec::new(),
        };
        let asked = wanted.ask(renewal::connect(&text, servers).await?, LIMIT).await;
        let (certificate, key) = asked.context("get the node's certificate by the token")?;
        let mut value = renewal::parse(&text)?;
        if let Some(user) = value.pointer_mut("/users/0/user") {
            *user = json!({
                "client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key),
            });
        }
        renewal::write(kubeconfig, &format!("{value:#}\n"))?;
        info!(user, "the cluster has signed the node's certificate");
    }
    let text = renewal::read(kubeconfig)?;
    if !files.client_authority.exists() {
        let value = renewal::parse(&text)?;
        let authority = value.pointer("/clusters/0/cluster/certificate-authority-data");
        let authority = authority
            .and_then(Value::as_str)
            .and_then(|encoded| STANDARD.decode(encoded).ok());
        let authority = authority.and_then(|pem| String::from_utf8(pem).ok());
        renewal::write(
            &files.client_authority,
            &authority.context("the kubeconfig names no authority")?,
        )?;
    }
    if !(files.certificate.exists() && files.key.exists()) {
        let wanted = Wanted {
            signer: SERVING_SIGNER,
            usage: "server auth",
            own: &own,
            names: vec![arguments.node_name.clone()],
        };
        let asked = wanted.ask(renewal::connect(&text, servers).await?, LIMIT).await;
        let (certificate, key) = asked.context("get the certificate of the node's server")?;
        renewal::write(&files.key, &key)?;
        renewal::write(&files.certificate, &certificate)?;
    }
    Ok(())
}

/// True if a kubeconfig has a client certificate that has not expired, or credentials of another
/// kind.
fn is_valid(kubeconfig: &str) -> bool {
    let Ok(value) = renewal::parse(kubeconfig) else {
        return false;
    };
    match Own::of_client(&value) {
        Some(own) => Timestamp::now().as_second() < own.until,
        None => value.pointer("/users/0/user").is_some(),
    }
}
