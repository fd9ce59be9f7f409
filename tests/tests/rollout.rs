//! A rolling update under a loop of requests: there are never fewer pods that answer than the Deployment allows.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use anyhow::Context as _;
use serde_json::Value;
use tests::images;
use tests::machine::Machine;

const REPLICAS: usize = 4;
const UNAVAILABLE: usize = 1;

fn manifest(image: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {REPLICAS}
  strategy: {{rollingUpdate: {{maxSurge: 1, maxUnavailable: {UNAVAILABLE}}}}}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: nginx
        image: {image}
        ports: [{{containerPort: 80}}]
        readinessProbe: {{httpGet: {{path: /, port: 80}}, periodSeconds: 1}}
"
    )
}

/// Returns the number of Ready pods that are not terminating and answer a request right now.
fn answering(machine: &Machine) -> anyhow::Result<usize> {
    let pods: Value = serde_json::from_str(&machine.kubectl(["get", "pods", "-l", "app=web", "-o", "json"])?)?;
    let ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let pods = pods["items"].as_array().context("items")?;
    Ok(pods
        .iter()
        .filter(ready)
        .filter_map(|pod| pod["status"]["podIP"].as_str())
        .filter(|address| machine.fetch(&format!("http://{address}/")).is_ok())
        .count())
}

#[test]
fn a_rolling_update_keeps_enough_pods_answering() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("rollout")?;
    let image = images::nginx(&machine)?;
    let file = machine.state().join("web.yaml");
    std::fs::write(&file, manifest(&image))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["rollout", "status", "deployment/web", "--timeout=60s"])?;
    let mut rounds = 0;
    for version in ["one", "two", "three"] {
        machine.kubectl(["set", "env", "deployment/web", &format!("VERSION={version}")])?;
        loop {
            // Between the list and the requests a pod may rightly leave; only more looks can tell.
            let mut looks: Vec<usize> = Vec::new();
            while looks.len() < 6 && looks.iter().all(|seen| *seen < REPLICAS - UNAVAILABLE) {
                looks.push(answering(&machine)?);
            }
            let most = looks.into_iter().max().unwrap_or_default();
            assert!(most >= REPLICAS - UNAVAILABLE, "only {most} pods answered");
            rounds += 1;
            let progress = "jsonpath={.status.observedGeneration} {.metadata.generation} {.status.updatedReplicas} \
                            {.status.replicas} {.status.availableReplicas}";
            let progress = machine.kubectl(["get", "deployment", "web", "-o", progress])?;
            let words: Vec<&str> = progress.split(' ').collect();
            if words[0] == words[1] && words[2..].iter().all(|word| *word == REPLICAS.to_string()) {
                break;
            }
        }
    }
    assert!(rounds >= 3);
    let sets = machine.kubectl(["get", "replicasets", "-l", "app=web", "-o", "name"])?;
    assert_eq!(sets.lines().count(), 4, "one for each version: {sets}");
    machine.finish()
}
