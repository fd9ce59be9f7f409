//! Life of a machine: missing prerequisites are reported before any change, its programs are
//! replaced under running pods, and nothing is left of it in the end.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tests::machine::{Machine, Namespace, Setup};
use tests::{images, leaks, process};

const PROGRAMS: [&str; 3] = ["skiff", "skiff-agent", "skiff-controlplane"];

/// Returns the message of a command that fails.
fn refused(outcome: anyhow::Result<String>) -> anyhow::Result<String> {
    match outcome {
        Ok(said) => anyhow::bail!("it was not refused: {said}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

#[test]
fn a_machine_is_told_what_it_lacks_before_anything_begins() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("lacks")?;
    let home = tempfile::tempdir()?;
    let state = home.path().join("state");
    let before = leaks::traces(&state, namespace.name())?;
    let skiff = |words: &[&str]| {
        let mut command = namespace.command(process::programs()?.join("skiff"));
        process::run(command.args(words).arg("--state-dir").arg(&state))
    };
    let checked: Value = serde_json::from_str(&skiff(&["check", "-o", "json"])?)?;
    ensure!(checked["result"] != "fail", "{checked:#}");
    let found = |name: &str| {
        let all = checked["checks"].as_array().into_iter().flatten();
        all.filter(|found| found["name"] == name)
            .map(|found| found["level"].clone())
            .next()
    };
    for name in [
        "kernel",
        "namespaces",
        "overlayfs",
        "nftables",
        "links",
        "controllers",
        "port",
    ] {
        ensure!(found(name).is_some_and(|level| level == "ok"), "{name}: {checked:#}");
    }

    // A thread of this test is in the namespace for as long as the port is taken.
    let said = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            namespace.enter()?;
            let _taken = TcpListener::bind("0.0.0.0:7443")?;
            refused(skiff(&["up", "--listen-port", "7443"]))
        });
        taking
            .join()
            .map_err(|_panicked| anyhow::anyhow!("the thread panicked"))?
    })?;
    ensure!(said.contains("port          7443: Address already in use"), "{said}");
    ensure!(said.contains("--listen-port takes another one"), "{said}");
    ensure!(
        !state.exists() && leaks::traces(&state, namespace.name())? == before,
        "something was begun"
    );
    Ok(())
}

/// A directory of links to the programs that the tests run.
fn folder(home: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let folder = home.join(name);
    fs::create_dir(&folder)?;
    for program in PROGRAMS {
        fs::copy(process::programs()?.join(program), folder.join(program))?;
    }
    Ok(folder)
}

fn pod(image: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: old}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: '{image}', imagePullPolicy: Never, command: [sh, -c, 'echo begun; exec sleep 100000']}}
"
    )
}

/// The daemons, and the number of starts of the pod's container.
fn states(machine: &Machine) -> anyhow::Result<(i32, i32, String)> {
    let path = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
    let container = machine.kubectl(["get", "pod", "old", "-o", path])?;
    Ok((
        machine.daemon("skiff-controlplane")?,
        machine.daemon("skiff-agent")?,
        container,
    ))
}

#[test]
fn pods_go_on_while_the_programs_are_replaced_and_nothing_is_left_in_the_end() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let (own, next) = (folder(home.path(), "own")?, folder(home.path(), "next")?);
    let setup = Setup {
        programs: Some(&own),
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("upgrade")?, setup)?;
    let image = images::busybox(&machine)?;
    let file = home.path().join("pod.yaml");
    fs::write(&file, pod(&image))?;
    machine.skiff(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "pod/old", "--for=condition=Ready", "--timeout=60s"])?;
    let before = states(&machine)?;

    let from = next.display().to_string();
    let said = machine.skiff(["upgrade", "--from", &from])?;
    ensure!(said.contains("the API server was away for"), "{said}");
    let after = states(&machine)?;
    ensure!(
        before.0 != after.0 && before.1 != after.1 && before.2 == after.2,
        "{before:?} {after:?}"
    );
    let exec = |text: &str| machine.kubectl(["exec", "old", "--", "echo", text]);
    ensure!(exec("through")?.contains("through"));
    ensure!(machine.skiff(["logs", "old"])?.contains("begun"));

    // An agent that exits at once, beside a control plane that runs.
    let agent = next.join("skiff-agent");
    fs::write(
        &agent,
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo skiff-agent 99\necho no luck >&2; exit 3\n",
    )?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let said = refused(machine.skiff(["upgrade", "--from", &from]))?;
    ensure!(
        said.contains("no luck") && said.contains("The former programs run again."),
        "{said}"
    );
    let again = states(&machine)?;
    ensure!(again.2 == before.2, "{before:?} {again:?}");
    ensure!(exec("again")?.contains("again"));
    ensure!(machine.skiff(["status"])?.contains("Ready"));
    let mut files: Vec<_> = fs::read_dir(&own)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    ensure!(files == PROGRAMS, "{files:?}");
    // An upgrade does not begin with a program that does not run on this machine.
    fs::write(&agent, "for another machine")?;
    let said = refused(machine.skiff(["upgrade", "--from", &from]))?;
    ensure!(
        said.contains("skiff-agent does not run here") && states(&machine)? == again,
        "{said}"
    );

    let listed = refused(machine.skiff(["uninstall", "--verify"]))?;
    for kind in ["process ", "mount ", "link ", "nft table ", "cgroup ", "file "] {
        let is_listed = listed.lines().any(|line| line.contains(kind));
        ensure!(is_listed, "no {kind}in {listed}");
    }
    states(&machine).context("nothing was removed")?;
    machine.finish_by(&["uninstall"])
}
