//! Machines join a cluster by the line that its server prints, are refused with the reason, leave and come again.

#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the laboratory is another test's, too")]

#[path = "node_routes/lab.rs"]
mod lab;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::Lab;
use tests::machine::{Machine, Namespace, eventually};
use tests::{images, process};

/// Returns the message of a command that fails.
fn refused(outcome: anyhow::Result<String>) -> anyhow::Result<String> {
    match outcome {
        Ok(said) => anyhow::bail!("it was not refused: {said}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

/// The line with another token and hash.
fn with(line: &[String], token: &str, hash: &str) -> Vec<String> {
    let mut line = line.to_owned();
    for (flag, value) in [("--token", token), ("--ca-hash", hash)] {
        if let Some(place) = line.iter().position(|word| word == flag)
            && let Some(word) = line.get_mut(place + 1)
        {
            value.clone_into(word);
        }
    }
    line
}

fn after<'a>(line: &'a [String], flag: &str) -> anyhow::Result<&'a str> {
    let place = line.iter().position(|word| word == flag).context("a flag")?;
    Ok(line.get(place + 1).context("its value")?)
}

#[test]
fn a_machine_that_may_not_join_is_told_why_and_stays_as_it_was() -> anyhow::Result<()> {
    tests::logging();
    let lab = Lab::alone()?;
    let machine = lab.machine(1)?;
    let line = lab.line(&[])?;
    let (token, hash) = (after(&line, "--token")?, after(&line, "--ca-hash")?);
    let id = token.split('.').next().context("an id")?;

    // A cluster of which only the tokens matter.
    let other = Machine::start_in(Namespace::new("other")?)?;
    let foreign = lab::line(&other, &["--server", "172.30.0.1:6443"])?;
    let (foreign_token, foreign_hash) = (after(&foreign, "--token")?, after(&foreign, "--ca-hash")?);
    let expired = lab.line(&["--ttl", "1s"])?;
    eventually("the token is over", || {
        let left = lab
            .machine
            .skiff(["token", "list"])
            .map_err(|error| format!("{error:#}"))?;
        let gone = !left.contains(after(&expired, "--token").map_err(|error| format!("{error:#}"))?);
        gone.then_some(()).ok_or(left)
    })?;

    let wrong_secret = format!("{id}.0123456789abcdef");
    for (words, expected) in [
        (
            with(&line, "aaaaaa.0123456789abcdef", hash),
            "has no token aaaaaa: it was mistyped or has expired",
        ),
        (
            with(&line, &wrong_secret, hash),
            "has another secret than the one given here",
        ),
        (expired.clone(), "it was mistyped or has expired"),
        (
            with(&line, foreign_token, foreign_hash),
            "is of another cluster than the line is for",
        ),
        (with(&line, foreign_token, hash), "it was mistyped or has expired"),
        (with(&line, "abc", hash), "the token is not of the form"),
        (
            line.iter()
                .map(|word| word.replace("172.30.0.1:", "172.30.0.77:"))
                .collect(),
            "no API server answers at 172.30.0.77:6443",
        ),
    ] {
        let said = refused(machine.join(&words, &[]))?;
        ensure!(said.contains(expected), "{words:?}: {said}");
        machine.is_clean()?;
    }
    let said = refused(machine.skiff(line.iter().map(String::as_str).chain(["--node-name", "localhost"])))?;
    ensure!(said.contains("is a name of the API server"), "{said}");
    machine.is_clean()?;
    ensure!(!lab.machine.kubectl(["get", "nodes"])?.contains(machine.name));

    // An address that the certificate does not contain is reported when the join command is
    // printed, and when it is run.
    let address = ["addr", "add", "172.30.0.9/24", "dev", "up0"];
    process::run(lab.machine.namespace().command("ip").args(address))?;
    let expected = "the API server's certificate does not name 172.30.0.9: start the cluster with `skiff up --advertise 172.30.0.9`";
    let said = refused(lab.machine.skiff(["token", "create", "--server", "172.30.0.9"]))?;
    ensure!(said.contains(expected), "{said}");
    let words: Vec<_> = line
        .iter()
        .map(|word| word.replace("172.30.0.1:", "172.30.0.9:"))
        .collect();
    let said = refused(machine.join(&words, &[]))?;
    ensure!(said.contains(expected), "{said}");
    machine.is_clean()?;
    let said = refused(lab.machine.skiff(["token", "create", "--server", "127.0.0.1"]))?;
    ensure!(said.contains("other machines cannot reach 127.0.0.1:6443"), "{said}");
    other.finish()?;
    lab.finish()
}

#[test]
fn a_node_leaves_comes_again_and_is_not_taken_for_another() -> anyhow::Result<()> {
    tests::logging();
    let mut lab = Lab::alone()?;
    let busybox = images::busybox(&lab.machine)?;
    let line = lab.line(&[])?;
    let mut second = lab.machine(1)?;
    let third = lab.machine(2)?;
    let took = timed(|| second.join(&line, &[]))?;
    // Two seconds on an idle machine; the tests' machine has other work.
    ensure!(took < Duration::from_secs(40), "Ready after {took:?}");
    let said = refused(second.join(&line, &[]))?;
    ensure!(
        said.contains("is node n2 of the cluster at https://172.30.0.1:"),
        "{said}"
    );
    ensure!(second.skiff(["status"])?.contains("n2 Ready"));

    let said = refused(third.skiff(line.iter().map(String::as_str).chain(["--node-name", "n2"])))?;
    ensure!(said.contains("another machine is node n2"), "{said}");
    third.is_clean()?;

    second.skiff(["image", "import", &images::archive("busybox")?.display().to_string()])?;
    let pod = format!(
        r#"{{"spec": {{"nodeName": "n2", "terminationGracePeriodSeconds": 0, "containers": [{{"name": "pod", "image": "{busybox}",
            "imagePullPolicy": "Never", "command": ["sleep", "100000"]}}]}}}}"#
    );
    let run = ["run", "pod", "--image", &busybox, "--overrides", &pod];
    lab.machine.kubectl(run)?;
    lab.machine
        .kubectl(["wait", "pod/pod", "--for=condition=Ready", "--timeout=60s"])?;
    let said = second.leave()?;
    ensure!(said.contains("on the server: skiff delete node n2"), "{said}");
    ensure!(said.contains("Nothing of it is left"), "{said}");
    ensure!(refused(second.skiff(["status"]))?.contains("no cluster in"));

    // The same machine joins again while its Node still seems to be Ready, and completes the
    // remaining steps.
    second.join(&line, &[])?;
    second.skiff(["image", "import", &images::archive("busybox")?.display().to_string()])?;
    lab.machine
        .kubectl(["wait", "pod/pod", "--for=condition=Ready", "--timeout=60s"])?;
    second.skiff(["down"])?;
    second.skiff(["up"])?;
    lab.machine
        .kubectl(["wait", "pod/pod", "--for=condition=Ready", "--timeout=60s"])?;
    lab.others.push(second);
    lab.finish()
}

