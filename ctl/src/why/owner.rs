//! What has pods, such as a Deployment: its own conditions, and why its pods are not well.

use serde_json::Value;

use super::finding::Finding;
use super::{pod, told, verdict, warnings};
use crate::api::{Api, text_at};
use crate::pods::Owned;
use crate::resource::Resource;
use crate::terminal;

/// Pods with a trouble that are explained; the others are likely to have the same.
const EXPLAINED: usize = 3;

/// Answers whether something is wrong.
pub(super) async fn run(api: &Api, resource: &Resource, namespace: &str, owned: &Owned) -> anyhow::Result<bool> {
    let target = &owned.target;
    let findings = explain(target, owned.pods.len());
    let mut events = Vec::new();
    for object in owned.replica_sets.iter().chain([target]) {
        let selector = format!("involvedObject.uid={}", text_at(object, "/metadata/uid"));
        events.extend(warnings(api, namespace, &selector).await?);
    }
    let events: Vec<&Value> = events.iter().collect();
    let mut troubled: Vec<&Value> = Vec::new();
    for own in &owned.pods {
        if pod::explain(own, &[]).iter().any(|finding| finding.trouble) {
            troubled.push(own);
        }
    }
    let trouble = !troubled.is_empty() || findings.iter().any(|finding| finding.trouble);
    let name = text_at(target, "/metadata/name");
    terminal::line(terminal::bold(&format!(
        "{} {namespace}/{name} ({} of {} pods well): {}",
        resource.kind,
        owned.pods.len() - troubled.len(),
        owned.pods.len(),
        verdict(trouble)
    )))?;
    told(&findings, &events)?;
    for own in troubled.iter().take(EXPLAINED) {
        terminal::line("")?;
        pod::tell(api, own).await?;
    }
    if let Some(more) = troubled.len().checked_sub(EXPLAINED).filter(|more| *more > 0) {
        terminal::line(format!("\n{more} more of its pods are not well: skiff why pod/NAME"))?;
    }
    Ok(trouble)
}

/// Conditions that are well when they are true; the others tell of failures.
const GOOD: [&str; 6] = [
    "Available",
    "Progressing",
    "Ready",
    "Complete",
    "ScalingActive",
    "AbleToScale",
];

fn explain(target: &Value, pods: usize) -> Vec<Finding> {
    let conditions = target.pointer("/status/conditions").and_then(Value::as_array);
    let wrong = |condition: &&Value| {
        let (kind, status) = (text_at(condition, "/type"), text_at(condition, "/status"));
        (GOOD.contains(&kind) && status == "False") || (kind.contains("Fail") && status == "True")
    };
    let wrong = conditions.into_iter().flatten().filter(wrong).map(|condition| {
        let said = format!(
            "Its condition {} is {}: {}.",
            text_at(condition, "/type"),
            text_at(condition, "/status"),
            text_at(condition, "/reason")
        );
        Finding::trouble(said).fact(text_at(condition, "/message"))
    });
    let mut found: Vec<Finding> = wrong.collect();
    let wanted = target.pointer("/spec/replicas").and_then(Value::as_u64);
    match wanted {
        Some(0) => found.push(Finding::note("It asks for no pod: spec.replicas is 0.")),
        Some(wanted) if pods == 0 && found.is_empty() => found.push(
            Finding::trouble(format!("It asks for {wanted} pods, and there is none."))
                .advise("see whether its controller runs: the log of the control plane tells"),
        ),
        Some(_) | None => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::explain;

    #[test]
    fn conditions_and_missing_pods_are_told() {
        let failing = json!({"spec": {"replicas": 2}, "status": {"conditions": [
            {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"},
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"},
            {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"}]}});
        let texts = |target: &serde_json::Value, pods| -> Vec<String> {
            let found = explain(target, pods);
            found.iter().map(|finding| finding.text(&[])).collect()
        };
        let told = texts(&failing, 0);
        assert!(
            told.len() == 2 && told[0].contains("FailedCreate") && told[0].contains("exceeded quota"),
            "{told:?}"
        );
        assert!(texts(&json!({"spec": {"replicas": 2}}), 0)[0].contains("asks for 2 pods"));
        assert!(texts(&json!({"spec": {"replicas": 2}}), 2).is_empty());
        assert!(!explain(&json!({"spec": {"replicas": 0}}), 0)[0].trouble);
    }
}
