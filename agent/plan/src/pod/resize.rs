//! In-place pod resize: allocated resources, actual resources, and the decision whether the node
//! can allocate the desired ones.

use std::collections::BTreeMap;

use api::pod::level;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Map, Value, json};

use crate::node::admission::{self, Host};
use crate::pod::pods;

/// Requests and limits by container; pod-level ones at [`WHOLE`].
pub type Resources = BTreeMap<String, ResourceRequirements>;

/// Key of the pod-level resources: no container has this name.
pub const WHOLE: &str = "";

/// Decision about a resize request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node can allocate it.
    Fits,
    /// The node can never allocate it.
    Infeasible(String),
    /// The node cannot allocate it now.
    Deferred(String),
}

/// A resize that is not allocated yet, for the condition `PodResizePending`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Infeasible` or `Deferred`.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// The pod's generation.
    pub generation: Option<i64>,
}

/// Resize that is allocated and not yet actuated, for the condition `PodResizeInProgress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Error of the last attempt to actuate it.
    pub error: Option<String>,
    /// The pod's generation.
    pub generation: Option<i64>,
}

fn own(container: &Container) -> ResourceRequirements {
    let own = container.resources.clone().unwrap_or_default();
    ResourceRequirements { claims: None, ..own }
}

/// Resources that the pod's spec asks for.
pub fn wanted(pod: &Pod) -> Resources {
    let whole = pod.spec.as_ref().and_then(level::own).cloned();
    let whole = whole.map(|whole| (WHOLE.to_owned(), whole));
    let containers = pods::all_containers(pod).map(|container| (container.name.clone(), own(container)));
    whole.into_iter().chain(containers).collect()
}

/// Allocated resources in the status that an earlier agent wrote; the spec's resources where it
/// wrote none.
pub fn told(pod: &Pod) -> Resources {
    let mut all = wanted(pod);
    for (name, resources) in &mut all {
        let known = if name == WHOLE {
            pod.status.as_ref().and_then(|status| status.resources.clone())
        } else {
            pods::stored_status(pod, name).and_then(|status| status.resources.clone())
        };
        if let Some(known) = known {
            *resources = known;
        }
    }
    all
}

/// True if two containers' resources are equal.
fn same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let read = |amounts: &Option<BTreeMap<String, Text>>| -> BTreeMap<String, Quantity> {
        let amounts = amounts.iter().flatten();
        amounts
            .map(|(name, amount)| (name.clone(), Quantity::of(amount)))
            .collect()
    };
    read(&one.requests) == read(&other.requests) && read(&one.limits) == read(&other.limits)
}

/// Returns the containers whose resources differ between two lists.
pub fn changed<'a>(one: &'a Resources, other: &'a Resources) -> impl Iterator<Item = &'a str> {
    let differs =
        |(name, own): &(&String, &ResourceRequirements)| other.get(*name).is_none_or(|other| !same(own, other));
    one.iter().filter(differs).map(|(name, _)| name.as_str())
}

/// Returns the pod with its allocated resources in place of the desired ones; `None` when they are
/// equal.
pub fn given(pod: &Pod, allocated: &Resources) -> Option<Pod> {
    changed(&wanted(pod), allocated).next()?;
    let mut pod = pod.clone();
    let spec = pod.spec.as_mut()?;
    if let Some(whole) = allocated.get(WHOLE) {
        spec.resources = Some(whole.clone());
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        if let Some(resources) = allocated.get(&container.name) {
            let claims = container.resources.take().and_then(|own| own.claims);
            container.resources = Some(ResourceRequirements {
                claims,
                ..resources.clone()
            });
        }
    }
    Some(pod)
}

/// True if a pod asks for more of any resource than it was allocated.
pub fn asks_for_more(pod: &Pod, given: &Pod) -> bool {
    let requests = |pod: &Pod| pod.spec.as_ref().map(api::pod::requests).unwrap_or_default();
    let given = requests(given);
    let more = |(name, amount): (&String, &Quantity)| given.get(name).is_none_or(|own| amount > own);
    requests(pod).iter().any(more)
}

