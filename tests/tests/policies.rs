//! Network policies on a real node: pods reach only allowed peers, by any path, from their first
//! packet on.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use anyhow::{Context as _, ensure};
use tests::images;
use tests::machine::{Machine, eventually};

const PODS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: shell
    image: IMAGE
    imagePullPolicy: Never
    command: [httpd, -f, -p, "8080"]
    ports: [{name: http, containerPort: 8080, hostPort: 8443}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [sleep, "100000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: other, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: shell, image: IMAGE, imagePullPolicy: Never, command: [httpd, -f, -p, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
"#;

const DENY: &str = r"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";

const BY_LABEL: &str = r"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: into-web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: http}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out-of-clients}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: http}]
";

const BY_NAMESPACE: &str = r"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-other}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}}]
";

/// Asks before anything else.
const EARLY: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: early}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: shell
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "nc -w 2 ADDRESS 8080 </dev/null && echo reached || echo held"]
"#;

fn apply(machine: &Machine, objects: &str) -> anyhow::Result<()> {
    let file = machine.state().join("objects.yaml");
    std::fs::write(&file, objects)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    Ok(())
}

/// Tells whether a pod reaches a server by TCP.
fn reaches(machine: &Machine, from: &str, to: &str) -> bool {
    let (namespace, pod) = from.split_once('/').unwrap_or(("default", from));
    let (host, port) = to.rsplit_once(':').unwrap_or((to, "80"));
    let asked = format!("nc -w 2 {host} {port} </dev/null");
    let words = ["exec", "-n", namespace, pod, "--", "sh", "-c", &asked];
    machine.kubectl(words).is_ok()
}

/// Waits until all of these ways are open, or closed.
fn are(machine: &Machine, open: bool, ways: &[(&str, &str)]) -> anyhow::Result<()> {
    for (from, to) in ways {
        eventually(&format!("{from} to {to}: {open}"), || {
            let reached = reaches(machine, from, to);
            if reached == open { Ok(()) } else { Err(machine.logs()) }
        })?;
    }
    Ok(())
}

/// `skiff why` names the policies that forbid a connection.
fn why_tells(machine: &Machine) -> anyhow::Result<()> {
    let said = machine.skiff(["why", "pod/client", "--reach", "pod/web:http"]).err();
    let said = format!("{:#}", said.context("policies forbid it")?);
    for words in [
        "NetworkPolicies forbid",
        "egress of pod client",
        "ingress of pod web",
        "in deny.",
    ] {
        ensure!(said.contains(words), "{words:?} is not in: {said}");
    }
    Ok(())
}

/// Names are the node's to tell, whatever policies forbid.
fn resolves(machine: &Machine, address: &str) -> anyhow::Result<()> {
    eventually("the client is told the Service's address", || {
        let found = machine.kubectl(["exec", "client", "--", "nslookup", "web.default.svc.cluster.local"]);
        let found = found.map_err(|error| format!("{error:#}"))?;
        found.contains(address).then_some(()).ok_or(found)
    })
}

#[test]
fn pods_reach_whom_policies_let_them() -> anyhow::Result<()> {
    let machine = Machine::start("policies")?;
    let busybox = images::busybox(&machine)?;
    apply(&machine, &PODS.replace("IMAGE", &busybox))?;
    for namespace in ["default", "other"] {
        let words = [
            "wait",
            "pod",
            "--all",
            "-n",
            namespace,
            "--for=condition=Ready",
            "--timeout=60s",
        ];
        machine.kubectl(words)?;
    }
    let get = |object: &str, path: &str| machine.kubectl(["get", object, "-o", &format!("jsonpath={path}")]);
    let address = get("pod/web", "{.status.podIP}")?;
    let pod = format!("{address}:8080");
    let service = format!("{}:80", get("service/web", "{.spec.clusterIP}")?);
    let ways: Vec<&str> = vec![&pod, &service, "172.30.0.1:8443", "172.30.0.1:30080"];
    let from = |name: &'static str| ways.iter().map(|way| (name, *way)).collect::<Vec<_>>();
    are(&machine, true, &from("client"))?;
    are(&machine, true, &from("other/stranger"))?;

    apply(&machine, DENY)?;
    are(&machine, false, &from("client"))?;
    are(&machine, false, &from("other/stranger"))?;
    why_tells(&machine)?;
    resolves(&machine, service.trim_end_matches(":80"))?;
    let words = ["get", "pod/stranger", "-n", "other", "-o", "jsonpath={.status.podIP}"];
    let open = machine.kubectl(words)?;
    let early = EARLY.replace("IMAGE", &busybox).replace("ADDRESS", &open);
    apply(&machine, &early)?;
    machine.kubectl([
        "wait",
        "pod/early",
        "--for=jsonpath={.status.phase}=Succeeded",
        "--timeout=60s",
    ])?;
    let said = machine.kubectl(["logs", "early"])?;
    ensure!(
        said.contains("held") && !said.contains("reached"),
        "its first packet: {said}"
    );

    apply(&machine, BY_LABEL)?;
    are(&machine, true, &from("client")[..2])?;
    are(&machine, false, &from("other/stranger"))?;
    apply(&machine, BY_NAMESPACE)?;
    are(&machine, true, &from("other/stranger"))?;
    machine.kubectl(["label", "pod/client", "app=x", "--overwrite"])?;
    are(&machine, false, &from("client"))?;

    machine.kill("skiff-agent")?;
    machine.skiff(["up"])?;
    are(&machine, false, &from("client")[..2])?;
    machine.kubectl(["delete", "networkpolicy", "from-other"])?;
    are(&machine, false, &from("other/stranger"))?;
    eventually("its node reaches it", || {
        let ready = get("pod/web", "{.status.conditions[?(@.type=='Ready')].status}");
        match ready.map_err(|error| format!("{error:#}"))? {
            ready if ready == "True" => Ok(()),
            other => Err(other),
        }
    })?;

    machine.kubectl(["delete", "networkpolicy", "--all"])?;
    are(&machine, true, &from("client"))?;
    are(&machine, true, &from("other/stranger"))?;
    machine.finish()
}
