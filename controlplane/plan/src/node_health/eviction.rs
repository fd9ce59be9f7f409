//! `NoExecute` taints: which pods must leave, and when.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Node, Taint},
    jiff::Timestamp,
};
use serde_json::json;

use crate::{
    objects::{Meta as _, seconds, target},
    placement::filters::tolerates,
    pod::Pod,
    step::{Note, Outcome, PODS, PatchKind, Plan, Severity, Step},
};

/// Adds the evictions that are due, and the time of the next.
pub(super) fn plan(node: &Node, pods: &[&Pod], now: Timestamp, plan: &mut Plan) {
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let taints: Vec<&Taint> = taints.iter().filter(|taint| taint.effect == "NoExecute").collect();
    if taints.is_empty() {
        return;
    }
    let (mut marks, mut deletions) = (Vec::new(), Vec::new());
    for pod in pods.iter().filter(|pod| !pod.metadata.is_deleting()) {
        match stay(pod, &taints, now) {
            None => {}
            Some(Duration::ZERO) => {
                let [mark, delete] = evict(pod, now);
                marks.push(mark);
                deletions.push(delete);
            }
            Some(rest) => plan.again(rest),
        }
    }
    plan.stage(marks);
    plan.stage(deletions);
}

/// How much longer a pod may stay; `None` for ever.
fn stay(pod: &Pod, taints: &[&Taint], now: Timestamp) -> Option<Duration> {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let stays = taints.iter().map(|taint| {
        let matching: Vec<_> = tolerations
            .iter()
            .filter(|toleration| tolerates(toleration, taint))
            .collect();
        if matching.is_empty() {
            return Some(Duration::ZERO);
        }
        let seconds = matching
            .iter()
            .filter_map(|toleration| toleration.toleration_seconds)
            .min()?;
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let due = since.as_second().saturating_add(seconds.max(0));
        Some(Duration::from_secs(
            u64::try_from(due.saturating_sub(now.as_second())).unwrap_or(0),
        ))
    });
    stays.flatten().min()
}

/// The mark that says why, and the deletion.
fn evict(pod: &Pod, now: Timestamp) -> [Step; 2] {
    let about = target(PODS, pod);
    let mark = Step::Patch {
        target: about.clone(),
        subresource: Some("status"),
        kind: PatchKind::Strategic,
        body: Box::new(json!({
            "metadata": { "uid": pod.metadata.uid() },
            "status": { "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastProbeTime": null, "lastTransitionTime": seconds(now),
            }] },
        })),
        outcome: Outcome::default(),
    };
    let note = Note {
        about: about.reference(),
        severity: Severity::Normal,
        reason: "TaintManagerEviction",
        message: format!("Marking for deletion Pod {}/{}", about.namespace, about.name),
    };
    let delete = Step::Delete {
        target: about,
        resource_version: None,
        propagation: None,
        grace_seconds: None,
        outcome: Outcome {
            done: Some(note),
            failed: None,
        },
    };
    [mark, delete]
}
