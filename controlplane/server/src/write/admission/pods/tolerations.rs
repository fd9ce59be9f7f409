//! `DefaultTolerationSeconds` and `TaintNodesByCondition`: how long pods stay on a node in trouble, and that nothing is
//! placed on a node before it is known to be well.

use api::Object;
use k8s_openapi::api::core::v1::{Node, PodSpec, Taint, Toleration};

use crate::request::failure::Failure;
use crate::write::admission::{Review, pod_spec};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Seconds that a pod stays on a node that is not ready or cannot be reached, unless it says otherwise.
const TOLERATION_SECONDS: i64 = 300;

/// Adds the default tolerations for unready and unreachable nodes unless the pod has them already;
/// on updates too, because an applied manifest does not contain them.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(in crate::write::admission) fn add(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_of_object() {
        return Ok(());
    }
    let Some(spec) = pod_spec(object) else {
        return Ok(());
    };
    for trouble in [NOT_READY, UNREACHABLE] {
        if !tolerates(spec, trouble) {
            spec.tolerations.get_or_insert_default().push(Toleration {
                key: Some(trouble.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(TOLERATION_SECONDS),
                ..Toleration::default()
            });
        }
    }
    Ok(())
}

fn tolerates(spec: &PodSpec, trouble: &str) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        (key == trouble || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    })
}

/// A new node takes no pods until its conditions say that it is ready.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(in crate::write::admission) fn taint(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(node) = object.as_any_mut().downcast_mut::<Node>() else {
        return Ok(());
    };
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    if !taints
        .iter()
        .any(|taint| taint.key == NOT_READY && taint.effect == "NoSchedule")
    {
        taints.push(Taint {
            key: NOT_READY.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    Ok(())
}
