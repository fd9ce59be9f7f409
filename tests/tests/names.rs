//! Names of the cluster on a real node: pods ask the agent for Services, endpoints and themselves, as the Kubernetes DNS
//! specification has them.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::http::Target;
use tests::images;
use tests::machine::{Machine, TIMEOUT, eventually};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  hostname: web-0
  subdomain: pods
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [httpd, -f, -p, "8080"]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [sleep, "100000"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080, name: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: pods}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080, name: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
"#;

const WEB: &str = "web.default.svc.cluster.local";

/// Asks from a pod as its programs would, or fully.
fn asked(machine: &Machine, name: &str) -> Result<String, String> {
    let script = format!("nslookup {name} 2>&1");
    let answer = machine.kubectl(["exec", "client", "--", "sh", "-c", &script]);
    answer.map_err(|error| format!("{error:#}"))
}

fn finds(machine: &Machine, name: &str, address: &str) -> anyhow::Result<()> {
    eventually(&format!("a pod finds {address} by {name}"), || {
        let answer = asked(machine, name)?;
        let found = answer.lines().any(|line| line.ends_with(&format!(" {address}")));
        if found { Ok(()) } else { Err(answer) }
    })
}

#[test]
fn pods_find_services_endpoints_and_themselves_by_name() -> anyhow::Result<()> {
    let machine = Machine::start("names")?;
    let busybox = images::busybox(&machine)?;
    let file = machine.state().join("objects.yaml");
    std::fs::write(&file, OBJECTS.replace("IMAGE", &busybox))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "pod", "--all", "--for=condition=Ready", "--timeout=60s"])?;
    let get = |object: &str, path: &str| machine.kubectl(["get", object, "-o", &format!("jsonpath={path}")]);
    let cluster = get("service/web", "{.spec.clusterIP}")?;
    let pod = get("pod/web-0", "{.status.podIP}")?;
    for name in ["web.default.svc.cluster.local", "elsewhere.default.svc.cluster.local"] {
        finds(&machine, name, &cluster)?;
    }
    let dashed = format!("{}.default.pod.cluster.local", pod.replace('.', "-"));
    for name in [
        "pods.default.svc.cluster.local",
        "web-0.pods.default.svc.cluster.local",
        &dashed,
    ] {
        finds(&machine, name, &pod)?;
    }
    let fetched = [
        "exec",
        "client",
        "--",
        "wget",
        "-q",
        "-O",
        "-",
        "http://web/etc/hostname",
    ];
    eventually("a pod fetches by the search list and the Service", || {
        let fetched = machine.kubectl(fetched).map_err(|error| format!("{error:#}"))?;
        fetched.contains("web-0").then_some(()).ok_or(fetched)
    })?;
    let resolver = machine.kubectl(["exec", "client", "--", "cat", "/etc/resolv.conf"])?;
    let searched = "search default.svc.cluster.local svc.cluster.local cluster.local";
    ensure!(
        resolver.contains(searched) && resolver.contains("options ndots:5"),
        "{resolver}"
    );

    answers_behind_a_service(&machine, &cluster)?;
    let took = time_to_answer(&machine)?;
    println!("a changed Service is answered {took:?} after the API server's acknowledgement");
    // Some milliseconds on an idle machine; the tests' machine has other work.
    ensure!(took < Duration::from_secs(1), "{took:?}");
    asks_the_operators_servers(&machine)?;
    answers_without_a_server(&machine, &cluster)?;

    machine.kubectl(["delete", "service", "web"])?;
    eventually("a name goes with its Service", || {
        match asked(&machine, "web.default.svc.cluster.local.") {
            Ok(answer) if answer.contains(&cluster) => Err(answer),
            Ok(_) | Err(_) => Ok(()),
        }
    })?;
    machine.finish()
}

