//! The main use: a Deployment that stock kubectl applies becomes real nginx containers, and every
//! step can be traced afterwards.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use serde_json::Value;
use tests::images;
use tests::machine::{Machine, eventually};

/// The manifest of upstream's own documentation, with an image that needs no registry.
fn manifest(image: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
  labels:
    app: nginx
spec:
  replicas: 3
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: {image}
        ports:
        - containerPort: 80
"
    )
}

fn json(machine: &Machine, words: &[&str]) -> anyhow::Result<Value> {
    let mut all = words.to_vec();
    all.extend(["-o", "json"]);
    Ok(serde_json::from_str(&machine.kubectl(all)?)?)
}

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

#[test]
fn three_nginx_answer_and_the_way_can_be_read() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("deploy")?;
    let image = images::nginx(&machine)?;
    let file = machine.state().join("deployment.yaml");
    std::fs::write(&file, manifest(&image))?;
    let path = file.display().to_string();
    let said = machine.kubectl(["apply", "-f", path.as_str()])?;
    assert_eq!(said.trim(), "deployment.apps/nginx-deployment created");
    machine.kubectl(["rollout", "status", "deployment/nginx-deployment", "--timeout=60s"])?;

    let deployment = json(&machine, &["get", "deployment", "nginx-deployment"])?;
    let sets = items(&json(&machine, &["get", "replicasets", "-l", "app=nginx"])?);
    assert_eq!(sets.len(), 1, "one ReplicaSet: {sets:#?}");
    let pods = items(&json(&machine, &["get", "pods", "-l", "app=nginx"])?);
    assert_eq!(pods.len(), 3, "three Pods: {pods:#?}");
    assert_ownership(&deployment, &sets[0], &pods);
    for pod in &pods {
        assert_running(pod);
        let address = pod["status"]["podIP"].as_str().expect("a pod address");
        let page = machine.page(&format!("http://{address}:80/"))?;
        assert!(page.contains("nginx"), "{address} answers with its page: {page}");
    }
    let addresses: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    assert_eq!(addresses.len(), 3, "each pod has an address of its own");
    assert_audit(&machine, &pods)?;

    machine.kubectl(["delete", "deployment", "nginx-deployment"])?;
    eventually("everything that the Deployment owned is gone", || {
        let left = machine
            .kubectl(["get", "replicasets,pods", "-o", "name"])
            .map_err(|error| error.to_string())?;
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })?;
    machine.finish()
}

fn assert_ownership(deployment: &Value, set: &Value, pods: &[Value]) {
    let hash = set["metadata"]["labels"]["pod-template-hash"]
        .as_str()
        .expect("a pod-template-hash");
    assert_eq!(set["metadata"]["name"], format!("nginx-deployment-{hash}"));
    let safe = |text: &str| {
        text.chars()
            .all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
    };
    assert!(safe(hash) && hash.len() <= 10, "{hash}");
    assert_eq!(set["spec"]["selector"]["matchLabels"]["pod-template-hash"], hash);
    let owner = &set["metadata"]["ownerReferences"][0];
    assert_eq!(owner["apiVersion"], "apps/v1");
    assert_eq!(owner["kind"], "Deployment");
    assert_eq!(owner["name"], "nginx-deployment");
    assert_eq!(owner["uid"], deployment["metadata"]["uid"]);
    assert_eq!(owner["controller"], true);
    assert_eq!(owner["blockOwnerDeletion"], true);
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let suffix = name
            .strip_prefix(&format!("nginx-deployment-{hash}-"))
            .expect("the ReplicaSet's name first");
        assert!(safe(suffix) && suffix.len() == 5, "{name}");
        assert_eq!(pod["metadata"]["generateName"], format!("nginx-deployment-{hash}-"));
        assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], hash);
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], "ReplicaSet");
        assert_eq!(owner["uid"], set["metadata"]["uid"]);
    }
}