/// A pod on n2 that comes again.
const DAEMON: &str = r"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      nodeName: n2
      terminationGracePeriodSeconds: 0
      containers: [{name: nginx, image: IMAGE, imagePullPolicy: Never}]
";

fn address(lab: &Lab) -> anyhow::Result<String> {
    let field = "--field-selector=spec.nodeName=n2,status.phase=Running";
    let path = "jsonpath={.items[*].status.podIP}";
    lab.machine.kubectl(["get", "pods", field, "-o", path])
}

/// Waits until the one pod of n2 has an address of a range and answers.
fn has_address_of(lab: &Lab, range: &str) -> anyhow::Result<()> {
    eventually("the pod has an address of its node's range", || {
        let own = address(lab).map_err(|error| format!("{error:#}"))?;
        if !own.starts_with(range) || own.contains(' ') {
            return Err(own);
        }
        let answered = lab.machine.fetch(&format!("http://{own}/"));
        answered.map(drop).map_err(|error| format!("{error:#}"))
    })
}

#[test]
fn a_node_that_has_lost_its_pod_range_begins_its_pods_again() -> anyhow::Result<()> {
    tests::logging();
    let mut lab = Lab::alone()?;
    let nginx = images::nginx(&lab.machine)?;
    let node = lab.machine(1)?;
    node.join(&lab.line(&[])?, &["--bridge", "skiff0"])?;
    node.skiff(["image", "import", &images::archive("nginx")?.display().to_string()])?;
    let file = lab.machine.state().join("daemon.yaml");
    std::fs::write(&file, DAEMON.replace("IMAGE", &nginx))?;
    lab.machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    has_address_of(&lab, "10.244.1.")?;
    let before = address(&lab)?;

    // A Node that comes again has its range again, and its pods go on.
    lab.machine.kubectl(["delete", "node", "n2"])?;
    eventually("the node comes again", || {
        let range = lab
            .machine
            .kubectl(["get", "node", "n2", "-o", "jsonpath={.spec.podCIDR}"]);
        let range = range.map_err(|error| format!("{error:#}"))?;
        (range == "10.244.1.0/24").then_some(()).ok_or(range)
    })?;
    ensure!(address(&lab)? == before);

    // Another node takes the range while the agent runs, and then while it does not.
    for (name, lost, gained, runs) in [
        ("squatter", "10.244.1.0/24", "10.244.2.", true),
        ("another", "10.244.2.0/24", "10.244.3.", false),
    ] {
        if !runs {
            node.end(nix::sys::signal::Signal::SIGKILL)?;
        }
        let squatter = format!(
            r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}, "spec": {{"podCIDR": "{lost}", "podCIDRs": ["{lost}"]}}}}"#
        );
        std::fs::write(&file, squatter)?;
        lab.machine.kubectl(["create", "-f", &file.display().to_string()])?;
        lab.machine.kubectl(["delete", "node", "n2"])?;
        if !runs {
            node.start()?;
        }
        has_address_of(&lab, gained)?;
        ensure!(node.skiff(["status"])?.contains("running, process"));
    }
    lab.others.push(node);
    lab.finish()
}

#[expect(clippy::disallowed_methods, reason = "the time that a person waits")]
fn timed(work: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}
