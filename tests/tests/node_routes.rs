//! Pods of three nodes reach each other, Services and node ports, with no manual step but `skiff
//! up` and `skiff join`: two nodes share a link, the third is behind a router.

#![allow(clippy::panic, reason = "a test fails by panicking")]

#[path = "node_routes/lab.rs"]
mod lab;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab::Lab;
use nix::sys::signal::Signal;
use tests::machine::{Namespace, eventually};
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
        lifecycle: {preStop: {sleep: {seconds: 5}}}
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
"#;

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
    address_is_announced(&lab)?;
    rolls_without_loss(&lab)?;
    let mtu = lab
        .machine
        .kubectl(["exec", "daemonset/client", "--", "cat", "/sys/class/net/eth0/mtu"])?;
    ensure!(mtu.trim() == "1450", "what fits the tunnel: {mtu}");

    survives(&lab)?;
    is_mended(&lab)?;
    goes_with_its_node(&lab)?;
    all_reach_all(&lab)?;
    lab.finish()
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

/// Of the two nodes on the link of the pool, one announces its address, and the other one once that
/// must not.
fn address_is_announced(lab: &Lab) -> anyhow::Result<()> {
    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers";
    let kind = r#"{"spec": {"type": "LoadBalancer"}}"#;
    lab.machine.kubectl(["patch", "service", "web", "-p", kind])?;
    eventually("the address is reached", || fetch_balanced(lab))?;
    for (node, change, holder) in [
        ("n2", format!("{excluded}=true"), Some("n1")),
        ("n2", format!("{excluded}-"), None),
        ("n1", format!("{excluded}=true"), Some("n2")),
        ("n1", format!("{excluded}-"), Some("n2")),
    ] {
        lab.machine.kubectl(["label", "node", node, &change])?;
        eventually("the address moves", || {
            let own = announcer(lab).map_err(|error| format!("{error:#}"))?;
            let is_there = holder.is_none_or(|holder| own == [holder]);
            if is_there {
                fetch_balanced(lab)
            } else {
                Err(format!("{own:?}"))
            }
        })?;
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
    let mut asking = Vec::new();
    for (namespace, address) in [
        (n3, format!("{service}:8080")),
        (&lab.router, "172.30.0.1:30080".to_owned()),
    ] {
        let script = format!(
            "i=0; while [ ! -e {} ] && [ $i -lt 3000 ]; do curl -sS --fail --max-time 10 http://{address}/ >/dev/null || echo lost; \
             sleep 0.1; i=$((i+1)); done",
            done.display()
        );
        let mut shell = namespace.command("sh");
        shell.args(["-c", &script]).stdout(std::process::Stdio::piped());
        asking.push(shell.stderr(std::process::Stdio::piped()).spawn()?);
    }
    let rollout = |words: &[&str]| lab.machine.kubectl(["rollout"].iter().chain(words).copied());
    let rolled = rollout(&["restart", "deployment/web"])
        .and_then(|_said| rollout(&["status", "deployment/web", "--timeout=180s"]));
    std::fs::write(&done, "")?;
    for asking in asking {
        let said = process::both(&asking.wait_with_output()?);
        ensure!(said.is_empty(), "{said}");
    }
    rolled.map(drop)
}

/// Neither the agent's end nor its next start interrupts traffic.
fn survives(lab: &Lab) -> anyhow::Result<()> {
    let before: Vec<_> = lab.namespaces().map(routes).collect();
    let pods = words(lab, &["pods", "-l", "app=web"], "{.items[*].status.podIP}")?;
    let [_, n2, n3] = lab.namespaces().collect::<Vec<_>>()[..] else {
        anyhow::bail!("three nodes")
    };
    let script = format!(
        "i=0; while [ $i -lt 60 ]; do for a in {}; do curl -sS --fail --max-time 5 http://$a/ >/dev/null || echo lost $a; done; \
         sleep 0.05; i=$((i+1)); done",
        pods.join(" ")
    );
    let mut asking = Vec::new();
    for namespace in [n2, n3] {
        let mut shell = namespace.command("sh");
        shell.args(["-c", &script]).stdout(std::process::Stdio::piped());
        asking.push(shell.stderr(std::process::Stdio::piped()).spawn()?);
    }
    for node in &lab.others {
        node.end(Signal::SIGKILL)?;
        node.start()?;
    }
    for asking in asking {
        let said = process::both(&asking.wait_with_output()?);
        ensure!(said.is_empty(), "{said}");
    }
    let after: Vec<_> = lab.namespaces().map(routes).collect();
    ensure!(before == after, "{before:?} {after:?}");
    for node in &lab.others {
        eventually("the next agent has looked at the routes", || {
            let log = node.log();
            let looked = log.matches("pods of other nodes are reached").count() == 2;
            looked.then_some(()).ok_or(log)
        })?;
    }
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
        process::run(namespace.command("ip").args(harm.split(' ')))?;
        #[expect(clippy::disallowed_methods, reason = "the kernel is waited for on the wall clock")]
        let begun = std::time::Instant::now();
        eventually(harm, || {
            let now = routes(namespace)?;
            if now == before { Ok(()) } else { Err(now) }
        })?;
        let took = begun.elapsed();
        // By the kernel's notification, not by the periodic check every ten seconds.
        ensure!(took < Duration::from_secs(5), "{harm}: mended after {took:?}");
    }
    all_reach_all(lab)
}

/// A Node that is deleted takes the routes to its pods along; one that comes again brings them back.
fn goes_with_its_node(lab: &Lab) -> anyhow::Result<()> {
    let node = lab.others.first().context("a node")?;
    node.end(Signal::SIGTERM)?;
    lab.machine.kubectl(["delete", "node", node.name])?;
    // It announced the pool's address.
    eventually("the address moves to the other node", || {
        let own = announcer(lab).map_err(|error| format!("{error:#}"))?;
        if own == ["n1"] {
            fetch_balanced(lab)
        } else {
            Err(format!("{own:?}"))
        }
    })?;
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
