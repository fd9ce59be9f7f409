//! Pods of three nodes reach each other, Services and node ports, with no manual step but `skiff
//! up` and `skiff join`: two nodes share a link, the third is behind a router.

#![allow(clippy::panic, reason = "a test fails by panicking")]

#[path = "node_routes/lab.rs"]
mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab::Lab;
use nix::sys::signal::Signal;
use tests::machine::{Namespace, TIMEOUT, eventually};
use tests::{images, process};

const OBJECTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 30
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: nginx
        image: NGINX
        imagePullPolicy: Never
        ports: [{containerPort: 80}]
        readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 10}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: client}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [sleep, "100000"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 8080, targetPort: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec: {trafficDistribution: PreferSameNode, selector: {app: web}, ports: [{port: 80}]}
"#;

/// Label of nodes that announce no address.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Returns the words of a jsonpath's output.
fn words(lab: &Lab, what: &[&str], path: &str) -> anyhow::Result<Vec<String>> {
    let path = format!("jsonpath={path}");
    let said = lab
        .machine
        .kubectl(["get"].iter().chain(what).copied().chain(["-o", &path]))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// Asks each address for a page from a node, or from outside.
fn fetch_all(namespace: &Namespace, addresses: &[String]) -> Result<(), String> {
    for address in addresses {
        let mut curl = namespace.command("curl");
        curl.args(["-sS", "--fail", "--max-time", "2", &format!("http://{address}/")]);
        process::run(&mut curl).map_err(|error| format!("from {} to {address}: {error:#}", namespace.name()))?;
    }
    Ok(())
}

/// Asks each address for a page from a pod, and each address of version 6 for an echo.
fn ask_all(lab: &Lab, pod: &str, addresses: &[String], echoes: &[String]) -> Result<(), String> {
    let pages = addresses.iter().map(|address| {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "80"));
        format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} {port} | grep -q nginx || echo no {address}\n")
    });
    let echoes = echoes.iter();
    let echoes = echoes.map(|address| format!("ping -c 1 -W 2 {address} >/dev/null || echo no {address}\n"));
    let script: String = pages.chain(echoes).collect();
    let said = lab.machine.kubectl(["exec", pod, "--", "sh", "-c", &script]);
    match said.map_err(|error| format!("{error:#}"))? {
        said if said.is_empty() => Ok(()),
        said => Err(format!("{pod}: {said}")),
    }
}

/// Everything reaches everything.
fn all_reach_all(lab: &Lab) -> anyhow::Result<()> {
    let (pods, six) = eventually("every pod has its addresses", || {
        let told = |what: &[&str], path: &str| words(lab, what, path).map_err(|error| format!("{error:#}"));
        let pods = told(&["pods", "-l", "app=web"], "{.items[*].status.podIP}")?;
        let all = told(&["pods"], "{.items[*].status.podIPs[*].ip}")?;
        let six: Vec<String> = all.into_iter().filter(|address| address.contains(':')).collect();
        if pods.len() == 3 && six.len() == 6 {
            Ok((pods, six))
        } else {
            Err(format!("{pods:?} {six:?}"))
        }
    })?;
    let service = words(lab, &["service", "web"], "{.spec.clusterIP}")?;
    let mut addresses = pods;
    addresses.extend(service.iter().map(|address| format!("{address}:8080")));
    let ports: Vec<String> = Lab::addresses().map(|address| format!("{address}:30080")).collect();
    addresses.extend(ports.iter().cloned());
    for pod in words(lab, &["pods", "-l", "app=client"], "{.items[*].metadata.name}")? {
        eventually("pods reach everything", || ask_all(lab, &pod, &addresses, &six))?;
    }
    for namespace in lab.namespaces() {
        // Each of the endpoints has its turn.
        for _ in 0..3 {
            eventually("nodes reach everything", || fetch_all(namespace, &addresses))?;
        }
    }
    for _ in 0..3 {
        eventually("node ports answer outside", || fetch_all(&lab.router, &ports))?;
    }
    Ok(())
}

fn routes(namespace: &Namespace) -> Result<String, String> {
    let list = |family: &str| process::run(namespace.command("ip").args([family, "route", "show", "proto", "83"]));
    let both = list("-4").and_then(|v4| Ok(v4 + &list("-6")?));
    both.map_err(|error| format!("{error:#}"))
}

