//! Pod-level resources (`spec.resources`), which take precedence over those of the containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Resources, container_limits, container_requests};
use crate::value::quantity::Quantity;

const PAGES: &str = "hugepages-";

/// True if the resource is supported at pod level.
pub fn is_shared(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(PAGES)
}

/// Pod-level resources, if set.
pub fn own(spec: &PodSpec) -> Option<&ResourceRequirements> {
    let own = spec.resources.as_ref()?;
    let mut names = own.requests.iter().chain(&own.limits).flat_map(BTreeMap::keys);
    names.any(|name| is_shared(name)).then_some(own)
}

/// Replaces the sums over the containers by the pod-level amounts.
pub(super) fn overrule(total: &mut Resources, own: Option<&BTreeMap<String, Text>>) {
    let shared = own.into_iter().flatten().filter(|(name, _)| is_shared(name));
    for (name, amount) in shared {
        total.insert(name.clone(), Quantity::of(amount));
    }
}

/// Sets defaults of pod-level resources, if there are any: huge page limits and requests are the
/// sums over the containers, and requests of resources that no container requests are the limits.
pub(super) fn set_defaults(spec: &mut PodSpec) {
    let given = |own: &ResourceRequirements| {
        let mut lists = [&own.limits, &own.requests].into_iter().flatten();
        lists.any(|list| !list.is_empty())
    };
    if !spec.resources.as_ref().is_some_and(given) {
        return;
    }
    let (requests, limits) = (container_requests(spec), container_limits(spec));
    let Some(own) = &mut spec.resources else { return };
    let asked = own.requests.clone().unwrap_or_default();
    for (name, amount) in limits.iter().filter(|(name, _)| name.starts_with(PAGES)) {
        if !asked.contains_key(name) {
            let all = own.limits.get_or_insert_default();
            all.entry(name.clone()).or_insert_with(|| amount.to_text());
        }
    }
    let Some(limits) = own.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let mut all = asked;
    for (name, amount) in requests {
        if matches!(name.as_str(), "cpu" | "memory") {
            all.entry(name).or_insert_with(|| amount.to_text());
        }
    }
    for (name, amount) in limits.iter().filter(|(name, _)| is_shared(name)) {
        all.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    own.requests = (!all.is_empty()).then_some(all);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workload::pod::{limits, qos, requests};

    fn spec(own: &Value, containers: &Value) -> PodSpec {
        let containers: Vec<Value> = containers.as_array().into_iter().flatten().cloned().collect();
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|resources| json!({"name": "a", "resources": resources}))
            .collect();
        let mut spec: PodSpec = serde_json::from_value(json!({"containers": containers, "resources": own})).unwrap();
        set_defaults(&mut spec);
        spec
    }

    fn text(amounts: &Resources) -> String {
        let each = amounts.iter().map(|(name, amount)| format!("{name}={amount}"));
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn requests_of_a_pod_come_from_its_containers_and_then_from_its_limits() {
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let bare = spec(&limits, &json!([{}]));
        assert_eq!(text(&requests(&bare)), "cpu=1 memory=1Gi");
        let asks = json!([{"requests": {"cpu": "100m", "ephemeral-storage": "1Gi"}}, {"requests": {"cpu": "200m"}}]);
        let some = spec(&limits, &asks);
        assert_eq!(text(&requests(&some)), "cpu=300m ephemeral-storage=1Gi memory=1Gi");
        let both = spec(&json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}), &asks);
        assert_eq!(text(&requests(&both)), "cpu=500m ephemeral-storage=1Gi");
        // Nothing is added without limits.
        let only = spec(&json!({"requests": {"memory": "1Gi"}}), &asks);
        assert_eq!(text(&requests(&only)), "cpu=300m ephemeral-storage=1Gi memory=1Gi");
        assert_eq!(only.resources.unwrap().requests.unwrap().len(), 1);
        let pages = json!([{"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}]);
        let pages = spec(&json!({"limits": {"memory": "2Gi"}}), &pages);
        assert_eq!(text(&super::super::limits(&pages)), "hugepages-2Mi=4Mi memory=2Gi");
        assert_eq!(text(&requests(&pages)), "hugepages-2Mi=4Mi memory=2Gi");
    }

    #[test]
    fn limits_and_class_of_a_pod_are_its_own() {
        let both = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let own = json!([{"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}]);
        assert_eq!(text(&limits(&spec(&both, &own))), "cpu=1 memory=1Gi");
        assert_eq!(qos(&spec(&both, &own)), "Burstable", "the request is the containers'");
        assert_eq!(qos(&spec(&both, &json!([{}]))), "Guaranteed");
        assert_eq!(qos(&spec(&json!({"limits": {"cpu": "1"}}), &json!([{}]))), "Burstable");
        assert_eq!(
            qos(&spec(&json!({"requests": {"memory": "1"}}), &json!([{}]))),
            "Burstable"
        );
        assert_eq!(qos(&spec(&json!({}), &json!([{}]))), "BestEffort");
    }
}
