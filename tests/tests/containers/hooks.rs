//! Readiness gates and lifecycle hooks.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::machine::eventually;
use tokio::time::Instant;

use crate::cluster::{Cluster, address, is_ready};
use crate::pods::{WAIT, script};

/// A pod is not ready before the condition of its readiness gate is `True`, and not any longer once
/// it is `False`.
pub(crate) fn gates_decide(cluster: &Cluster, image: &str) -> anyhow::Result<()> {
    let gates = json!({"readinessGates": [{"conditionType": "skiff.test/gate"}]});
    cluster.apply(&[script("gated", image, WAIT, json!({}), gates)])?;
    let condition = |pod: &Value, kind: &str| -> Value {
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|own| own["type"] == kind);
        found.unwrap_or_default()
    };
    let pod = cluster.until("gated", "waits for its gate", |pod| {
        condition(pod, "ContainersReady")["status"] == "True" && condition(pod, "Ready")["status"] == "False"
    })?;
    let ready = condition(&pod, "Ready");
    ensure!(
        ready["reason"] == "ReadinessGatesNotReady"
            && ready["message"] == "corresponding condition of pod readiness gate \"skiff.test/gate\" does not exist.",
        "{ready}"
    );
    for status in ["True", "False"] {
        let said = json!({"status": {"conditions": [{"type": "skiff.test/gate", "status": status}]}}).to_string();
        cluster
            .machine
            .kubectl(["patch", "pod", "gated", "--subresource=status", "-p", &said])?;
        cluster.until("gated", "does as its gate says", |pod| {
            condition(pod, "Ready")["status"] == status
        })?;
    }
    cluster.delete(&["gated"])
}

/// HTTP hooks reach the named host with the named headers; a sleep hook delays the end.
pub(crate) fn the_node_asks_and_waits(cluster: &Cluster, image: &str) -> anyhow::Result<()> {
    let web = cluster.until("web", "is ready", is_ready)?;
    let get = |path: &str| {
        json!({"httpGet": {
            "host": address(&web), "port": 80, "path": path,
            "httpHeaders": [{"name": "User-Agent", "value": "a-hook"}],
        }})
    };
    let lifecycle = json!({"lifecycle": {"postStart": get("/?begins"), "preStop": get("/?ends")}});
    let patience = || json!({"terminationGracePeriodSeconds": 30});
    let sleeps = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}});
    cluster.apply(&[
        script("asking", image, WAIT, lifecycle, patience()),
        script("sleepy", image, WAIT, sleeps, patience()),
    ])?;
    let was_asked = |path: &str| {
        eventually(&format!("{path} was asked for"), || match cluster.logs("web") {
            Ok(text) if text.lines().any(|line| line.contains(path) && line.contains("a-hook")) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    cluster.until("asking", "is ready", is_ready)?;
    was_asked("/?begins")?;
    cluster.delete(&["asking"])?;
    was_asked("/?ends")?;
    cluster.until("sleepy", "is ready", is_ready)?;
    let begun = Instant::now();
    cluster.delete(&["sleepy"])?;
    let took = begun.elapsed();
    ensure!(took >= Duration::from_secs(2), "gone after {took:?}");
    ensure!(
        took < Duration::from_secs(25),
        "its process was told to end only after {took:?}"
    );
    Ok(())
}

/// Hooks, signals and grace periods at the end.
pub(crate) fn it_stops(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.until("polite", "is ready", is_ready)?;
    cluster.until("deaf", "is ready", is_ready)?;
    ensure!(
        cluster.written("polite") == "postStart\n",
        "{:?}",
        cluster.written("polite")
    );
    cluster.delete(&["polite", "deaf"])?;
    ensure!(
        cluster.written("polite") == "postStart\npreStop\nTERM\n",
        "{:?}",
        cluster.written("polite")
    );
    cluster.delete(&["--all"])?;
    let agent = cluster.machine.state().join("agent");
    let (runtime, network) = cluster.parts.folders();
    let sandboxes = format!("{runtime}/sandboxes");
    let (held, attached) = (format!("{network}/netns"), format!("{network}/attachments"));
    eventually("nothing of a pod is left", || {
        let names = ["pods", "logs", &sandboxes, &held, &attached].map(|folder| {
            let entries = std::fs::read_dir(agent.join(folder)).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.path().display().to_string())
                .collect::<Vec<_>>()
        });
        let left = names.concat();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
}
