//! Machines join a cluster by the line that its server prints, are refused with the reason, leave and come again.

#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the laboratory is another test's, too")]

#[path = "node_routes/lab.rs"]
mod lab;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::Lab;
use nix::sys::signal::Signal;
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
        (with(&line, token, "sha256:abc"), "the hash is not of the form"),
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

/// Runs a pod on a node and waits until it is Ready.
fn run_on(lab: &Lab, node: &str, image: &str) -> anyhow::Result<()> {
    let pod = format!(
        r#"{{"spec": {{"nodeName": "{node}", "terminationGracePeriodSeconds": 0, "containers": [{{"name": "pod", "image": "{image}",
            "imagePullPolicy": "Never", "command": ["sleep", "100000"]}}]}}}}"#
    );
    lab.machine
        .kubectl(["run", "pod", "--image", image, "--overrides", &pod])?;
    lab.machine
        .kubectl(["wait", "pod/pod", "--for=condition=Ready", "--timeout=60s"])?;
    Ok(())
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
    run_on(&lab, "n2", &busybox)?;
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
            node.end(Signal::SIGKILL)?;
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

/// A proxy of HTTP that tunnels (RFC 9110, section 9.3.6), for as long as the test runs.
struct Proxy {
    /// Servers that it was asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(namespace: &Namespace, at: &str) -> anyhow::Result<Self> {
        let asked = Arc::new(Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                namespace.enter()?;
                let (listener, asked) = (TcpListener::bind(at)?, Arc::clone(&asked));
                // It is in the namespace, as this thread is.
                drop(std::thread::spawn(move || serve(&listener, &asked)));
                anyhow::Ok(())
            });
            starting
                .join()
                .map_err(|_panic| anyhow::anyhow!("the proxy panicked"))?
        })?;
        Ok(Self { asked })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(listener: &TcpListener, asked: &Arc<Mutex<Vec<String>>>) {
    for client in listener.incoming().flatten() {
        let asked = Arc::clone(asked);
        drop(std::thread::spawn(move || tunnel(client, &asked)));
    }
}

/// Joins a client with the server that it asks for.
fn tunnel(mut client: TcpStream, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        client.read_exact(&mut octet)?;
        head.extend(octet);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    asked
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(target.clone());
    let mut server = TcpStream::connect(target)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    drop(std::thread::spawn(move || {
        drop(std::io::copy(&mut from, &mut to));
        to.shutdown(Shutdown::Both)
    }));
    drop(std::io::copy(&mut server, &mut client));
    client.shutdown(Shutdown::Both)
}

#[test]
fn a_machine_joins_through_a_proxy_and_keeps_to_it() -> anyhow::Result<()> {
    tests::logging();
    let mut lab = Lab::alone()?;
    let busybox = images::busybox(&lab.machine)?;
    let line = lab.line(&[])?;
    let proxy = Proxy::start(&lab.router, "172.30.0.254:3128")?;
    let mut node = lab.machine(1)?;
    let nft = |script: &str| process::run(lab.machine.namespace().command("nft").arg(script));
    // The API server takes nothing from the machine itself.
    nft(
        "add table ip closed; add chain ip closed api { type filter hook input priority 0; }; \
         add rule ip closed api ip saddr 172.30.0.2 tcp dport 6443 reject with tcp reset",
    )?;
    node.environment.push(("HTTPS_PROXY", "http://172.30.0.254:3128"));
    node.environment.push(("NO_PROXY", "10.0.0.0/8,172.30.0.0/24"));
    let said = refused(node.join(&line, &[]))?;
    ensure!(
        said.contains("no API server answers at 172.30.0.1:6443 (Connection refused)"),
        "{said}"
    );
    ensure!(proxy.asked().is_empty(), "{:?}", proxy.asked());
    node.is_clean()?;

    node.environment.push(("NO_PROXY", "10.0.0.0/8"));
    node.join(&line, &[])?;
    node.skiff(["image", "import", &images::archive("busybox")?.display().to_string()])?;
    run_on(&lab, "n2", &busybox)?;
    // The server reaches the node without it.
    let said = lab.machine.kubectl(["exec", "pod", "--", "echo", "through"])?;
    ensure!(said.contains("through"), "{said}");
    let before = proxy.asked().len();
    node.end(Signal::SIGKILL)?;
    node.start()?;
    let asked = proxy.asked();
    let is_all = asked.iter().all(|server| server == "172.30.0.1:6443");
    ensure!(is_all && before > 0 && asked.len() > before, "{before} {asked:?}");
    nft("delete table ip closed")?;
    lab.others.push(node);
    lab.finish()
}

