//! Effective requests of a pod during a resize.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::level;
use crate::value::quantity::Quantity;

type Amounts = BTreeMap<String, Text>;

/// Spec with effective requests: for each resource the maximum of the requested, allocated and
/// actual amounts; an infeasible resize does not count. None if they equal the requests.
pub fn as_told(spec: &PodSpec, status: &PodStatus) -> Option<PodSpec> {
    let mut pending = status.conditions.iter().flatten();
    let pending = pending.find(|condition| condition.type_ == "PodResizePending");
    let never = pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"));
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let known: BTreeMap<&str, &ContainerStatus> = lists
        .into_iter()
        .flatten()
        .flatten()
        .map(|known| (known.name.as_str(), known))
        .collect();
    let mut told: Option<PodSpec> = None;
    // Kubelets report sums of containers, too: only resources that the pod itself requests count
    // (`PodRequests`, `component-helpers/resource/helpers.go`).
    let own = level::own(spec).and_then(|own| own.requests.as_ref());
    let whole = own.and_then(|own| {
        let allocated = status.allocated_resources.as_ref();
        let mut whole = most(spec.resources.as_ref(), status.resources.as_ref(), allocated, never)?;
        whole.retain(|name, _| own.contains_key(name));
        Some(whole)
    });
    if let Some(whole) = whole {
        let told = told.get_or_insert_with(|| spec.clone());
        told.resources.get_or_insert_default().requests = Some(whole);
    }
    let count = spec.init_containers.as_ref().map_or(0, Vec::len);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for (index, container) in containers.enumerate() {
        let Some(known) = known.get(container.name.as_str()) else {
            continue;
        };
        let (own, allocated) = (container.resources.as_ref(), known.allocated_resources.as_ref());
        let Some(requests) = most(own, known.resources.as_ref(), allocated, never) else {
            continue;
        };
        let told = told.get_or_insert_with(|| spec.clone());
        let container = match index.checked_sub(count) {
            None => told.init_containers.get_or_insert_default().get_mut(index),
            Some(index) => told.containers.get_mut(index),
        };
        if let Some(container) = container {
            container.resources.get_or_insert_default().requests = Some(requests);
        }
    }
    told
}

/// Effective requests, if they differ from `own`.
fn most(
    own: Option<&ResourceRequirements>,
    actual: Option<&ResourceRequirements>,
    allocated: Option<&Amounts>,
    never: bool,
) -> Option<Amounts> {
    let actual = actual?.requests.as_ref();
    let own = own.and_then(|own| own.requests.as_ref());
    if actual == own && allocated == own {
        return None;
    }
    let mut all = own.filter(|_| !never).cloned().unwrap_or_default();
    for (name, amount) in actual.into_iter().chain(allocated).flatten() {
        let more = all
            .get(name)
            .is_none_or(|known| Quantity::of(known) < Quantity::of(amount));
        if more {
            all.insert(name.clone(), amount.clone());
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::workload::pod::requests;

    fn cpu(amount: &str) -> Value {
        json!({"requests": {"cpu": amount}})
    }

    fn takes(spec: &Value, status: &Value) -> String {
        let pod: Pod = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
        let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
        let told = as_told(&spec, &status).unwrap_or(spec);
        requests(&told).get("cpu").map_or_else(String::new, ToString::to_string)
    }

    /// Pod with a requested, an allocated and an actual amount, and the reason of a pending resize.
    fn container(list: &str, asked: &str, allocated: &str, actual: &str, reason: &str) -> String {
        let name = if list == "containers" {
            "containerStatuses"
        } else {
            "initContainerStatuses"
        };
        let mut spec = json!({"containers": []});
        spec[list] = json!([{"name": "a", "resources": cpu(asked), "restartPolicy": "Always"}]);
        let mut status = json!({"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]});
        status[name] = json!([{
            "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": cpu(actual), "allocatedResources": {"cpu": allocated},
        }]);
        takes(&spec, &status)
    }

    #[test]
    fn the_most_counts_but_not_what_can_never_be() {
        for list in ["containers", "initContainers"] {
            let of = |asked, allocated, actual, reason| container(list, asked, allocated, actual, reason);
            assert_eq!(of("150m", "150m", "150m", ""), "150m");
            assert_eq!(of("200", "150m", "150m", "Deferred"), "200");
            assert_eq!(of("200", "150m", "150m", "Infeasible"), "150m");
            assert_eq!(of("200", "150m", "300m", "Infeasible"), "300m");
            assert_eq!(of("100m", "150m", "200m", ""), "200m", "it still has them");
            assert_eq!(of("100m", "250m", "200m", ""), "250m");
        }
    }

    #[test]
    fn a_pod_as_a_whole_counts_alike() {
        let spec = json!({"resources": cpu("200"), "containers": [{"name": "a", "resources": cpu("1")}]});
        let status = |reason: &str| {
            json!({
                "resources": cpu("2"), "allocatedResources": {"cpu": "3"},
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            })
        };
        assert_eq!(takes(&spec, &status("Infeasible")), "3");
        assert_eq!(takes(&spec, &status("Deferred")), "200");
        assert_eq!(takes(&spec, &json!({})), "200", "nobody told yet");
        let plain = json!({"containers": spec["containers"]});
        assert_eq!(takes(&plain, &status("")), "1", "only its containers request");
    }
}
