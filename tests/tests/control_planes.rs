//! Several control planes on one etcd, and a node that knows the addresses of both.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::etcd::Etcd;
use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::server::Server;
use tests::{images, process};
use tokio::time::Instant;

/// Arguments of a running control plane, without its own directory and address.
fn arguments(pid: i32) -> anyhow::Result<Vec<String>> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    let words: Vec<&str> = line.trim_end_matches('\0').split('\0').skip(2).collect();
    let pairs = words
        .chunks(2)
        .filter(|pair| !matches!(pair.first(), Some(&("--state-dir" | "--listen"))));
    Ok(pairs.flatten().map(|&word| word.to_owned()).collect())
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_goes_on_with_the_next_control_plane_when_its_own_is_killed() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("planes")?;
    namespace.enter()?;
    let etcd = Etcd::start()?;
    let url = etcd.url();
    let environment = [
        ("SKIFF_STORE", url.as_str()),
        ("SKIFF_SERVER", "127.0.0.1:6443,127.0.0.1:6444"),
    ];
    let setup = Setup {
        environment: &environment,
        ..Setup::default()
    };
    let machine = Machine::start_with(namespace, setup)?;
    let image = format!("--image={}", images::busybox(&machine)?);
    let first = machine.daemon("skiff-controlplane")?;
    let mut words = arguments(first)?;
    words.extend(["--store".to_owned(), url.clone()]);
    let second = Server::beside(machine.state(), "127.0.0.1:6444", words)?;
    second.ready().await?;

    let kubeconfig = second.state().join("admin.kubeconfig").display().to_string();
    let kubectl = |words: &[&str]| {
        let server = ["--kubeconfig", kubeconfig.as_str()];
        machine.kubectl(server.into_iter().chain(words.iter().copied()))
    };
    let deploy = |name: &str| {
        kubectl(&["create", "deployment", name, &image, "--", "sleep", "1000"])?;
        kubectl(&["rollout", "status", "deployment", name, "--timeout=60s"])
    };
    deploy("before")?;
    let uid = kubectl(&["get", "pods", "-o", "jsonpath={.items[0].metadata.uid}"])?;
    let container = process::container_of(uid.trim())?;

    kill(Pid::from_raw(first), Signal::SIGKILL)?;
    let killed = Instant::now();
    kill(Pid::from_raw(container), Signal::SIGKILL)?;
    let restarts = [
        "get",
        "pods",
        "-o",
        "jsonpath={.items[0].status.containerStatuses[0].restartCount}",
    ];
    eventually("the restart is told", || {
        let told = kubectl(&restarts).map_err(|error| format!("{error:#}"))?;
        (told.trim() == "1").then_some(()).ok_or(told)
    })?;
    let told = killed.elapsed();
    deploy("after").context("after the first control plane was killed")?;
    let ready = killed.elapsed();
    println!("{told:?} after the kill a restart was told, after {ready:?} a new Deployment was ready");
    ensure!(
        ready < Duration::from_secs(40),
        "{told:?} and {ready:?}, on a machine that others use too"
    );
    second.finish()?;
    machine.finish()
}
