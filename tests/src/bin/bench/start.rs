//! How long the control plane takes from `exec` to ready: the first start makes keys and a database, the second finds them.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::http::Target;
use tests::machine::{Namespace, PATIENCE};
use tests::process;

use crate::figures::{Table, milliseconds, now};

/// Starts the control plane twice on one state directory.
pub(crate) async fn measure(namespace: &Namespace, table: &mut Table) -> anyhow::Result<()> {
    let state = tempfile::tempdir()?;
    for round in ["first start", "second start"] {
        let mut command: Command = namespace.command(process::programs()?.join("skiff-controlplane"));
        command
            .arg("--state-dir")
            .arg(state.path())
            .args(["--listen", "127.0.0.1:7443"]);
        let start = now();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let ready = tokio::time::timeout(PATIENCE, until_ready(&state.path().join("admin.kubeconfig"))).await;
        let taken = start.elapsed();
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
        child.wait()?;
        ready.context("the control plane did not become ready")?;
        table.row(format!("exec -> /readyz, {round}"), milliseconds(taken));
    }
    Ok(())
}

async fn until_ready(kubeconfig: &std::path::Path) {
    loop {
        if let Ok(target) = Target::from_kubeconfig(kubeconfig)
            && let Ok(mut connection) = target.connect().await
            && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/readyz", Bytes::new()).await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