/// The Service `kube-dns` that charts and tools look for, from pods and from the machine itself,
/// until another DNS server is installed.
fn answers_behind_a_service(machine: &Machine, web: &str) -> anyhow::Result<()> {
    let own = ["-n", "kube-system", "get", "service", "kube-dns", "-o"];
    let get = |path: &str| machine.kubectl(own.into_iter().chain([path]));
    let address = get("jsonpath={.spec.clusterIP}")?;
    ensure!(address == "10.96.0.10", "{address}");
    let behind = "kubernetes.io/service-name=kube-dns";
    let slices = ["-n", "kube-system", "get", "endpointslices", "-l", behind, "-o"];
    let slices = |path: &str| machine.kubectl(slices.into_iter().chain([path]));
    let node = machine.kubectl(["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
    eventually("its endpoint is the node", || {
        let nodes = slices("jsonpath={.items[*].endpoints[*].nodeName}").map_err(|error| format!("{error:#}"))?;
        (nodes == node).then_some(()).ok_or(nodes)
    })?;
    finds(machine, &format!("web.default.svc.cluster.local {address}"), web)?;
    from_machine(machine, &address, WEB, web)?;

    // The selector of the CoreDNS chart.
    let selector = r#"{"spec": {"selector": {"k8s-app": "kube-dns"}}}"#;
    machine.kubectl(["-n", "kube-system", "patch", "service", "kube-dns", "-p", selector])?;
    eventually("the endpoints of others are left alone", || {
        let all = slices("jsonpath={.items[*].endpoints[*].nodeName}").map_err(|error| format!("{error:#}"))?;
        if all.is_empty() { Ok(()) } else { Err(all) }
    })?;
    machine.kubectl(["-n", "kube-system", "delete", "service", "kube-dns"])?;
    from_machine(machine, &address, WEB, web)
}

/// Returns the median time from the acknowledgement of a change of a Service to its first answer.
fn time_to_answer(machine: &Machine) -> anyhow::Result<Duration> {
    let gateway = gateway(machine)?;
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // Only this thread, and the connections that it opens.
            machine.namespace().enter()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(change_and_ask(machine, &gateway))
        });
        asking.join()
    });
    let mut took = asked.map_err(|_panic| anyhow::anyhow!("the client panicked"))??;
    took.sort();
    took.get(took.len() / 2).copied().context("a time")
}

#[expect(clippy::disallowed_methods, reason = "the time that a client waits")]
async fn change_and_ask(machine: &Machine, server: &str) -> anyhow::Result<Vec<Duration>> {
    let mut api = Target::from_kubeconfig(&machine.kubeconfig())?.connect().await?;
    let question = question("elsewhere.default.svc.cluster.local", CNAME)?;
    let mut took = Vec::new();
    for number in 0..15 {
        let target = format!("place{number}");
        let change = format!(r#"{{"spec": {{"externalName": "{target}.test"}}}}"#);
        let path = "/api/v1/namespaces/default/services/elsewhere";
        let kind = "application/merge-patch+json";
        let (status, answer) = api.send(Method::PATCH, path, kind, change).await?;
        ensure!(status.is_success(), "{status}: {answer:?}");
        let begun = Instant::now();
        loop {
            let answer = ask(server, &question).unwrap_or_default();
            if answer.windows(target.len()).any(|part| part == target.as_bytes()) {
                break;
            }
            ensure!(begun.elapsed() < TIMEOUT, "{target}: {answer:?}");
        }
        took.push(begun.elapsed());
    }
    Ok(took)
}

/// The name server in the pods' `resolv.conf`.
fn gateway(machine: &Machine) -> anyhow::Result<String> {
    let resolver = machine.kubectl(["exec", "client", "--", "cat", "/etc/resolv.conf"])?;
    let gateway = resolver.lines().find_map(|line| line.strip_prefix("nameserver "));
    Ok(gateway.context("a name server")?.to_owned())
}

/// A domain has a server of its own.
fn asks_the_operators_servers(machine: &Machine) -> anyhow::Result<()> {
    let gateway = gateway(machine)?;
    let server = std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            machine.namespace().enter()?;
            anyhow::Ok(UdpSocket::bind("172.30.0.1:0")?)
        });
        bound.join().map_err(|_panic| anyhow::anyhow!("no socket"))?
    })?;
    server.set_read_timeout(Some(Duration::from_millis(100)))?;
    let stubs = format!("stubDomains={{\"stub.test\": [\"{}\"]}}", server.local_addr()?);
    let made = [
        "-n",
        "kube-system",
        "create",
        "configmap",
        "kube-dns",
        "--from-literal",
        &stubs,
    ];
    machine.kubectl(made)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                answer_one(&server);
            }
        });
        let asked = from_machine(machine, &gateway, "a.stub.test", "192.0.2.7");
        done.store(true, Ordering::Relaxed);
        asked
    })
}

