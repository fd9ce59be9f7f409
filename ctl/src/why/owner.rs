//! Findings for workloads such as a Deployment: their conditions, and problems of their pods.

use serde_json::Value;

use super::finding::Finding;
use super::{events, is_warning, pod, told, verdict, workload};
use crate::client::api::{Api, text_at};
use crate::client::pods::Owned;
use crate::client::resource::Resource;
use crate::terminal;

/// Maximum number of pods that are explained; others are likely to have the same problem.
const EXPLAINED: usize = 3;

/// Returns whether there is a problem.
pub(super) async fn run(api: &Api, resource: &Resource, namespace: &str, owned: &Owned) -> anyhow::Result<bool> {
    let target = &owned.target;
    let mut all = Vec::new();
    for object in owned.makers.iter().chain([target]) {
        let selector = format!("involvedObject.uid={}", text_at(object, "/metadata/uid"));
        all.extend(events(api, namespace, &selector).await?);
    }
    let mut findings = conditions(target);
    let wrong = !findings.is_empty();
    findings.extend(workload::explain(&resource.kind, target, owned.pods.len(), &all, wrong));
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
    let warnings: Vec<&Value> = all.iter().filter(|event| is_warning(event)).collect();
    told(&findings, &warnings)?;
    for own in troubled.iter().take(EXPLAINED) {
        terminal::line("")?;
        pod::tell(api, own).await?;
    }
    if let Some(more) = troubled.len().checked_sub(EXPLAINED).filter(|more| *more > 0) {
        terminal::line(format!("\n{more} more of its pods are not well: skiff why pod/NAME"))?;
    }
    Ok(trouble)
}

/// Conditions that should be true; the others indicate failures.
const GOOD: [&str; 6] = [
    "Available",
    "Progressing",
    "Ready",
    "Complete",
    "ScalingActive",
    "AbleToScale",
];

fn conditions(target: &Value) -> Vec<Finding> {
    let conditions = target.pointer("/status/conditions").and_then(Value::as_array);
    let wrong = |condition: &&Value| {
        let (kind, status) = (text_at(condition, "/type"), text_at(condition, "/status"));
        // `FailureTarget` of a Job is repeated by its condition `Failed`.
        let fails = kind.contains("Fail") && kind != "FailureTarget";
        (GOOD.contains(&kind) && status == "False") || (fails && status == "True")
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
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::conditions;

    #[test]
    fn conditions_that_are_wrong_are_told() {
        let failing = json!({ "status": { "conditions": [
            { "type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated" },
            { "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota" },
            { "type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable" }] } });
        let told: Vec<String> = conditions(&failing).iter().map(|finding| finding.text(&[])).collect();
        assert!(
            told.len() == 2 && told[0].contains("FailedCreate") && told[0].contains("exceeded quota"),
            "{told:?}"
        );
    }
}
