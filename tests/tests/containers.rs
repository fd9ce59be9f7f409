//! The same contract for all kinds of nodes: each runtime with each network, real images, a real
//! cluster of daemons, and all operations and checks through the API, as a user would.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking; absent JSON is null"
)]

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::machine::eventually;
use tests::parts::Parts;
use tests::{images, process};

use classes::{group, it_is_arranged};
use cluster::{Cluster, address, container, ended, is_ready, uid};

#[path = "containers/classes.rs"]
mod classes;
#[path = "containers/cluster.rs"]
mod cluster;
#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
#[path = "containers/devices.rs"]
mod devices;
#[path = "containers/exchange.rs"]
mod exchange;
#[path = "containers/hooks.rs"]
mod hooks;
#[path = "containers/image_volumes.rs"]
mod image_volumes;
#[path = "containers/messages.rs"]
mod messages;
#[path = "containers/pods.rs"]
mod pods;
#[path = "containers/start.rs"]
mod start;

/// A part of the contract, by name.
type Check<'a> = (&'a str, &'a dyn Fn(&Cluster) -> anyhow::Result<()>);

/// A pod of nginx serves, on its own address and on a port of the node, and its probes pass.
fn it_serves(cluster: &Cluster) -> anyhow::Result<()> {
    let web = cluster.until("web", "is ready", is_ready)?;
    cluster.until("tools", "is ready", is_ready)?;
    for place in [address(&web), "172.30.0.1:8080"] {
        let page = cluster.machine.fetch(&format!("http://{place}/"))?;
        ensure!(page.contains("nginx"), "{place}: {page}");
    }
    ensure!(container(&web)["started"] == true, "{web:#}");
    let page = cluster.exec("tools", &format!("wget -q -O - http://{}/hostname", address(&web)))?;
    ensure!(page.trim() == "web", "from another pod: {page}");
    eventually("pods find Services by name", || {
        let asked = cluster.exec("tools", "nslookup kubernetes.default.svc.cluster.local");
        let said = asked.map_err(|error| format!("{error:#}"))?;
        if said.contains("10.96.0.1") { Ok(()) } else { Err(said) }
    })
}

fn it_is_limited(cluster: &Cluster) -> anyhow::Result<()> {
    let web = cluster.until("web", "is ready", is_ready)?;
    let read = |controller: &str, file: &str| {
        let (path, hierarchy) = group(&web, controller).ok()?;
        std::fs::read_to_string(format!("{hierarchy}{path}/{file}")).ok()
    };
    let memory = read("memory", "memory.limit_in_bytes").or_else(|| read("memory", "memory.max"));
    ensure!(memory.as_deref().map(str::trim) == Some("67108864"), "{memory:?}");
    let quota = read("cpu", "cpu.cfs_quota_us").or_else(|| read("cpu", "cpu.max"));
    ensure!(
        quota.as_ref().is_some_and(|quota| quota.starts_with("50000")),
        "{quota:?}"
    );
    let oom = cluster.until("oom", "has ended", ended)?;
    let state = &container(&oom)["state"]["terminated"];
    ensure!(state["reason"] == "OOMKilled" && state["exitCode"] == 137, "{state}");
    ensure!(oom["status"]["phase"] == "Failed", "{}", oom["status"]);
    Ok(())
}

fn it_executes(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.until("tools", "is ready", is_ready)?;
    let said = cluster.exec("tools", "echo $GREETING $(hostname); id -u; pwd")?;
    ensure!(said == "hello tools\n0\n/tmp\n", "{said}");
    // A byte that is not UTF-8 is the program's as it is; runc reads it as Go does.
    let expected = if cluster.parts.containerd {
        "61 ef bf bd 7a"
    } else {
        "61 ff 7a"
    };
    let said = cluster.exec("tools", "printf %s \"$BYTES\" | busybox od -An -tx1")?;
    ensure!(said.trim() == expected, "{said}");
    let output = cluster.talk(
        &["exec", "-i", "tools", "--", "sh", "-c", "cat; echo err >&2; exit 7"],
        "typed\n",
    )?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.stdout == b"typed\n" && err.contains("err\n") && err.contains("exit code 7"),
        "{}",
        process::both(&output)
    );
    Ok(())
}