/// Answers a question, whatever its name, with 192.0.2.7.
fn answer_one(server: &UdpSocket) {
    let mut asked = [0; 1500];
    let Ok((_, client)) = server.recv_from(&mut asked) else {
        return;
    };
    let mut end = 12;
    while let Some(length) = asked.get(end).filter(|length| **length != 0) {
        end += 1 + usize::from(*length);
    }
    let mut answer = asked.get(..end + 5).unwrap_or_default().to_vec();
    answer.splice(2..12, *b"\x81\x80\0\x01\0\x01\0\0\0\0");
    answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x1e\0\x04\xc0\0\x02\x07");
    drop(server.send_to(&answer, client));
}

/// The agent is restarted while the API server is down.
fn answers_without_a_server(machine: &Machine, web: &str) -> anyhow::Result<()> {
    let gateway = gateway(machine)?;
    let written = machine.state().join("agent").join("names.json");
    eventually("what is known is written", || {
        let text = std::fs::read_to_string(&written).map_err(|error| error.to_string())?;
        if text.contains(web) { Ok(()) } else { Err(text) }
    })?;
    let agent = machine.daemon("skiff-agent")?;
    let read = |what: &str| std::fs::read(format!("/proc/{agent}/{what}"));
    let split = |bytes: Vec<u8>| {
        let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
        words.collect::<Vec<_>>()
    };
    let (words, variables) = (split(read("cmdline")?), split(read("environ")?));
    let log = std::fs::File::create(machine.state().join("alone.log"))?;
    for daemon in [machine.daemon("skiff-controlplane")?, agent] {
        kill(Pid::from_raw(daemon), Signal::SIGKILL)?;
        eventually("a daemon ends", || match kill(Pid::from_raw(daemon), None) {
            Err(_) => Ok(()),
            Ok(()) => Err(daemon.to_string()),
        })?;
    }
    let (program, words) = words.split_first().context("a program")?;
    let mut alone: Command = machine.namespace().command(program);
    alone.args(words).stdout(log.try_clone()?).stderr(log);
    alone.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
    let mut alone = alone.spawn()?;
    let answered = from_machine(machine, &gateway, WEB, web);
    alone.kill()?;
    alone.wait()?;
    machine.skiff(["up"])?;
    answered
}

/// Asks a server from the machine itself for the address of a name.
fn from_machine(machine: &Machine, server: &str, name: &str, address: &str) -> anyhow::Result<()> {
    let address: std::net::Ipv4Addr = address.parse()?;
    let question = question(name, A)?;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // Only this thread.
            machine.namespace().enter()?;
            eventually(&format!("the machine finds {address} by {name} at {server}"), || {
                let answer = ask(server, &question).map_err(|error| error.to_string())?;
                let found = answer.windows(4).any(|part| part == address.octets());
                if found { Ok(()) } else { Err(format!("{answer:?}")) }
            })
        });
        let asked = asking.join();
        asked.map_err(|_panic| anyhow::anyhow!("the client panicked"))?
    })
}

/// Types of records.
const A: u8 = 1;
const CNAME: u8 = 5;

fn question(name: &str, kind: u8) -> anyhow::Result<Vec<u8>> {
    let mut question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        question.push(u8::try_from(label.len())?);
        question.extend(label.bytes());
    }
    question.extend([0, 0, kind, 0, 1]);
    Ok(question)
}

fn ask(server: &str, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect((server, 53))?;
    socket.send(question)?;
    let mut answer = vec![0; 1500];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
