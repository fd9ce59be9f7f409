//! Pods: their priority as a number, and how long they stay on a node that is in trouble.

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use store::{ListAt, Prefix};

use crate::context::Context;
use crate::failure::Failure;

/// Seconds that a pod stays on a node that is not ready or cannot be reached, unless it says otherwise.
const PATIENCE: i64 = 300;
const TROUBLES: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Classes that are always there.
const BUILT_IN: [(&str, i32); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

struct Class {
    name: String,
    value: i32,
    preemption: String,
}

/// Resolves `priorityClassName`, or takes the cluster's default.
pub(super) async fn resolve_priority(context: &Context, pod: &mut Pod) -> Result<(), Failure> {
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let wanted = spec.priority_class_name.clone().unwrap_or_default();
    let forbidden = |because: String| Failure::Forbidden {
        target: Some(context.target(&pod_name)),
        because,
        causes: Vec::new(),
    };
    let class = if wanted.is_empty() {
        default_class(context).await
    } else {
        Some(
            named(context, &wanted)
                .ok_or_else(|| forbidden(format!("no PriorityClass with name {wanted} was found")))?,
        )
    };
    let (value, preemption) = class
        .as_ref()
        .map_or((0, "PreemptLowerPriority"), |class| (class.value, &class.preemption));
    if spec.priority.is_some_and(|given| given != value) {
        return Err(forbidden(format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed \
             {value} from the given PriorityClass name",
            spec.priority.unwrap_or_default()
        )));
    }
    if spec
        .preemption_policy
        .as_deref()
        .is_some_and(|given| given != preemption)
    {
        return Err(forbidden(format!(
            "the string value of PreemptionPolicy ({}) must not be provided in pod spec; priority admission controller \
             computed {preemption} from the given PriorityClass name",
            spec.preemption_policy.clone().unwrap_or_default()
        )));
    }
    spec.priority = Some(value);
    spec.preemption_policy = Some(preemption.to_owned());
    if let Some(class) = class {
        spec.priority_class_name = Some(class.name);
    }
    Ok(())
}

fn named(context: &Context, name: &str) -> Option<Class> {
    if let Some((name, value)) = BUILT_IN.iter().find(|(own, _)| *own == name) {
        return Some(Class {
            name: (*name).to_owned(),
            value: *value,
            preemption: "PreemptLowerPriority".to_owned(),
        });
    }
    let key = store::Key::new("scheduling.k8s.io", "priorityclasses", "", name).ok()?;
    let entry = context.store().get(&key)?;
    serde_json::from_slice(&entry.bytes).ok().map(class)
}

/// Of several default classes the lowest counts, as upstream has it.
async fn default_class(context: &Context) -> Option<Class> {
    let prefix = Prefix::resource("scheduling.k8s.io", "priorityclasses");
    let list = context.store().list(&prefix, ListAt::Latest, None, None).await.ok()?;
    list.entries
        .iter()
        .filter_map(|entry| serde_json::from_slice::<PriorityClass>(&entry.bytes).ok())
        .filter(|class| class.global_default == Some(true))
        .min_by_key(|class| class.value)
        .map(class)
}

fn class(class: PriorityClass) -> Class {
    Class {
        name: class.metadata.name.unwrap_or_default(),
        value: class.value.unwrap_or_default(),
        preemption: class
            .preemption_policy
            .unwrap_or_else(|| "PreemptLowerPriority".to_owned()),
    }
}

/// Lets a pod stay for a while on a node in trouble, unless it tolerates that already.
pub(super) fn add_tolerations(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let missing: Vec<&str> = TROUBLES
        .into_iter()
        .filter(|trouble| !tolerates(spec, trouble))
        .collect();
    if missing.is_empty() {
        return;
    }
    spec.tolerations
        .get_or_insert_default()
        .extend(missing.into_iter().map(|trouble| Toleration {
            key: Some(trouble.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(PATIENCE),
            ..Toleration::default()
        }));
}

fn tolerates(spec: &PodSpec, trouble: &str) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        (key == trouble || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    })
}
