//! Taints that pods tolerate.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};

/// The first taint with one of `effects` that is not tolerated.
pub fn untolerated<'a>(node: &'a Node, tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

/// True if a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty_or =
        |field: &Option<String>, value: &str| field.as_deref().is_none_or(|field| field.is_empty() || field == value);
    if !empty_or(&toleration.effect, &taint.effect) || !empty_or(&toleration.key, &taint.key) {
        return false;
    }
    let (ours, theirs) = (
        toleration.value.as_deref().unwrap_or_default(),
        taint.value.as_deref().unwrap_or_default(),
    );
    let numbers = || Some((theirs.parse::<i64>().ok()?, ours.parse::<i64>().ok()?));
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => ours == theirs,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(theirs, ours)| theirs < ours),
        "Gt" => numbers().is_some_and(|(theirs, ours)| theirs > ours),
        _ => false,
    }
}
