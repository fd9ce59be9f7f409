//! Daemons are killed: containers are restarted, running ones outlive the agent, and no write that
//! the control plane acknowledged is lost.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use serde_json::Value;
use tests::http::Target;
use tests::machine::{Machine, Namespace, Setup, TIMEOUT, eventually};
use tests::server::Server;
use tests::{images, process};

fn pod(machine: &Machine, name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(
        &machine.kubectl(["get", "pod", name, "-o", "json"])?,
    )?)
}

fn run_nginx(machine: &Machine, name: &str) -> anyhow::Result<Value> {
    let image = images::nginx(machine)?;
    machine.kubectl(["run", name, &format!("--image={image}"), "--port=80"])?;
    machine.kubectl(["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"])?;
    pod(machine, name)
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

#[test]
fn a_killed_container_comes_back_at_once() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("restart")?;
    let before = run_nginx(&machine, "web")?;
    let uid = before["metadata"]["uid"].as_str().context("a uid")?;
    kill(Pid::from_raw(process::container_of(uid)?), Signal::SIGKILL)?;
    let after = eventually("the container runs again", || {
        let pod = pod(&machine, "web").map_err(|error| error.to_string())?;
        let again = container(&pod)["restartCount"] == 1 && container(&pod)["state"]["running"].is_object();
        if again {
            Ok(pod)
        } else {
            Err(container(&pod).to_string())
        }
    })?;
    let ended = &container(&after)["lastState"]["terminated"];
    assert_eq!(ended["exitCode"], 137, "{after:#}");
    assert_eq!(ended["reason"], "Error", "{after:#}");
    assert_eq!(ended["containerID"], container(&before)["containerID"]);
    assert_ne!(container(&after)["containerID"], container(&before)["containerID"]);
    let page = machine.page(&format!(
        "http://{}/",
        after["status"]["podIP"].as_str().context("an address")?
    ))?;
    assert!(page.contains("nginx"));
    eventually("both starts are told", || {
        let words = [
            "get",
            "events",
            "--field-selector",
            "involvedObject.name=web",
            "-o",
            "json",
        ];
        let events = machine.kubectl(words).map_err(|error| format!("{error:#}"))?;
        let events: Value = serde_json::from_str(&events).map_err(|error| error.to_string())?;
        let all = events["items"].as_array().into_iter().flatten();
        let started = all.filter(|event| event["reason"] == "Started");
        let started: u64 = started.map(|event| event["count"].as_u64().unwrap_or(1)).sum();
        (started == 2).then_some(()).ok_or_else(|| format!("{events:#}"))
    })?;
    machine.finish()
}

/// Some 20 ms on a quiet machine; the fastest of some runs on a busy one shows that no step waits.
#[test]
fn a_first_restart_waits_for_nothing() -> anyhow::Result<()> {
    const BOUND: Duration = Duration::from_millis(500);
    tests::logging();
    let machine = Machine::start("again")?;
    let mut took: Vec<Duration> = Vec::new();
    while took.len() < 10 && took.iter().all(|took| *took > BOUND) {
        let name = format!("run-{}", took.len());
        let pod = run_nginx(&machine, &name)?;
        let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
        let first = process::container_of(uid)?;
        let killed = tokio::time::Instant::now();
        kill(Pid::from_raw(first), Signal::SIGKILL)?;
        while process::container_of(uid).ok().is_none_or(|pid| pid == first) {
            anyhow::ensure!(killed.elapsed() < Duration::from_secs(30), "{name} does not come back");
        }
        took.push(killed.elapsed());
    }
    assert!(took.iter().any(|took| *took <= BOUND), "{took:?}");
    machine.finish()
}

#[test]
fn containers_outlive_the_agent() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("outlive")?;
    let before = run_nginx(&machine, "web")?;
    let address = format!("http://{}/", before["status"]["podIP"].as_str().context("an address")?);
    machine.page(&address)?;
    machine.kill("skiff-agent")?;
    assert!(
        machine.fetch(&address)?.contains("nginx"),
        "nginx serves without its agent"
    );
    machine.skiff(["up"])?;
    assert!(
        machine.fetch(&address)?.contains("nginx"),
        "nginx serves beside the new agent"
    );
    // The new agent has spoken for this pod when it reports something new: make it restart the container.
    let adopted = pod(&machine, "web")?;
    assert_eq!(container(&adopted)["containerID"], container(&before)["containerID"]);
    assert_eq!(container(&adopted)["restartCount"], 0);
    let uid = before["metadata"]["uid"].as_str().context("a uid")?;
    kill(Pid::from_raw(process::container_of(uid)?), Signal::SIGKILL)?;
    eventually("the adopted container is restarted", || {
        let pod = pod(&machine, "web").map_err(|error| error.to_string())?;
        let own = container(&pod);
        // The count of the adopted one went on, by one.
        let anew = own["containerID"] != container(&before)["containerID"] && own["restartCount"] == 1;
        if anew && own["state"]["running"].is_object() {
            Ok(())
        } else {
            Err(container(&pod).to_string())
        }
    })?;
    machine.finish()
}

/// A full pipe without a reader, in the place of a file: it blocks like a stuck journal or a frozen
/// disk.
fn full_pipe(path: &Path) -> anyhow::Result<File> {
    std::fs::remove_file(path)?;
    nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o600))?;
    let nonblocking = OFlag::O_NONBLOCK.bits();
    let mut pipe = File::options()
        .read(true)
        .write(true)
        .custom_flags(nonblocking)
        .open(path)?;
    while pipe.write(&[b'\n'; 4096]).is_ok() {}
    Ok(pipe)
}