#[test]
fn pods_of_all_nodes_reach_each_other_with_nothing_set_by_hand() -> anyhow::Result<()> {
    tests::logging();
    let lab = Lab::start()?;
    let (busybox, nginx) = (images::busybox(&lab.machine)?, images::nginx(&lab.machine)?);
    let file = lab.machine.state().join("objects.yaml");
    std::fs::write(&file, OBJECTS.replace("NGINX", &nginx).replace("IMAGE", &busybox))?;
    lab.machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    for what in ["deployment/web", "daemonset/client"] {
        lab.machine.kubectl(["rollout", "status", what, "--timeout=60s"])?;
    }
    eventually("every node has its routes", || {
        let path = "{.items[*].status.conditions[?(@.type==\"NetworkUnavailable\")].reason}";
        let told = words(&lab, &["nodes"], path).map_err(|error| format!("{error:#}"))?;
        (told == ["RouteCreated"; 3])
            .then_some(())
            .ok_or_else(|| format!("{told:?}"))
    })?;
    all_reach_all(&lab)?;
    are_near(&lab, [&["n1"], &["n2"], &["n3"]])?;
    address_is_announced(&lab)?;
    rolls_without_loss(&lab)?;
    let mtu = lab
        .machine
        .kubectl(["exec", "daemonset/client", "--", "cat", "/sys/class/net/eth0/mtu"])?;
    ensure!(mtu.trim() == "1450", "what fits the tunnel: {mtu}");

    gets_zones(&lab)?;
    survives(&lab)?;
    is_mended(&lab)?;
    are_near(&lab, [&["n1", "n2"], &["n1", "n2"], &["n3"]])?;
    moves_from_a_killed_node(&lab)?;
    goes_with_its_node(&lab)?;
    all_reach_all(&lab)?;
    lab.finish()
}

/// Returns the nodes of pods, by their names.
fn nodes_of(lab: &Lab, pods: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let path = "{range .items[*]}{.metadata.name}/{.spec.nodeName} {end}";
    let all = words(lab, &["pods", "-l", pods], path)?;
    let all = all.iter().filter_map(|word| word.split_once('/'));
    Ok(all.map(|(pod, node)| (pod.to_owned(), node.to_owned())).collect())
}

/// A pod of each node is answered by the endpoints of these nodes, all of them, and no other.
fn are_near(lab: &Lab, near: [&[&str]; 3]) -> anyhow::Result<()> {
    let (clients, servers) = (nodes_of(lab, "app=client")?, nodes_of(lab, "app=web")?);
    ensure!(clients.len() == 3 && servers.len() == 3, "{clients:?} {servers:?}");
    let address = words(lab, &["service", "near"], "{.spec.clusterIP}")?.concat();
    let script = format!(
        "i=0; while [ $i -lt 16 ]; do printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 80; i=$((i+1)); done"
    );
    for (client, node) in &clients {
        let own = near.iter().zip(["n1", "n2", "n3"]).find(|(_, name)| node == name);
        let wanted: BTreeSet<&str> = own.context("a node")?.0.iter().copied().collect();
        eventually(&format!("{client} of {node} is answered from {wanted:?}"), || {
            let said = lab.machine.kubectl(["exec", client, "--", "sh", "-c", &script]);
            let said = said.map_err(|error| format!("{error:#}"))?;
            let from = said.split_whitespace().filter_map(|pod| servers.get(pod));
            let from: BTreeSet<&str> = from.map(String::as_str).collect();
            if from == wanted {
                Ok(())
            } else {
                Err(format!("{from:?}"))
            }
        })?;
    }
    Ok(())
}

/// Nodes that are in no zone get into two.
fn gets_zones(lab: &Lab) -> anyhow::Result<()> {
    let label = |words: &[&str]| lab.machine.kubectl(["label", "node"].iter().chain(words).copied());
    label(&["n1", "n2", "topology.kubernetes.io/zone=east"])?;
    label(&["n3", "topology.kubernetes.io/zone=west"])?;
    let near = r#"{"spec": {"trafficDistribution": "PreferSameZone"}}"#;
    lab.machine.kubectl(["patch", "service", "near", "-p", near])?;
    Ok(())
}

/// Fetches the page at the pool's address, from a host of the link on which a node announces it.
fn fetch_balanced(lab: &Lab) -> Result<(), String> {
    let address = words(lab, &["service", "web"], "{.status.loadBalancer.ingress[*].ip}");
    let address = address.map_err(|error| format!("{error:#}"))?;
    if address != ["172.30.0.200"] {
        return Err(format!("{address:?}"));
    }
    fetch_all(&lab.router, &["172.30.0.200:8080".to_owned()])
}

fn announcer(lab: &Lab) -> anyhow::Result<Vec<String>> {
    let path = "{.status.conditions[?(@.type==\"skiff.dev/Announced\")].message}";
    words(lab, &["service", "web"], path)
}