/// The status that upstream's node agent reports for such a pod, field by field.
fn assert_running(pod: &Value) {
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "BestEffort");
    let conditions = status["conditions"].as_array().expect("conditions");
    for name in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        let condition = conditions.iter().find(|condition| condition["type"] == name);
        let condition = condition.unwrap_or_else(|| panic!("condition {name}: {conditions:#?}"));
        assert_eq!(condition["status"], "True", "{name}: {condition:#}");
        assert!(condition["lastTransitionTime"].is_string(), "{name}: {condition:#}");
        assert!(
            condition.get("lastProbeTime").is_none_or(Value::is_null),
            "{name}: {condition:#}"
        );
    }
    assert!(
        status["hostIP"].is_string() && status["podIP"].is_string(),
        "{status:#}"
    );
    assert_eq!(status["podIPs"][0]["ip"], status["podIP"]);
    assert_eq!(status["hostIPs"][0]["ip"], status["hostIP"]);
    let container = &status["containerStatuses"][0];
    assert_eq!(container["name"], "nginx");
    assert_eq!(container["ready"], true);
    assert_eq!(container["started"], true);
    assert_eq!(container["restartCount"], 0);
    assert_eq!(container["lastState"], serde_json::json!({}));
    let text = |field: &str| container[field].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        text("image"),
        pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
    );
    assert!(text("imageID").contains("sha256:"), "{container:#}");
    assert!(text("containerID").contains("://"), "{container:#}");
    let started = container["state"]["running"]["startedAt"].as_str().expect("startedAt");
    let at = |name: &str| {
        let found = conditions.iter().find(|condition| condition["type"] == name);
        found
            .and_then(|condition| condition["lastTransitionTime"].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let begun = status["startTime"].as_str().expect("startTime");
    assert!(
        at("PodScheduled").as_str() <= begun && begun <= started,
        "times in order: {status:#}"
    );
    assert!(started <= at("Ready").as_str(), "times in order: {status:#}");
}

/// The four lines of the audit log with the users and their requests.
fn assert_audit(machine: &Machine, pods: &[Value]) -> anyhow::Result<()> {
    // A thread of its own writes them.
    let found = |resource: &str, subresource: Option<&str>, user: &str, count: usize| {
        eventually(&format!("{user} has created {count} {resource}"), || {
            let mut lines = machine.audit().map_err(|error| format!("{error:#}"))?;
            lines.retain(|line| {
                line["verb"] == "create"
                    && line["objectRef"]["resource"] == resource
                    && line["objectRef"]["subresource"].as_str() == subresource
                    && line["user"]["username"] == user
            });
            if lines.len() == count {
                Ok(lines)
            } else {
                Err(format!("{lines:#?}"))
            }
        })
    };
    let deployments = found("deployments", None, "kubernetes-admin", 1)?;
    let uri = deployments[0]["requestURI"].as_str().unwrap_or_default();
    assert!(
        uri.contains("fieldManager=kubectl-client-side-apply&fieldValidation=Strict"),
        "{uri}"
    );
    assert!(
        deployments[0]["userAgent"]
            .as_str()
            .unwrap_or_default()
            .starts_with("kubectl")
    );
    assert_eq!(deployments[0]["requestObject"]["kind"], "Deployment");
    let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
    let sets = found("replicasets", None, &account("deployment-controller"), 1)?;
    assert_eq!(sets[0]["requestObject"]["kind"], "ReplicaSet");
    let created = found("pods", None, &account("replicaset-controller"), 3)?;
    let names: BTreeSet<&str> = created
        .iter()
        .filter_map(|line| line["responseObject"]["metadata"]["name"].as_str())
        .collect();
    let real: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names, real);
    let bindings = found("pods", Some("binding"), "system:kube-scheduler", 3)?;
    assert_eq!(bindings[0]["requestObject"]["kind"], "Binding");
    assert_eq!(bindings[0]["kind"], "Event");
    assert_eq!(bindings[0]["apiVersion"], "audit.k8s.io/v1");
    Ok(())
}
