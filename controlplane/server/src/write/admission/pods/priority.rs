//! `Priority`: a pod's class becomes a number, and there is one default class at most.

use api::Object;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use store::{Key, Prefix};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::admission::{Part, Review, pod_spec};

const GROUP: &str = "scheduling.k8s.io";
const PLURAL: &str = "priorityclasses";
const LOWER: &str = "PreemptLowerPriority";

/// Resolves a new pod's `priorityClassName`, or takes the cluster's default; an update that leaves
/// the results out keeps them (`plugin/pkg/admission/priority/admission.go`).
pub(in crate::write::admission) fn resolve(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let Some(spec) = pod_spec(object) else {
        return Ok(());
    };
    if let Some(old) = review.old {
        let old = old.as_any().downcast_ref::<Pod>().and_then(|pod| pod.spec.as_ref());
        spec.priority = spec.priority.or(old.and_then(|old| old.priority));
        if spec.preemption_policy.is_none() {
            spec.preemption_policy = old.and_then(|old| old.preemption_policy.clone());
        }
        return Ok(());
    }
    let wanted = spec.priority_class_name.clone().unwrap_or_default();
    let class = if wanted.is_empty() {
        default_class(review.context)
    } else {
        named(review.context, &wanted)
    };
    let (given, policy) = (spec.priority, spec.preemption_policy.clone());
    let value = class.as_ref().and_then(|class| class.value).unwrap_or(0);
    let preemption = class
        .as_ref()
        .and_then(|class| class.preemption_policy.clone())
        .unwrap_or_else(|| LOWER.to_owned());
    spec.priority = Some(value);
    spec.preemption_policy = Some(preemption.clone());
    if let Some(name) = class.as_ref().and_then(|class| class.metadata.name.clone()) {
        spec.priority_class_name = Some(name);
    } else if !wanted.is_empty() {
        return Err(review.forbid(object, format!("no PriorityClass with name {wanted} was found")));
    }
    if let Some(given) = given.filter(|given| *given != value) {
        let because = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        );
        return Err(review.forbid(object, because));
    }
    if let Some(policy) = policy.filter(|policy| *policy != preemption) {
        let because = format!(
            "the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; priority admission \
             controller computed {preemption} from the given PriorityClass name"
        );
        return Err(review.forbid(object, because));
    }
    Ok(())
}

/// A second default class is refused.
pub(in crate::write::admission) fn check_class(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    let Some(class) = object.as_any().downcast_ref::<PriorityClass>() else {
        return Ok(());
    };
    if review.part != Part::Object || class.global_default != Some(true) {
        return Ok(());
    }
    let Some(other) = default_class(review.context).and_then(|class| class.metadata.name) else {
        return Ok(());
    };
    if class.metadata.name.as_ref() == Some(&other) {
        return Ok(());
    }
    let because = format!("PriorityClass {other} is already marked as default. Only one default can exist");
    Err(review.forbid(object, because))
}

fn named(context: &Context, name: &str) -> Option<PriorityClass> {
    let key = Key::new(GROUP, PLURAL, "", name).ok()?;
    serde_json::from_slice(&context.store().get(&key)?.bytes).ok()
}

/// Default class; among several, the one with the lowest value.
fn default_class(context: &Context) -> Option<PriorityClass> {
    context
        .store()
        .present(&Prefix::resource(GROUP, PLURAL))
        .iter()
        .filter_map(|entry| serde_json::from_slice::<PriorityClass>(&entry.bytes).ok())
        .filter(|class| class.global_default == Some(true))
        .min_by_key(|class| class.value)
}
