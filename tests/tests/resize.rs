//! In-place resize of CPU and memory of running containers.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::images;
use tests::machine::{Machine, eventually};
use tests::parts::Parts;

use start::Started;

#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
#[path = "containers/start.rs"]
mod start;

fn read(machine: &Machine) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(
        &machine.kubectl(["get", "pod", "p", "-o", "json"])?,
    )?)
}

/// Changes the resources of a container with the newest kubectl.
fn resize(machine: &Machine, container: &str, cpu: &str, memory: &str) -> anyhow::Result<()> {
    let resources = json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}}).to_string();
    machine.kubectl(["patch", "pod", "p", "--subresource", "resize", "-p", &patch])?;
    Ok(())
}

/// Waits until a container has its allocated resources; returns its number of restarts.
fn has(machine: &Machine, container: &str, cpu: &str, memory: &str) -> anyhow::Result<u64> {
    eventually(&format!("{container} has {cpu} and {memory}"), || {
        let pod = read(machine).map_err(|error| error.to_string())?;
        let status = pod.get("status").cloned().unwrap_or_default();
        let seen = format!("{status:#}");
        let list = |name: &str| status.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let statuses = list("containerStatuses");
        let own = statuses.iter().find(|own| own.get("name") == Some(&json!(container)));
        let own = own.ok_or_else(|| seen.clone())?;
        let expected = json!({"cpu": cpu, "memory": memory});
        let waits = list("conditions")
            .iter()
            .any(|own| own.get("type").is_some_and(|name| name.to_string().contains("Resize")));
        let same = own.pointer("/resources/limits") == Some(&expected)
            && own.get("allocatedResources") == Some(&expected)
            && own.pointer("/state/running").is_some();
        if waits || !same {
            return Err(seen);
        }
        Ok(own.get("restartCount").and_then(Value::as_u64).unwrap_or(0))
    })
}

/// The limit of memory that the kernel keeps the container to, in bytes.
fn kept_to(machine: &Machine, container: &str) -> anyhow::Result<String> {
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null";
    let told = machine.kubectl([
        "exec",
        "p",
        "-c",
        container,
        "--",
        "sh",
        "-c",
        &format!("{script}; true"),
    ])?;
    Ok(told.trim().to_owned())
}

/// A downward API file about a container's resources follows the allocation.
fn is_told_inside(machine: &Machine, container: &str, expected: &str) -> anyhow::Result<()> {
    let words = ["exec", "p", "-c", container, "--", "cat", "/told/memory"];
    eventually(&format!("{container} reads {expected}"), || {
        let told = machine.kubectl(words).map_err(|error| format!("{error:#}"))?;
        if told.trim() == expected { Ok(()) } else { Err(told) }
    })
}

/// Processes of `exec` are under the container's limits.
fn is_executed_inside(machine: &Machine) -> anyhow::Result<()> {
    let groups = machine.kubectl(["exec", "p", "-c", "a", "--", "cat", "/proc/self/cgroup"])?;
    for controller in ["memory", "cpu", "pids"] {
        let own = groups
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let mut own = own.filter(|(names, _)| names.split(',').any(|name| name == controller));
        ensure!(own.all(|(_, path)| path == "/"), "{controller}: {groups}");
    }
    Ok(())
}

fn condition(machine: &Machine, kind: &str) -> anyhow::Result<(String, String)> {
    eventually(&format!("the condition {kind}"), || {
        let pod = read(machine).map_err(|error| error.to_string())?;
        let all = pod.pointer("/status/conditions").cloned().unwrap_or_default();
        let conditions = all.as_array().cloned().unwrap_or_default();
        let own = conditions.iter().find(|own| own.get("type") == Some(&json!(kind)));
        let text = |name: &str| own.and_then(|own| own.get(name)?.as_str().map(str::to_owned));
        match (text("reason"), text("message")) {
            (Some(reason), Some(message)) => Ok((reason, message)),
            (_, _) => Err(format!("{all:#}")),
        }
    })
}