/// Decides whether the node can allocate a pod's resize request.
pub fn judge(pod: &Pod, host: &Host) -> Verdict {
    let Some(spec) = &pod.spec else { return Verdict::Fits };
    let requests = api::pod::requests(spec);
    // Memory comes first.
    for (resource, scale) in [("memory", 1000), ("cpu", 1)] {
        let wanted = requests.get(resource).map_or(0, |amount| amount.milli());
        let capacity = host.allocatable.get(resource).copied().unwrap_or(i64::MAX);
        if wanted > capacity {
            let (wanted, capacity) = (wanted / scale, capacity / scale);
            return Verdict::Infeasible(format!(
                "Node didn't have enough capacity: {resource}, requested: {wanted}, capacity: {capacity}"
            ));
        }
    }
    match admission::room(spec, host) {
        None => Verdict::Fits,
        Some(refusal) => Verdict::Deferred(refusal.message.trim_start_matches("Pod was rejected: ").to_owned()),
    }
}

/// Effective resources of a container: where it has no limit, the pod-level limit applies.
fn effective(mut own: ResourceRequirements, whole: Option<&ResourceRequirements>) -> ResourceRequirements {
    let limits = whole.and_then(|whole| whole.limits.as_ref());
    for (name, amount) in limits.into_iter().flatten() {
        let own = own.limits.get_or_insert_default();
        own.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    own
}

/// True if a container must be restarted for a change of its allocated resources.
pub fn restarts(pod: &Pod, container: &Container, given: &Resources) -> bool {
    let Some(before) = given.get(&container.name) else {
        return false;
    };
    let before = effective(before.clone(), given.get(WHOLE));
    let now = effective(own(container), pod.spec.as_ref().and_then(level::own));
    let amount = |amounts: &Option<BTreeMap<String, Text>>, name: &str| {
        let amounts = amounts.as_ref()?;
        amounts.get(name).map(Quantity::of)
    };
    let differs = |name: &str| {
        amount(&now.requests, name) != amount(&before.requests, name)
            || amount(&now.limits, name) != amount(&before.limits, name)
    };
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|policy| policy.restart_policy == "RestartContainer" && differs(&policy.resource_name))
}

