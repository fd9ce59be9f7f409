//! Findings for a node: whether it accepts pods, and why not.

use serde_json::Value;

use super::finding::Finding;
use super::{told, verdict, warnings};
use crate::client::api::{Api, is_forbidden, text_at};
use crate::terminal;

/// Conditions of a node that should not be true, and advice.
const PRESSURES: [(&str, &str); 4] = [
    (
        "MemoryPressure",
        "memory is short: pods are evicted until it is not; set memory limits, or remove pods",
    ),
    (
        "DiskPressure",
        "a disk is nearly full: `skiff image prune` and removing pods free what is theirs",
    ),
    (
        "PIDPressure",
        "there are too many processes: remove pods, or lower their limit",
    ),
    (
        "NetworkUnavailable",
        "the node's network is not set up: see to the network plugin that sets this condition",
    ),
];
/// Condition that a firewall of the node drops pods' traffic.
const BLOCKED: &str = "PodTrafficBlocked";
/// Reason of the condition `NetworkUnavailable` where routes to some nodes are missing.
const UNREACHED: &str = "NodesUnreached";

/// Returns whether there is a problem.
pub(super) async fn run(api: &Api, node: &Value) -> anyhow::Result<bool> {
    let name = text_at(node, "/metadata/name");
    let selector = format!("involvedObject.kind=Node,involvedObject.name={name}");
    let events = match warnings(api, "default", &selector).await {
        Err(error) if is_forbidden(&error) => {
            terminal::note("Its events are not shown: a node may not list events.");
            Vec::new()
        }
        events => events?,
    };
    let events: Vec<&Value> = events.iter().collect();
    let findings = explain(node);
    let trouble = findings.iter().any(|finding| finding.trouble);
    terminal::line(terminal::bold(&format!("Node {name}: {}", verdict(trouble))))?;
    told(&findings, &events)?;
    Ok(trouble)
}

fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut all = node.pointer("/status/conditions")?.as_array()?.iter();
    all.find(|condition| text_at(condition, "/type") == kind)
}

/// Reports what keeps connections to and from its pods from passing.
pub(super) fn blocks(node: &Value) -> Vec<Finding> {
    let name = text_at(node, "/metadata/name");
    let which = |finding: Finding| finding.fact(format!("It is the node {name}."));
    let silent = readiness(node).map(which);
    // These may be others than the one that is asked about.
    let unreached = unreached(node, Finding::note).map(which);
    silent.into_iter().chain(firewall(node)).chain(unreached).collect()
}

fn explain(node: &Value) -> Vec<Finding> {
    let holds = |kind: &str| condition(node, kind).filter(|found| text_at(found, "/status") == "True");
    let mut found: Vec<Finding> = readiness(node)
        .into_iter()
        .chain(firewall(node))
        .chain(unreached(node, Finding::trouble))
        .collect();
    for (kind, advice) in PRESSURES {
        if let Some(condition) = holds(kind) {
            let finding = Finding::trouble(format!("The node's condition {kind} is True."));
            found.push(finding.fact(text_at(condition, "/message")).advise(advice));
        }
    }
    if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
        let name = text_at(node, "/metadata/name");
        let finding = Finding::note("The node is cordoned: it gets no new pods.");
        found.push(finding.advise(format!("`kubectl uncordon {name}` lets pods onto it again")));
    }
    found
}

fn readiness(node: &Value) -> Option<Finding> {
    let ready = condition(node, "Ready");
    let status = ready.map_or("", |ready| text_at(ready, "/status"));
    let message = ready.map_or("", |ready| text_at(ready, "/message"));
    match status {
        "True" => None,
        "False" => Some(
            Finding::trouble("The node is not Ready.")
                .fact(message)
                .advise("the log of its agent tells more"),
        ),
        _ => Some(
            Finding::trouble("The node's agent does not answer.")
                .fact(message)
                .advise("see whether the machine is up and skiff-agent runs there; `skiff up` starts the one of this machine"),
        ),
    }
}

/// Reports that a firewall of the node drops the pods' traffic, which the pods' statuses do not
/// show.
pub(super) fn firewall(node: &Value) -> Option<Finding> {
    let blocked = condition(node, BLOCKED).filter(|found| text_at(found, "/status") == "True")?;
    let finding = Finding::trouble("A firewall of the node drops what its pods send and get.");
    let finding = finding.fact(text_at(blocked, "/message"));
    Some(
        finding.advise("have the firewall of that machine accept what comes from and goes to the pods' bridge, and look again after a minute"),
    )
}

/// Reports that the node has no routes to pods of some others.
fn unreached(node: &Value, finding: fn(&'static str) -> Finding) -> Option<Finding> {
    let routes = condition(node, "NetworkUnavailable").filter(|found| text_at(found, "/reason") == UNREACHED)?;
    let finding = finding("The node does not reach the pods of some other nodes.");
    let finding = finding.fact(text_at(routes, "/message"));
    Some(finding.advise("see that the machines reach the addresses that `kubectl get nodes -o wide` shows, and that no pod range overlaps their networks"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::explain;

    #[test]
    fn what_is_wrong_with_a_node_is_told_with_its_reason() {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "message": "because"});
        let node =
            |conditions: &[serde_json::Value]| json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}});
        assert!(explain(&node(&[condition("Ready", "True"), condition("DiskPressure", "False")])).is_empty());
        for (wrong, words) in [
            (vec![condition("Ready", "False")], "is not Ready"),
            (vec![condition("Ready", "Unknown")], "does not answer"),
            (vec![], "does not answer"),
            (
                vec![condition("Ready", "True"), condition("PIDPressure", "True")],
                "PIDPressure",
            ),
            (
                vec![condition("Ready", "True"), condition("PodTrafficBlocked", "True")],
                "firewall",
            ),
        ] {
            let found = explain(&node(&wrong));
            let text = found[0].text(&[]);
            assert!(found.len() == 1 && found[0].trouble && text.contains(words), "{text}");
            assert!(wrong.is_empty() || text.contains("because"), "{text}");
        }
        let mut routes = condition("NetworkUnavailable", "False");
        routes["reason"] = json!("NodesUnreached");
        let found = explain(&node(&[condition("Ready", "True"), routes]));
        assert!(found.len() == 1 && found[0].text(&[]).contains("because"), "{found:?}");
    }
}