fn apply(machine: &Machine, object: &Value) -> anyhow::Result<()> {
    let file = machine.state().join("object.json");
    std::fs::write(&file, object.to_string())?;
    machine.kubectl(["apply", "-f", &file.display().to_string()]).map(drop)
}

/// A pod that asks for so many thousandths of a processor.
fn with_requests(name: &str, image: &str, cpu: i64, class: &str) -> Value {
    let requests = json!({"requests": {"cpu": format!("{cpu}m")}});
    let container = json!({"name": "a", "image": image, "command": ["sleep", "100000"], "resources": requests});
    let spec = json!({"terminationGracePeriodSeconds": 0, "priorityClassName": class, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Thousandths of processors that the node has for pods.
fn allocatable(machine: &Machine) -> anyhow::Result<i64> {
    let told = machine.kubectl(["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.cpu}"])?;
    Ok(told.trim().parse::<i64>()? * 1000)
}

/// More than the node has, and less than is in use.
fn what_cannot_be_given(machine: &Machine, image: &str) -> anyhow::Result<()> {
    let refused = resize(machine, "a", "10k", "64Mi").map_or_else(|error| format!("{error:#}"), |()| String::new());
    let why = "node didn't have enough allocatable resources: cpu, requested: 10000300, allocatable: ";
    ensure!(refused.contains(why), "{refused}");
    let large = with_requests("large", image, 1000, "");
    apply(machine, &large)?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/large", "--timeout=60s"])?;
    let wished = allocatable(machine)? - 300 - 500;
    resize(machine, "a", &format!("{wished}m"), "64Mi")?;
    let (reason, message) = condition(machine, "PodResizePending")?;
    ensure!(reason == "Deferred", "{reason}: {message}");
    let begin = format!(
        "Node didn't have enough resource: cpu, requested: {}, used: 1000, capacity: ",
        wished + 300
    );
    ensure!(message.starts_with(&begin), "{message}");
    others_are_taken(machine, image)?;
    machine.kubectl(["delete", "pod", "large"])?;
    resize(machine, "a", "200m", "4Ki")?;
    let (reason, message) = condition(machine, "PodResizeInProgress")?;
    ensure!(reason == "Error", "{reason}: {message}");
    ensure!(
        message.contains("memory limit (4096) below current usage ("),
        "{message}"
    );
    ensure!(kept_to(machine, "a")? == (64 << 20).to_string());
    resize(machine, "a", "100m", "32Mi")?;
    ensure!(has(machine, "a", "100m", "32Mi")? == 0);
    ensure!(kept_to(machine, "a")? == (32 << 20).to_string());
    Ok(())
}

/// A deferred resize uses no resources of the node, but the scheduler reserves the room for it.
fn others_are_taken(machine: &Machine, image: &str) -> anyhow::Result<()> {
    let node = machine.kubectl(["get", "pod", "p", "-o", "jsonpath={.spec.nodeName}"])?;
    let mut placed = with_requests("placed", image, 10, "");
    let spec = placed
        .get_mut("spec")
        .and_then(Value::as_object_mut)
        .context("a spec")?;
    spec.insert("nodeName".to_owned(), json!(node.trim()));
    let scheduled = with_requests("scheduled", image, 10, "");
    for (pod, expected) in [
        (placed, "pod/placed Ready"),
        (scheduled, "pod/scheduled PodScheduled=False"),
    ] {
        apply(machine, &pod)?;
        let (name, condition) = expected.split_once(' ').context("a condition")?;
        machine.kubectl(["wait", &format!("--for=condition={condition}"), name, "--timeout=60s"])?;
        machine.kubectl(["delete", name])?;
    }
    Ok(())
}

/// A pod-level resize: of the pod's cgroup, and of the containers without limits of their own, one
/// of which is restarted for it. Before that, the pod does not report the resize as complete: an
/// agent that started meanwhile would forget it.
fn a_pod_as_a_whole(machine: &Machine, image: &str) -> anyhow::Result<()> {
    let of = |memory: &str| json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": memory}});
    let container = json!({"name": "a", "image": image, "command": ["sleep", "100000"]});
    let anew = json!({
        "name": "b", "image": image, "command": ["sleep", "100000"],
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    });
    let spec = json!({"terminationGracePeriodSeconds": 0, "resources": of("64Mi"), "containers": [container, anew]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "whole"}, "spec": spec});
    let file = machine.state().join("whole.yaml");
    std::fs::write(&file, pod.to_string())?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/whole", "--timeout=60s"])?;
    let patch = json!({"spec": {"resources": of("96Mi")}}).to_string();
    machine.kubectl(["patch", "pod", "whole", "--subresource", "resize", "-p", &patch])?;
    let early = std::cell::Cell::new(false);
    eventually("the pod has 96Mi", || {
        let read = || -> anyhow::Result<(Value, String)> {
            let told = machine.kubectl(["get", "pod", "whole", "-o", "json"])?;
            let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true";
            Ok((
                serde_json::from_str(&told)?,
                machine.kubectl(["exec", "whole", "-c", "a", "--", "sh", "-c", script])?,
            ))
        };
        let (pod, kept) = read().map_err(|error| format!("{error:#}"))?;
        let status = pod.get("status").cloned().unwrap_or_default();
        let restarted = status.pointer("/containerStatuses/1/restartCount") == Some(&json!(1));
        early.set(early.get() || status.get("resources") == Some(&of("96Mi")) && !restarted);
        let given = status.get("resources") == Some(&of("96Mi"))
            && restarted
            && status.pointer("/allocatedResources/memory") == Some(&json!("32Mi"))
            && status.pointer("/containerStatuses/0/restartCount") == Some(&json!(0));
        if given && !status.to_string().contains("PodResize") && kept.trim() == (96 << 20).to_string() {
            return Ok(());
        }
        Err(format!("{kept} {status:#}"))
    })?;
    anyhow::ensure!(!early.get(), "all was given before the container was started anew");
    machine.kubectl(["delete", "pod", "whole"]).map(drop)
}

/// Free resources go to the most important of the deferred resizes, not to the first to ask.
fn by_turns(machine: &Machine, image: &str) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "vital"}, "value": 1000,
    });
    let ready = |name: &str| {
        let pod = format!("pod/{name}");
        machine.kubectl(["wait", "--for=condition=Ready", &pod, "--timeout=60s"])
    };
    let told = |name: &str| machine.kubectl(["get", "pod", name, "-o", "json"]);
    // But for what the pod of this test's other parts has.
    let free = allocatable(machine)? - 400;
    apply(machine, &class)?;
    for (name, cpu, class) in [("late", 10, ""), ("first", 10, "vital"), ("large", free - 20, "")] {
        apply(machine, &with_requests(name, image, cpu, class))?;
        ready(name)?;
    }
    let wished = free - 100;
    let patch =
        json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": format!("{wished}m")}}}]}});
    for name in ["late", "first"] {
        machine.kubectl([
            "patch",
            "pod",
            name,
            "--subresource",
            "resize",
            "-p",
            &patch.to_string(),
        ])?;
        eventually(&format!("{name} waits"), || match told(name) {
            Ok(pod) if pod.contains("Deferred") => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    let given = |name: &str| -> Result<(), String> {
        let pod: Value = told(name)
            .and_then(|pod| Ok(serde_json::from_str(&pod)?))
            .map_err(|error| format!("{error:#}"))?;
        let own = pod
            .pointer("/status/containerStatuses/0/resources/requests/cpu")
            .cloned();
        (own == Some(json!(format!("{wished}m"))))
            .then_some(())
            .ok_or_else(|| format!("{pod:#}"))
    };
    machine.kubectl(["delete", "pod", "large"])?;
    eventually("the more important one has it", || given("first"))?;
    ensure!(told("late")?.contains("Deferred"), "{}", told("late")?);
    machine.kubectl(["delete", "pod", "first"])?;
    eventually("then the other one", || given("late"))?;
    machine.kubectl(["delete", "pod", "late"]).map(drop)
}

fn story(machine: &Machine) -> anyhow::Result<()> {
    let image = images::busybox(machine)?;
    let container = |name: &str, more: &str| {
        let resources = "resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}";
        format!("{{name: {name}, image: \"{image}\", command: [sleep, '100000'], {resources}{more}}}")
    };
    let restarts = ", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]";
    let told = "volumes: [{name: told, downwardAPI: {items: [{path: memory, \
        resourceFieldRef: {containerName: a, resource: limits.memory, divisor: 1Mi}}]}}]";
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, \
            spec: {{terminationGracePeriodSeconds: 0, {told}, containers: [{}, {}]}}}}",
        container("a", ", volumeMounts: [{name: told, mountPath: /told}]"),
        container("b", restarts)
    );
    let file = machine.state().join("pod.yaml");
    std::fs::write(&file, pod)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"])?;
    ensure!(has(machine, "a", "100m", "32Mi")? == 0);

    is_executed_inside(machine)?;
    resize(machine, "a", "200m", "64Mi")?;
    ensure!(has(machine, "a", "200m", "64Mi")? == 0, "without a restart");
    let whole = read(machine)?.pointer("/status/allocatedResources").cloned();
    ensure!(whole == Some(json!({"cpu": "300m", "memory": "96Mi"})), "{whole:?}");
    is_told_inside(machine, "a", "64")?;
    ensure!(
        kept_to(machine, "a")? == (64 << 20).to_string(),
        "{}",
        kept_to(machine, "a")?
    );
    resize(machine, "b", "300m", "32Mi")?;
    ensure!(has(machine, "b", "300m", "32Mi")? == 0, "only memory wants a restart");
    resize(machine, "b", "300m", "48Mi")?;
    ensure!(has(machine, "b", "300m", "48Mi")? == 1, "its policy wants a restart");
    ensure!(kept_to(machine, "b")? == (48 << 20).to_string());
    ensure!(has(machine, "a", "200m", "64Mi")? == 0, "the other one goes on");

    what_cannot_be_given(machine, &image)?;
    a_pod_as_a_whole(machine, &image)?;
    by_turns(machine, &image)?;

    // An allocation outlives the agent, and applies to the next start.
    machine.kill("skiff-agent")?;
    machine.skiff(["up"])?;
    machine.kubectl(["exec", "p", "-c", "a", "--", "kill", "1"]).ok();
    resize(machine, "a", "150m", "40Mi")?;
    has(machine, "a", "150m", "40Mi")?;
    let events = machine.kubectl(["get", "events", "--field-selector", "involvedObject.name=p"])?;
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeDeferred", "ResizeError"] {
        ensure!(events.contains(reason), "{reason}: {events}");
    }
    let whole = read(machine)?;
    let generation = whole.pointer("/metadata/generation").context("a generation")?;
    ensure!(
        whole.pointer("/status/observedGeneration") == Some(generation),
        "{whole:#}"
    );
    Ok(())
}

fn with(parts: Parts) -> anyhow::Result<()> {
    tests::logging();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(Box::pin(async {
        let started = Started::with(parts, "resize", &[]).await?;
        story(&started.machine)?;
        started.finish().await
    }))
}

#[test]
fn containers_that_run_are_given_more_and_less() -> anyhow::Result<()> {
    with(Parts::default())
}

#[test]
fn containers_of_containerd_are_given_more_and_less() -> anyhow::Result<()> {
    let (containerd, cni) = (true, false);
    with(Parts { containerd, cni })
}
