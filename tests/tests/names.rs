//! Names of the cluster on a real node: pods ask the agent for Services, endpoints and themselves, as the Kubernetes DNS
//! specification has them.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use anyhow::ensure;
use tests::images;
use tests::machine::{Machine, eventually};

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
    let fetched = machine.kubectl(fetched)?;
    ensure!(
        fetched.contains("web-0"),
        "by the search list and the Service: {fetched}"
    );
    let resolver = machine.kubectl(["exec", "client", "--", "cat", "/etc/resolv.conf"])?;
    let searched = "search default.svc.cluster.local svc.cluster.local cluster.local";
    ensure!(
        resolver.contains(searched) && resolver.contains("options ndots:5"),
        "{resolver}"
    );

    machine.kubectl(["delete", "service", "web"])?;
    eventually("a name goes with its Service", || {
        match asked(&machine, "web.default.svc.cluster.local.") {
            Ok(answer) if answer.contains(&cluster) => Err(answer),
            Ok(_) | Err(_) => Ok(()),
        }
    })?;
    machine.finish()
}
