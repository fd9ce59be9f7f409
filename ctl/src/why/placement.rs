//! Findings for the pod as a whole: scheduling, termination, readiness.

use serde_json::Value;

use super::finding::Finding;
use crate::client::api::text_at;

/// Parts of a scheduler's message, and advice for them.
const HINTS: [(&str, &str); 10] = [
    (
        "Insufficient ",
        "lower the pod's resource requests, remove other pods, or add a node (`kubectl describe nodes` shows what is requested)",
    ),
    (
        "persistentvolumeclaim \"",
        "create the claim, or correct its name in the pod's volumes (`kubectl get persistentvolumeclaims`)",
    ),
    (
        "node affinity/selector",
        "compare the pod's nodeSelector and affinity with the nodes' labels (`kubectl get nodes --show-labels`)",
    ),
    (
        "untolerated taint",
        "add a toleration to the pod, or remove the taint from the node (`kubectl describe node`)",
    ),
    (
        "free ports",
        "another pod holds the hostPort on every node: use another port, or none",
    ),
    (
        "Too many pods",
        "the nodes are full: remove pods, add a node, or let a node take more (`--max-pods` of its agent)",
    ),
    (
        "were unschedulable",
        "a node is cordoned: `kubectl uncordon NODE` lets pods onto it again",
    ),
    (
        "pod affinity rules",
        "no node has the neighbours that the pod's podAffinity asks for",
    ),
    (
        "anti-affinity rules",
        "every node has a neighbour that podAntiAffinity keeps away: add nodes or relax the rule",
    ),
    (
        "topology spread constraints",
        "the pod's topologySpreadConstraints leave no node: add nodes or use whenUnsatisfiable: ScheduleAnyway",
    ),
];

/// Returns a condition of the pod.
fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut all = pod.pointer("/status/conditions")?.as_array()?.iter();
    all.find(|condition| text_at(condition, "/type") == kind)
}

fn is_false(condition: Option<&Value>) -> bool {
    condition.is_some_and(|condition| text_at(condition, "/status") == "False")
}

/// Explains deletion, termination and scheduling of the pod.
pub(super) fn explain(pod: &Value) -> Vec<Finding> {
    deletion(pod)
        .into_iter()
        .chain(ended(pod))
        .chain(unplaced(pod))
        .collect()
}

fn deletion(pod: &Value) -> Option<Finding> {
    let when = text_at(pod, "/metadata/deletionTimestamp");
    if when.is_empty() {
        return None;
    }
    let finalizers: Vec<&str> = pod
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let deleted = format!("The pod is being deleted; it has time to end until {when}.");
    if finalizers.is_empty() {
        return Some(Finding::note(deleted).fact("It goes when its containers have ended."));
    }
    Some(
        Finding::trouble(deleted)
            .fact(format!(
                "It stays until its finalizers are gone: {}.",
                finalizers.join(", ")
            ))
            .advise(
                "find out who set them and why he does not remove them; take them off by hand only when he is gone",
            ),
    )
}

fn ended(pod: &Value) -> Option<Finding> {
    let (phase, reason) = (text_at(pod, "/status/phase"), text_at(pod, "/status/reason"));
    if phase == "Unknown" || reason == "NodeLost" {
        let node = text_at(pod, "/spec/nodeName");
        let finding = Finding::trouble("Nobody knows how the pod is: its node does not answer.");
        return Some(finding.advise(format!("look after the node: `kubectl describe node {node}`")));
    }
    if phase != "Failed" || reason.is_empty() {
        return None;
    }
    let finding =
        Finding::trouble(format!("The pod as a whole has failed: {reason}.")).fact(text_at(pod, "/status/message"));
    Some(match reason {
        "DeadlineExceeded" => {
            finding.advise("it ran longer than spec.activeDeadlineSeconds: raise it, or make the work shorter")
        }
        "Evicted" if wrote_too_much(text_at(pod, "/status/message")) => finding.advise(
            "it wrote more than it may: raise its ephemeral-storage limit or the volume's sizeLimit, or have it write less",
        ),
        "Evicted" => {
            finding.advise("its node was short of something: set requests that fit what it uses, or free the node")
        }
        _ => finding.advise("it is not started again: delete it, and create it anew once the cause is mended"),
    })
}

/// True if a pod was evicted for exceeding its own limit, and not because of pressure on its node.
pub(super) fn wrote_too_much(message: &str) -> bool {
    message.contains("exceeds the")
}

fn unplaced(pod: &Value) -> Option<Finding> {
    let ended = matches!(text_at(pod, "/status/phase"), "Succeeded" | "Failed");
    if ended || !text_at(pod, "/spec/nodeName").is_empty() {
        return None;
    }
    let Some(scheduled) = condition(pod, "PodScheduled").filter(|scheduled| is_false(Some(scheduled))) else {
        let scheduler = text_at(pod, "/spec/schedulerName");
        let finding = Finding::trouble(format!("The scheduler {scheduler} has not said a word about the pod."));
        return Some(finding.advise("check spec.schedulerName, and that this scheduler runs"));
    };
    if text_at(scheduled, "/reason") == "SchedulingGated" {
        let finding = Finding::trouble("The pod waits for its scheduling gates to be removed.");
        return Some(finding.advise("who set spec.schedulingGates must remove them"));
    }
    let message = text_at(scheduled, "/message");
    let mut finding = Finding::trouble("No node can take the pod.").fact(message);
    for (words, advice) in HINTS {
        let other = words == "pod affinity rules" && !message.replace("anti-affinity rules", "").contains(words);
        if message.contains(words) && !other {
            finding = finding.advise(advice);
        }
    }
    if message.starts_with("no nodes available") || message.starts_with("0/0 nodes") {
        finding = finding.advise("there is no node at all: start an agent, and see `kubectl get nodes`");
    }
    Some(finding)
}

/// Explains why a pod is not Ready although its containers are.
pub(super) fn readiness(pod: &Value) -> Vec<Finding> {
    let gates = pod.pointer("/spec/readinessGates").and_then(Value::as_array);
    let unmet = |gate: &Value| {
        let kind = text_at(gate, "/conditionType");
        let met = condition(pod, kind).is_some_and(|condition| text_at(condition, "/status") == "True");
        (!met).then(|| {
            let finding = Finding::trouble(format!("The readiness gate {kind} is not met."));
            finding.advise(format!(
                "whoever is responsible for it must set the pod's condition {kind} to True"
            ))
        })
    };
    let mut found: Vec<Finding> = gates.into_iter().flatten().filter_map(unmet).collect();
    let running = text_at(pod, "/status/phase") == "Running";
    let ready = condition(pod, "Ready");
    if found.is_empty() && running && is_false(ready) {
        let message = ready.map_or("", |ready| text_at(ready, "/message"));
        let node = text_at(pod, "/spec/nodeName");
        let finding = Finding::trouble("The pod runs, but is not Ready.").fact(message);
        found.push(finding.advise(format!("see whether its node is Ready: `kubectl get node {node}`")));
    }
    found
}