fn it_tells_what_was_said(cluster: &Cluster) -> anyhow::Result<()> {
    let speaks = |pod: &Value| container(pod)["restartCount"] == 1 && container(pod)["state"]["running"].is_object();
    cluster.until("speaker", "has been started again", speaks)?;
    eventually("the second one speaks", || match cluster.logs("speaker") {
        Ok(text) if text == "second\noops\n" || text == "oops\nsecond\n" => Ok(()),
        seen => Err(format!("{seen:?}")),
    })?;
    eventually("what the first one said", || {
        match cluster.machine.kubectl(["logs", "speaker", "--previous"]) {
            Ok(text) if text == "first\nno newline" => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })?;
    let last = cluster.machine.kubectl(["logs", "speaker", "--tail=1"])?;
    ensure!(last.lines().count() == 1, "{last}");
    let speaker = cluster.until("speaker", "is there", |_| true)?;
    let id = container(&speaker)["containerID"]
        .as_str()
        .and_then(|id| id.split("//").nth(1));
    let link = format!("log/containers/speaker_default_main-{}.log", id.unwrap_or_default());
    let linked = std::fs::read_to_string(cluster.folder.path().join(&link)).context(link)?;
    ensure!(
        linked.contains(" stdout F second\n"),
        "what a collector reads: {linked}"
    );
    let state = &container(&speaker)["lastState"]["terminated"];
    ensure!(state["exitCode"] == 3 && state["message"] == "last words", "{state}");
    Ok(())
}

fn volumes_are_there(cluster: &Cluster) -> anyhow::Result<()> {
    let pod = cluster.until("volumes", "has ended", ended)?;
    ensure!(
        container(&pod)["state"]["terminated"]["exitCode"] == 0,
        "{} {}",
        cluster.logs("volumes")?,
        pod["status"]
    );
    let expected = [
        "from the map",
        "from the secret",
        "volumes",
        "default",
        "projected too",
        "of the host",
        "tmpfs",
        "read-only",
        "in a part",
        "from init",
    ];
    cluster.has_said("volumes", |said| said.lines().eq(expected))?;
    ensure!(
        cluster.written("part/made") == "in a part\n",
        "{:?}",
        cluster.written("part/made")
    );
    Ok(())
}

fn it_is_confined(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.until("secure", "has ended", ended)?;
    let all = [
        "uid=1000 gid=3000 groups=2000,3000",
        "\n/none/such\n",
        "from 77",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "root is read-only",
        "made for the image: 0:0",
        "volume is mine",
        "no mount",
    ];
    cluster.has_said("secure", |said| all.iter().all(|expected| said.contains(expected)))?;
    let refused = cluster.until("rootless", "is refused", |pod| {
        container(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    let message = container(&refused)["state"]["waiting"]["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(message.contains("runAsNonRoot"), "{message}");
    let missing = cluster.until("missing", "fails", |pod| {
        let state = container(pod);
        state["lastState"]["terminated"]["reason"] == "StartError"
            || state["state"]["terminated"]["reason"] == "StartError"
    })?;
    ensure!(
        missing["status"].to_string().contains("/no/such/program"),
        "{}",
        missing["status"]
    );
    Ok(())
}

fn probes_decide(cluster: &Cluster) -> anyhow::Result<()> {
    let late = cluster.until("late", "is ready", is_ready)?;
    ensure!(container(&late)["restartCount"] == 0, "{}", late["status"]);
    ensure!(
        cluster.written("late") == "startup passed\n",
        "{:?}",
        cluster.written("late")
    );
    let sick = cluster.until("sick", "was restarted", |pod| {
        container(pod)["restartCount"].as_u64() >= Some(1) && is_ready(pod)
    })?;
    // However short its time is, it is asked to end before it is killed.
    let ended = &container(&sick)["lastState"]["terminated"];
    ensure!(ended["exitCode"] == 0, "{ended}");
    // Events are told with a delay.
    eventually("why it was restarted", || {
        let words = ["get", "events", "--field-selector", "involvedObject.name=sick"];
        let events = cluster.machine.kubectl(words).map_err(|error| format!("{error:#}"))?;
        let told = events.contains("failed liveness probe, will be restarted");
        told.then_some(()).ok_or_else(|| format!("{events} {sick}"))
    })
}

fn pods_share_what_they_say(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.until("shared", "is ready", is_ready)?;
    let words = ["exec", "shared", "-c", "two", "--"];
    let processes = cluster.machine.kubectl(words.into_iter().chain(["ps"]))?;
    ensure!(processes.contains("sleep 4321"), "{processes}");
    cluster.machine.kubectl([
        "exec",
        "shared",
        "-c",
        "one",
        "--",
        "sh",
        "-c",
        "echo hello > /dev/shm/note",
    ])?;
    let note = cluster
        .machine
        .kubectl(words.into_iter().chain(["cat", "/dev/shm/note"]))?;
    ensure!(note == "hello\n", "{note}");
    let of_node = cluster.until("node", "is ready", is_ready)?;
    let status = &of_node["status"];
    ensure!(address(&of_node) == status["hostIP"], "{status}");
    let links = cluster.exec("node", "ip -o link")?;
    ensure!(links.contains("up0"), "{links}");
    Ok(())
}

/// kubectl run -i, attach, and input that ends with its first client.
fn clients_attach(cluster: &Cluster, busybox: &str) -> anyhow::Result<()> {
    let image = format!("--image={busybox}");
    let said = cluster.talk(
        &[
            "run",
            "once",
            "-i",
            "--rm",
            "--restart=Never",
            "--quiet",
            &image,
            "--",
            "sh",
            "-c",
            "cat; echo end",
        ],
        "one\ntwo\n",
    )?;
    ensure!(
        said.stdout == b"one\ntwo\nend\n" && said.status.success(),
        "{}",
        process::both(&said)
    );
    let quick = [
        "run",
        "quick",
        "-i",
        "--rm",
        "--restart=Never",
        "--quiet",
        &image,
        "--",
        "echo",
        "all",
    ];
    for round in 0..10 {
        let said = cluster.talk(&quick, "")?;
        ensure!(said.stdout == b"all\n", "{round}: {}", process::both(&said));
    }
    cluster.until("listener", "is ready", is_ready)?;
    for text in ["three", "four"] {
        let said = cluster.talk(&["attach", "-i", "listener"], &format!("{text}\n"))?;
        ensure!(said.status.success(), "{}", process::both(&said));
        eventually("it was heard", || match cluster.logs("listener") {
            Ok(log) if log.contains(&format!("got {text}\n")) => Ok(()),
            seen => Err(format!("{seen:?}")),
        })?;
    }
    let listener = cluster.until("listener", "is there", |_| true)?;
    ensure!(container(&listener)["restartCount"] == 0, "{listener}");
    Ok(())
}

/// Containers outlive their agent, and are those of the next one, which counts from there.
fn the_next_agent_adopts(cluster: &Cluster) -> anyhow::Result<()> {
    let before = cluster.until("web", "is ready", is_ready)?;
    let place = format!("http://{}/", address(&before));
    cluster.machine.kill("skiff-agent")?;
    ensure!(
        cluster.machine.fetch(&place)?.contains("nginx"),
        "it serves without an agent"
    );
    cluster.machine.skiff(["up"])?;
    let after = cluster.until("web", "is ready", is_ready)?;
    ensure!(
        container(&after)["containerID"] == container(&before)["containerID"],
        "{after}"
    );
    ensure!(container(&after)["restartCount"] == 0, "{after}");
    kill(Pid::from_raw(process::container_of(uid(&before))?), Signal::SIGKILL)?;
    let again = cluster.until("web", "was restarted", |pod| {
        container(pod)["restartCount"] == 1 && is_ready(pod)
    })?;
    let last = &container(&again)["lastState"]["terminated"];
    ensure!(last["exitCode"] == 137 && last["reason"] == "Error", "{last}");
    ensure!(cluster.machine.fetch(&place)?.contains("nginx"), "it serves again");
    Ok(())
}

async fn contract(parts: Parts) -> anyhow::Result<()> {
    let cluster = Cluster::start(parts).await?;
    let (nginx, busybox) = (images::nginx(&cluster.machine)?, images::busybox(&cluster.machine)?);
    let host = cluster.folder.path().join("host");
    std::fs::write(host.join("note"), "of the host\n")?;
    cluster.apply(&pods::all(&nginx, &busybox, &host.display().to_string()))?;
    let all: [Check<'_>; 20] = [
        ("serving", &it_serves),
        ("limits", &it_is_limited),
        ("classes", &it_is_arranged),
        ("exec", &it_executes),
        ("logs", &it_tells_what_was_said),
        ("messages", &messages::logs_are_told_in_messages),
        ("volumes", &volumes_are_there),
        ("image volumes", &|cluster| {
            image_volumes::images_are_volumes(cluster, &nginx, &busybox)
        }),
        ("variables", &|cluster| {
            image_volumes::variables_are_in_files(cluster, &busybox)
        }),
        ("beginnings", &|cluster| {
            image_volumes::beginnings_fail(cluster, &busybox)
        }),
        ("security", &it_is_confined),
        ("probes", &probes_decide),
        ("sharing", &pods_share_what_they_say),
        ("attach", &|cluster| clients_attach(cluster, &busybox)),
        ("adoption", &the_next_agent_adopts),
        ("devices", &|cluster| devices::plugins_offer_devices(cluster, &busybox)),
        ("gates", &|cluster| hooks::gates_decide(cluster, &busybox)),
        ("hooks", &|cluster| hooks::the_node_asks_and_waits(cluster, &busybox)),
        ("stopping", &hooks::it_stops),
        ("images", &|cluster| exchange::images_come_and_go(cluster, &nginx)),
    ];
    for (name, check) in all {
        check(&cluster).with_context(|| format!("{name} with {:?}", cluster.parts))?;
    }
    cluster.finish().await
}

fn run(parts: Parts) -> anyhow::Result<()> {
    tests::logging();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(Box::pin(contract(parts)))
}

#[test]
fn embedded_and_bridge() -> anyhow::Result<()> {
    run(Parts::default())
}

#[test]
fn embedded_and_cni() -> anyhow::Result<()> {
    run(Parts {
        containerd: false,
        cni: true,
    })
}

#[test]
fn containerd_and_bridge() -> anyhow::Result<()> {
    run(Parts {
        containerd: true,
        cni: false,
    })
}

#[test]
fn containerd_and_cni() -> anyhow::Result<()> {
    run(Parts {
        containerd: true,
        cni: true,
    })
}