#[test]
fn a_node_behind_nat_is_asked_over_connections_that_it_opens() -> anyhow::Result<()> {
    tests::logging();
    let mut lab = Lab::alone()?;
    let busybox = images::busybox(&lab.machine)?;
    let node = lab.machine(2)?;
    // Others see the router's address, and open no connection to what is behind it.
    let script = "add table ip hidden; add chain ip hidden out { type nat hook postrouting priority 100; }; \
         add rule ip hidden out oifname lan ip saddr 172.31.0.0/24 masquerade; \
         add chain ip hidden in { type filter hook forward priority 0; }; \
         add rule ip hidden in iifname lan ct state new drop";
    process::run(lab.router.command("nft").arg(script))?;
    node.join(&lab.line(&[])?, &[])?;
    node.skiff(["image", "import", &images::archive("busybox")?.display().to_string()])?;
    let kubectl = |words: &[&str]| lab.machine.kubectl(words.iter().copied());
    run_on(&lab, "n3", &busybox)?;
    let curl = ["-sSk", "--max-time", "1", "https://172.31.0.3:10250/healthz"];
    let said = refused(process::run(lab.machine.namespace().command("curl").args(curl)))?;
    ensure!(said.contains("timed out"), "{said}");

    let speaks = || {
        eventually("the pod is reached", || {
            let said = kubectl(&["exec", "pod", "--", "echo", "through"]);
            let said = said.map_err(|error| format!("{error:#}"))?;
            said.contains("through").then_some(()).ok_or(said)
        })
    };
    speaks()?;
    ensure!(kubectl(&["logs", "pod"])?.is_empty());
    ensure!(kubectl(&["get", "--raw", "/api/v1/nodes/n3/proxy/healthz"])? == "ok");
    // More at a time than there are connections that wait.
    std::thread::scope(|scope| {
        let hold = || kubectl(&["exec", "pod", "--", "sleep", "1"]).map(drop);
        let all: Vec<_> = (0..10).map(|_| scope.spawn(hold)).collect();
        let mut ends = all.into_iter().map(std::thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.unwrap_or_else(|_| anyhow::bail!("a thread ended")))
    })?;
    eventually("the node is measured", || {
        let said = kubectl(&["top", "node", "n3"]).map_err(|error| format!("{error:#}"))?;
        (!said.contains("<unknown>")).then_some(()).ok_or(said)
    })?;

    // The next server is offered a connection, too.
    lab.machine.kill("skiff-controlplane")?;
    lab.machine.skiff(["up"])?;
    speaks()?;
    let said = refused(kubectl(&["get", "--raw", "/skiff/reverse-connection"]))?;
    ensure!(said.contains("NotFound"), "an administrator is no node: {said}");
    lab.others.push(node);
    lab.finish()
}

/// Gives a machine what the NAT of `VirtualBox` gives to each: the same address, and a default route.
fn put_behind_nat(machine: &Namespace) -> anyhow::Result<()> {
    for words in [
        "link add nat0 type veth peer name nat1",
        "link set nat1 up",
        "link set nat0 up",
        "address add 10.0.2.15/24 dev nat0",
        "route replace default via 10.0.2.2",
    ] {
        lab::ip(machine, words)?;
    }
    Ok(())
}

/// The first address of a node.
fn place(lab: &Lab, node: &str) -> anyhow::Result<String> {
    let path = "jsonpath={.status.addresses[0].address}";
    lab.machine.kubectl(["get", "node", node, "-o", path])
}

#[test]
fn a_node_needs_no_way_out_and_is_not_known_by_its_nat() -> anyhow::Result<()> {
    tests::logging();
    let mut lab = Lab::alone_on(put_behind_nat)?;
    ensure!(place(&lab, "n1")? == "172.30.0.1", "{}", place(&lab, "n1")?);
    let line = lab.line(&[])?;
    let is_named = line.get(1).is_some_and(|server| server.starts_with("172.30.0.1:"));
    ensure!(is_named, "{line:?}");
    let nginx = images::nginx(&lab.machine)?;
    let node = lab.machine(1)?;
    for words in ["route del default", "-6 route del default"] {
        lab::ip(&node.namespace, words)?;
    }
    node.skiff(line.iter().map(String::as_str).chain(["--node-name", "n2"]))?;
    node.skiff(["image", "import", &images::archive("nginx")?.display().to_string()])?;
    let file = lab.machine.state().join("daemon.yaml");
    std::fs::write(&file, DAEMON.replace("IMAGE", &nginx))?;
    lab.machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    let serves = || -> anyhow::Result<()> {
        ensure!(place(&lab, "n2")? == "172.30.0.2", "{}", place(&lab, "n2")?);
        has_address_of(&lab, "10.244.1.")?;
        // The node itself has a way to Services, too.
        eventually("the API server's Service answers", || {
            let curl = ["-sSk", "--max-time", "5", "https://10.96.0.1/livez"];
            let said = process::run(node.namespace.command("curl").args(curl));
            said.map(drop).map_err(|error| format!("{error:#}"))
        })
    };
    serves()?;
    put_behind_nat(&node.namespace)?;
    node.end(Signal::SIGKILL)?;
    node.start()?;
    serves()?;
    lab::ip(&node.namespace, "link del nat0")?;
    lab.others.push(node);
    lab.finish()
}