/// Waits until a node answers at the pool's address.
fn is_announced_by(lab: &Lab, holder: &str) -> anyhow::Result<()> {
    eventually(&format!("{holder} announces the address"), || {
        let own = announcer(lab).map_err(|error| format!("{error:#}"))?;
        if own == [holder] {
            fetch_balanced(lab)
        } else {
            Err(format!("{own:?}"))
        }
    })
}

/// Of the two nodes on the link of the pool, one announces its address, and the other one once that
/// must not.
fn address_is_announced(lab: &Lab) -> anyhow::Result<()> {
    let kind = r#"{"spec": {"type": "LoadBalancer"}}"#;
    lab.machine.kubectl(["patch", "service", "web", "-p", kind])?;
    eventually("the address is reached", || fetch_balanced(lab))?;
    for (node, holder) in [("n2", "n1"), ("n1", "n2")] {
        lab.machine
            .kubectl(["label", "node", node, &format!("{EXCLUDED}=true")])?;
        is_announced_by(lab, holder)?;
        lab.machine.kubectl(["label", "node", node, &format!("{EXCLUDED}-")])?;
        is_announced_by(lab, holder)?;
    }
    Ok(())
}

/// The pool's address moves from a node that was killed and cut off, and may move back.
fn moves_from_a_killed_node(lab: &Lab) -> anyhow::Result<()> {
    let node = lab.others.first().context("a node")?;
    is_announced_by(lab, node.name)?;
    let link = |words: &str| process::run(lab.router.command("ip").args(words.split(' ')));
    node.end(Signal::SIGKILL)?;
    link("link set port1 down")?;
    // The node controller would say so 50 seconds after the last renewal of the node's Lease.
    let silent = r#"{"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}"#;
    let patch = ["patch", "node", node.name, "--subresource=status", "-p", silent];
    lab.machine.kubectl(patch)?;
    is_announced_by(lab, "n1")?;
    link("link set port1 up")?;
    node.start()?;
    lab.machine
        .kubectl(["label", "node", "n1", &format!("{EXCLUDED}=true")])?;
    is_announced_by(lab, node.name)?;
    lab.machine.kubectl(["label", "node", "n1", &format!("{EXCLUDED}-")])?;
    Ok(())
}

/// Asks each address for a page, from a node or from outside, until a file is there; tells those
/// that did not answer.
fn keep_asking(namespace: &Namespace, addresses: &[String], done: &Path) -> anyhow::Result<Child> {
    let script = format!(
        "i=0; while [ ! -e {} ] && [ $i -lt 3000 ]; do for a in {}; do curl -sS --fail --max-time 10 http://$a/ >/dev/null || echo lost $a; done; \
         sleep 0.1; i=$((i+1)); done",
        done.display(),
        addresses.join(" ")
    );
    let mut shell = namespace.command("sh");
    shell
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(shell.spawn()?)
}

fn all_answered(asking: Vec<Child>) -> anyhow::Result<()> {
    for asking in asking {
        let said = process::both(&asking.wait_with_output()?);
        ensure!(said.is_empty(), "{said}");
    }
    Ok(())
}

/// No request from another node or from outside fails while every pod is replaced.
fn rolls_without_loss(lab: &Lab) -> anyhow::Result<()> {
    let service = words(lab, &["service", "web"], "{.spec.clusterIP}")?;
    let service = service.first().context("an address")?;
    let [_, _, n3] = lab.namespaces().collect::<Vec<_>>()[..] else {
        anyhow::bail!("three nodes")
    };
    let done = lab.machine.state().join("rolled");
    let asking = vec![
        keep_asking(n3, &[format!("{service}:8080")], &done)?,
        keep_asking(&lab.router, &["172.30.0.1:30080".to_owned()], &done)?,
    ];
    let rollout = |words: &[&str]| lab.machine.kubectl(["rollout"].iter().chain(words).copied());
    let rolled = rollout(&["restart", "deployment/web"])
        .and_then(|_said| rollout(&["status", "deployment/web", "--timeout=180s"]));
    std::fs::write(&done, "")?;
    all_answered(asking)?;
    rolled.map(drop)
}