#[test]
fn a_log_that_blocks_stops_no_daemon() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("log")?;
    let mut pipes = Vec::new();
    for (program, log) in [("skiff-controlplane", "controlplane.log"), ("skiff-agent", "agent.log")] {
        machine.kill(program)?;
        pipes.push(full_pipe(&machine.state().join(log))?);
    }
    machine.skiff(["up"])?;
    run_nginx(&machine, "web")?;
    machine.kubectl(["logs", "web"])?;
    for mut pipe in pipes {
        let mut bytes = Vec::new();
        eventually("the log goes on where it is read again", || {
            // Read until it would block.
            pipe.read_to_end(&mut bytes).ok();
            let text = String::from_utf8_lossy(&bytes);
            if text.contains(" INFO ") {
                Ok(())
            } else {
                Err(text.trim().to_owned())
            }
        })?;
    }
    machine.finish()
}

/// Room on the disk that is full for everybody else, the audit log and the agent included.
#[test]
fn a_full_disk_is_told_and_the_api_can_help_itself() -> anyhow::Result<()> {
    tests::logging();
    let setup = Setup {
        disk: Some(96),
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("full")?, setup)?;
    let text = machine.state().join("text");
    std::fs::write(&text, "x".repeat(500_000))?;
    let create = |name: &str| {
        let file = format!("--from-file={}", text.display());
        machine.kubectl(["create", "configmap", name, &file])
    };
    for name in ["a", "b", "c"] {
        create(name)?;
    }
    let ready = || {
        machine
            .kubectl(["get", "--raw", "/readyz?verbose"])
            .map_err(|error| format!("{error:#}"))
    };
    assert!(ready().is_ok_and(|checks| checks.contains("[+]etcd-readiness ok")));
    let filler = machine.state().join("filler");
    let mut file = File::create(&filler)?;
    let zeros = vec![0; 65536];
    while file.write(&zeros).is_ok() {}
    let mut number = 0;
    eventually("writes are refused", || {
        number += 1;
        match create(&format!("n{number}")) {
            Ok(said) => Err(said),
            // A small write that still finds room makes it ready until the next one.
            Err(error) if format!("{error:#}").contains("no space left for the write") => match ready() {
                Err(told) if told.contains("[-]etcd-readiness failed: reason withheld") => Ok(()),
                other => Err(format!("a server that takes no writes is not ready: {other:?}")),
            },
            Err(error) => Err(format!("{error:#}")),
        }
    })?;
    while file.write(&[0; 4096]).is_ok() {}
    for name in ["a", "b", "c"] {
        machine.kubectl(["delete", "configmap", name])?;
    }
    drop(file);
    std::fs::remove_file(&filler)?;
    eventually("the server is ready where there is room again", &ready)?;
    create("after")?;
    machine.finish()
}

/// Numbers of kills of the control plane and of concurrent writers.
const KILLS: usize = 50;
const WRITERS: usize = 16;

#[tokio::test(flavor = "current_thread")]
async fn no_acknowledged_write_is_lost() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("ledger")?;
    namespace.enter()?;
    let mut server = Server::start(Some(namespace), "127.0.0.1:6443")?;
    let written = Arc::new(AtomicUsize::new(0));
    let mut acknowledged = Vec::new();
    for round in 0..KILLS {
        let target = server.ready().await.with_context(|| format!("round {round}"))?;
        check(&target, &acknowledged)
            .await
            .with_context(|| format!("round {round}"))?;
        let killed = Arc::new(AtomicBool::new(false));
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..WRITERS {
            writers.spawn(write(target.clone(), Arc::clone(&written), Arc::clone(&killed)));
        }
        // One of more requests than there are writers follows an answer.
        let begun = written.load(Ordering::Relaxed);
        let answered = async {
            while written.load(Ordering::Relaxed) <= begun + WRITERS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Why they do not write is told when they have ended.
        tokio::time::timeout(TIMEOUT, answered).await.ok();
        // The moment of the kill differs from round to round.
        tokio::time::sleep(Duration::from_millis(20 + (round as u64 * 7) % 60)).await;
        killed.store(true, Ordering::SeqCst);
        server.kill()?;
        while let Some(names) = writers.join_next().await {
            acknowledged.extend(names??);
        }
        server.again()?;
    }
    check(&server.ready().await?, &acknowledged).await?;
    assert!(acknowledged.len() > KILLS, "the writers wrote: {}", acknowledged.len());
    server.finish()
}

/// Creates ConfigMaps until the server dies; returns the names that it acknowledged.
async fn write(target: Target, next: Arc<AtomicUsize>, killed: Arc<AtomicBool>) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut connection = match target.connect().await {
        Ok(connection) => connection,
        Err(_) if killed.load(Ordering::SeqCst) => return Ok(names),
        Err(error) => return Err(error),
    };
    loop {
        let name = format!("ledger-{}", next.fetch_add(1, Ordering::Relaxed));
        let body = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let path = "/api/v1/namespaces/default/configmaps";
        match connection.call(Method::POST, path, Bytes::from(body.to_string())).await {
            Ok((StatusCode::CREATED, _)) => names.push(name),
            Ok((status, answer)) => anyhow::bail!("{status}: {}", String::from_utf8_lossy(&answer)),
            Err(_) if killed.load(Ordering::SeqCst) => return Ok(names),
            Err(error) => return Err(error),
        }
    }
}

async fn check(target: &Target, acknowledged: &[String]) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let list = connection
        .expect(Method::GET, "/api/v1/namespaces/default/configmaps", Bytes::new())
        .await?;
    let list: Value = serde_json::from_slice(&list)?;
    let present: std::collections::BTreeSet<&str> = list["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    let missing: Vec<&String> = acknowledged
        .iter()
        .filter(|name| !present.contains(name.as_str()))
        .collect();
    anyhow::ensure!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    Ok(())
}