/// Message of a resize event: `Pod resize completed: {…}`.
pub fn message(what: &str, pod: &Pod, error: Option<&str>) -> String {
    let list = |containers: &[Container]| -> Vec<Value> {
        let each = containers.iter();
        each.map(|container| json!({"name": container.name, "resources": own(container)}))
            .collect()
    };
    let mut summary = Map::new();
    if let Some(whole) = pod.spec.as_ref().and_then(level::own) {
        summary.insert("resources".to_owned(), json!(whole));
    }
    for (name, containers) in [
        ("initContainers", list(pods::init_containers(pod))),
        ("containers", list(pods::main_containers(pod))),
    ] {
        if !containers.is_empty() {
            summary.insert(name.to_owned(), Value::from(containers));
        }
    }
    summary.insert("generation".to_owned(), json!(pod.metadata.generation.unwrap_or(0)));
    if let Some(error) = error {
        summary.insert("error".to_owned(), json!(error));
    }
    format!("Pod resize {what}: {}", Value::Object(summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(cpu: &str, memory: &str, policy: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"generation": 2}, "spec": {"containers": [{
            "name": "a",
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}],
        }]}}))
        .unwrap()
    }

    #[test]
    fn a_node_gives_what_it_has() {
        let other = pod("1500m", "1Gi", "NotRequired");
        let host = Host {
            pods: 10,
            allocatable: BTreeMap::from([("cpu".to_owned(), 2000), ("memory".to_owned(), (4 << 30) * 1000)]),
            others: vec![std::sync::Arc::new(other)],
            ..Host::default()
        };
        let infeasible = |text: &str| Verdict::Infeasible(format!("Node didn't have enough capacity: {text}"));
        let deferred = |text: &str| Verdict::Deferred(format!("Node didn't have enough resource: {text}"));
        for (cpu, memory, expected) in [
            ("500m", "3Gi", Verdict::Fits),
            (
                "501m",
                "3Gi",
                deferred("cpu, requested: 501, used: 1500, capacity: 2000"),
            ),
            (
                "1m",
                "3073Mi",
                deferred("memory, requested: 3222274048, used: 1073741824, capacity: 4294967296"),
            ),
            ("2001m", "1Gi", infeasible("cpu, requested: 2001, capacity: 2000")),
            (
                "3",
                "5Gi",
                infeasible("memory, requested: 5368709120, capacity: 4294967296"),
            ),
        ] {
            assert_eq!(
                judge(&pod(cpu, memory, "NotRequired"), &host),
                expected,
                "{cpu} {memory}"
            );
        }
    }

    #[test]
    fn a_pod_is_given_more_as_a_whole() {
        let with = |cpu: &str| {
            let mut pod = pod("100m", "64Mi", "NotRequired");
            let own = json!({"requests": {"cpu": cpu}, "limits": {"cpu": "1"}});
            pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(own).unwrap());
            pod
        };
        let (small, large) = (with("200m"), with("300m"));
        let allocated = wanted(&small);
        assert_eq!(changed(&wanted(&large), &allocated).collect::<Vec<_>>(), [WHOLE]);
        assert_eq!(wanted(&given(&large, &allocated).unwrap()), allocated);
        let mut told_small = large.clone();
        told_small.status.get_or_insert_default().resources = small.spec.unwrap().resources;
        assert_eq!(told(&told_small), allocated);
    }

    #[test]
    fn a_container_without_limits_has_those_of_its_pod() {
        let whole = |memory: &str| -> Pod {
            let mut pod = pod("100m", "64Mi", "RestartContainer");
            let spec = pod.spec.as_mut().unwrap();
            spec.containers[0].resources = None;
            let whole = json!({"limits": {"cpu": "1", "memory": memory}});
            spec.resources = Some(serde_json::from_value(whole).unwrap());
            pod
        };
        let again = |pod: &Pod, given: &Resources| restarts(pod, &pod.spec.clone().unwrap().containers[0], given);
        let (small, large) = (whole("64Mi"), whole("128Mi"));
        assert!(again(&large, &wanted(&small)));
        assert!(!again(&small, &wanted(&small)));
        let with_own = |mut pod: Pod| {
            let own = json!({"limits": {"memory": "32Mi"}});
            pod.spec.as_mut().unwrap().containers[0].resources = Some(serde_json::from_value(own).unwrap());
            pod
        };
        assert!(!again(&with_own(large), &wanted(&with_own(small))));
    }

    #[test]
    fn what_is_given_stands_until_more_is_granted() {
        let (small, large) = (
            pod("100m", "64Mi", "RestartContainer"),
            pod("0.2", "64Mi", "RestartContainer"),
        );
        let allocated = wanted(&small);
        assert_eq!(given(&small, &allocated), None);
        let same_amounts = pod("0.1", "65536Ki", "RestartContainer");
        assert_eq!(given(&same_amounts, &allocated), None, "only written otherwise");
        let shown = given(&large, &allocated).unwrap();
        assert_eq!(wanted(&shown), allocated);
        let mut initial = large.clone();
        let spec = initial.spec.as_mut().unwrap();
        spec.init_containers = Some(std::mem::take(&mut spec.containers));
        assert_eq!(wanted(&given(&initial, &allocated).unwrap()), allocated);
        let again = |pod: &Pod, given: &Resources| restarts(pod, &pod.spec.clone().unwrap().containers[0], given);
        assert!(!again(&large, &allocated), "only the processor changed");
        let larger = pod("0.1", "128Mi", "RestartContainer");
        assert!(again(&larger, &allocated));
        assert!(!again(&pod("0.1", "128Mi", "NotRequired"), &allocated));
        assert_eq!(
            message("completed", &small, None),
            "Pod resize completed: {\"containers\":[{\"name\":\"a\",\"resources\":{\"limits\":{\"memory\":\"64Mi\"},\
             \"requests\":{\"cpu\":\"100m\",\"memory\":\"64Mi\"}}}],\"generation\":2}"
        );
    }
}