/// Neither the agent's end nor its next start interrupts traffic to pods and Services.
fn survives(lab: &Lab) -> anyhow::Result<()> {
    let before: Vec<_> = lab.namespaces().map(routes).collect();
    let mut addresses = words(lab, &["pods", "-l", "app=web"], "{.items[*].status.podIP}")?;
    let service = words(lab, &["service", "web"], "{.spec.clusterIP}")?.concat() + ":8080";
    addresses.push(service.clone());
    let [_, n2, n3] = lab.namespaces().collect::<Vec<_>>()[..] else {
        anyhow::bail!("three nodes")
    };
    let ports = ["172.30.0.2:30080", "172.31.0.3:30080"].map(str::to_owned);
    let mut connections = vec![connect(n2, &service)?, connect(n3, &service)?];
    for port in &ports {
        connections.push(connect(&lab.router, port)?);
    }
    let done = lab.machine.state().join("survived");
    let asking = vec![
        keep_asking(n2, &addresses, &done)?,
        keep_asking(n3, &addresses, &done)?,
        keep_asking(&lab.router, &ports, &done)?,
    ];
    let replaced = replaces_agents(lab, &mut connections);
    std::fs::write(&done, "")?;
    all_answered(asking)?;
    replaced?;
    let after: Vec<_> = lab.namespaces().map(routes).collect();
    ensure!(before == after, "{before:?} {after:?}");
    Ok(())
}

/// Kills each agent and starts the next one, while connections go on.
fn replaces_agents(lab: &Lab, connections: &mut [TcpStream]) -> anyhow::Result<()> {
    const WORK: [&str; 2] = ["pods of other nodes are reached", "all Services are led"];
    for node in &lab.others {
        let count = || WORK.map(|words| node.log().matches(words).count());
        let before = count();
        connections.iter_mut().try_for_each(ask_again)?;
        node.end(Signal::SIGKILL)?;
        connections.iter_mut().try_for_each(ask_again)?;
        node.start()?;
        eventually("the next agent has looked at routes and Services", || {
            let all = before.iter().zip(count()).all(|(before, now)| *before < now);
            all.then_some(()).ok_or_else(|| node.log())
        })?;
        connections.iter_mut().try_for_each(ask_again)?;
    }
    Ok(())
}

/// Opens a connection from a node, or from outside.
fn connect(namespace: &Namespace, address: &str) -> anyhow::Result<TcpStream> {
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            // Only this thread.
            namespace.enter()?;
            anyhow::Ok(TcpStream::connect(address)?)
        });
        connecting
            .join()
            .map_err(|_panic| anyhow::anyhow!("the client panicked"))?
    })
}

/// Sends a request on a connection that lasts, and reads its answer.
fn ask_again(connection: &mut TcpStream) -> anyhow::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.write_all(b"HEAD / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let mut answer: Vec<u8> = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        ensure!(connection.read(&mut octet)? == 1, "the connection has ended");
        answer.extend(octet);
    }
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

/// Routes and the tunnel are restored when they are deleted.
fn is_mended(lab: &Lab) -> anyhow::Result<()> {
    for (namespace, harm) in lab.namespaces().zip([
        "route del 10.244.1.0/24",
        "-6 route del fd00:10:244:2::/64",
        "link del skiff0-vx",
    ]) {
        let before = routes(namespace).map_err(anyhow::Error::msg)?;
        // By the kernel's notification, not by the periodic check every ten seconds: a busy machine may be late for some.
        let (limit, mut took) = (Duration::from_secs(2), Vec::<Duration>::new());
        while took.len() < 3 && took.iter().all(|took| *took >= limit) {
            process::run(namespace.command("ip").args(harm.split(' ')))?;
            #[expect(clippy::disallowed_methods, reason = "the kernel is waited for on the wall clock")]
            let begun = std::time::Instant::now();
            eventually(harm, || {
                let now = routes(namespace)?;
                if now == before { Ok(()) } else { Err(now) }
            })?;
            took.push(begun.elapsed());
        }
        ensure!(took.iter().any(|took| *took < limit), "{harm}: mended after {took:?}");
    }
    all_reach_all(lab)
}

/// A Node that is deleted takes the routes to its pods along; one that comes again brings them back.
fn goes_with_its_node(lab: &Lab) -> anyhow::Result<()> {
    let node = lab.others.first().context("a node")?;
    node.end(Signal::SIGTERM)?;
    lab.machine.kubectl(["delete", "node", node.name])?;
    // It announced the pool's address.
    is_announced_by(lab, "n1")?;
    for namespace in [lab.machine.namespace(), &lab.others.last().context("a node")?.namespace] {
        eventually("its routes go", || {
            let left = routes(namespace)?;
            if left.contains("10.244.1.") || left.contains("fd00:10:244:1:") {
                return Err(left);
            }
            Ok(())
        })?;
    }
    lab.others.first().context("a node")?.start()?;
    lab.machine
        .kubectl(["rollout", "status", "deployment/web", "--timeout=60s"])?;
    lab.machine
        .kubectl(["rollout", "status", "daemonset/client", "--timeout=60s"])?;
    Ok(())
}
