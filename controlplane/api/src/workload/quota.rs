//! Usage of a `ResourceQuota` by objects, as admission charges it and the quota controller counts
//! it.

mod scope;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::object::Object;
use crate::value::quantity::Quantity;
use crate::workload::pod::{self, Resources};
pub use scope::covers;

/// Resources that also have a quota under their own name.
const COUNTED: [&str; 6] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
/// Compute resources that each container must specify if a quota limits them.
const STATED: [&str; 6] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
];
/// Infix of a storage class's quota names, after the class's name.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Suffix of the quota name of a device class, after the class's name.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// Number of devices that a request for all of them counts as: the most that a claim can get
/// (`AllocationResultsMaxSize` of `pkg/apis/resource/types.go`).
const ALL_DEVICES: i64 = 32;

/// `count/pods`, `count/deployments.apps`
pub fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() {
        format!("count/{plural}")
    } else {
        format!("count/{plural}.{group}")
    }
}

/// True if a quota name concerns objects of a resource.
pub fn is_about(group: &str, plural: &str, name: &str) -> bool {
    if name.starts_with("count/") {
        return name == count_name(group, plural);
    }
    if !group.is_empty() {
        return (group, plural) == ("resource.k8s.io", "resourceclaims") && name.ends_with(DEVICES);
    }
    if name == plural {
        return plural == "pods" || COUNTED.contains(&plural);
    }
    match plural {
        "pods" => {
            let requested = name.strip_prefix("requests.").is_some_and(|of| of != "storage");
            let computing = ["cpu", "memory", "ephemeral-storage"].contains(&name);
            computing || (requested && !name.contains(OF_CLASS)) || name.starts_with("limits.") || is_huge(name)
        }
        "services" => name == "services.nodeports" || name == "services.loadbalancers",
        "persistentvolumeclaims" => name == "requests.storage" || name.contains(OF_CLASS),
        _ => false,
    }
}

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Usage of an object, by the names that a quota may limit.
pub fn usage(group: &str, plural: &str, object: &dyn Object) -> Resources {
    let one = Quantity::units(1);
    let mut usage = Resources::from([(count_name(group, plural), one)]);
    if group.is_empty() && COUNTED.contains(&plural) {
        usage.insert(plural.to_owned(), one);
    }
    let object = object.as_any();
    if let Some(pod) = object.downcast_ref::<Pod>() {
        of_pod(pod, &mut usage);
    } else if let Some(service) = object.downcast_ref::<Service>() {
        of_service(service, &mut usage);
    } else if let Some(claim) = object.downcast_ref::<PersistentVolumeClaim>() {
        of_claim(claim, &mut usage);
    } else if let Some(claim) = object.downcast_ref::<ResourceClaim>() {
        of_devices(claim, &mut usage);
    }
    usage
}

/// Adds the usage of a pod. A terminated pod counts as an object, but uses nothing.
fn of_pod(pod: &Pod, usage: &mut Resources) {
    let Some(spec) = pod.spec.as_ref().filter(|_| !pod::is_terminal(pod)) else {
        return;
    };
    usage.insert("pods".to_owned(), Quantity::units(1));
    computing(&pod::requests(spec), &pod::limits(spec), usage);
}

fn computing(requests: &Resources, limits: &Resources, usage: &mut Resources) {
    for (name, amount) in requests {
        let basic = ["cpu", "memory", "ephemeral-storage"].contains(&name.as_str());
        if basic || is_huge(name) {
            usage.insert(name.clone(), *amount);
        }
        if basic || is_huge(name) || is_extended(name) {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits {
        if ["cpu", "memory", "ephemeral-storage"].contains(&name.as_str()) {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
}

/// True for an extended resource such as `nvidia.com/gpu`.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

fn of_service(service: &Service, usage: &mut Resources) {
    let Some(spec) = &service.spec else { return };
    let ports = spec.ports.iter().flatten();
    let taken = match spec.type_.as_deref() {
        Some("NodePort") => ports.count(),
        Some("LoadBalancer") => {
            usage.insert("services.loadbalancers".to_owned(), Quantity::units(1));
            let allocates = spec.allocate_load_balancer_node_ports != Some(false);
            ports
                .filter(|port| allocates || port.node_port.is_some_and(|number| number != 0))
                .count()
        }
        _ => 0,
    };
    if taken > 0 {
        let taken = i64::try_from(taken).unwrap_or(i64::MAX);
        usage.insert("services.nodeports".to_owned(), Quantity::units(taken));
    }
}

fn of_claim(claim: &PersistentVolumeClaim, usage: &mut Resources) {
    let Some(spec) = &claim.spec else { return };
    let requests = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage")).map(Quantity::of);
    // An expansion that was taken back may have allocated more (`getStorageUsage` of
    // `pkg/quota/v1/evaluator/core/persistent_volume_claims.go`).
    let status = claim.status.as_ref();
    let allocated = status.and_then(|status| status.allocated_resources.as_ref()?.get("storage"));
    let storage = storage.max(storage.and(allocated.map(Quantity::of)));
    let annotations = claim.metadata.annotations.as_ref();
    let class = annotations
        .and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"))
        .or(spec.storage_class_name.as_ref())
        .filter(|class| !class.is_empty());
    if let Some(storage) = storage {
        usage.insert("requests.storage".to_owned(), storage);
    }
    if let Some(class) = class {
        usage.insert(format!("{class}{OF_CLASS}persistentvolumeclaims"), Quantity::units(1));
        if let Some(storage) = storage {
            usage.insert(format!("{class}{OF_CLASS}requests.storage"), storage);
        }
    }
}

/// Adds the devices of a claim: of a request with alternatives the most of each class
/// (`pkg/quota/v1/evaluator/core/resource_claims.go`).
fn of_devices(claim: &ResourceClaim, usage: &mut Resources) {
    let requests = claim
        .spec
        .devices
        .as_ref()
        .and_then(|devices| devices.requests.as_ref());
    for request in requests.into_iter().flatten() {
        let exactly = request.exactly.iter();
        let exactly = exactly.map(|own| (&own.device_class_name, &own.allocation_mode, own.count));
        let choices = request.first_available.iter().flatten();
        let choices = choices.map(|own| (&own.device_class_name, &own.allocation_mode, own.count));
        let mut most: BTreeMap<&String, i64> = BTreeMap::new();
        for (class, mode, count) in exactly.chain(choices) {
            let devices = match mode.as_deref() {
                Some("ExactCount") => count.unwrap_or(0),
                Some("All") => ALL_DEVICES,
                Some(_) | None => 0,
            };
            let known = most.entry(class).or_default();
            *known = devices.max(*known);
        }
        for (class, devices) in most {
            let sum = usage.entry(format!("{class}{DEVICES}")).or_insert(Quantity::ZERO);
            *sum = sum.plus(Quantity::units(devices));
        }
    }
}

/// Message about requests and limits that a quota with these names requires of every container and
/// that a pod lacks, in upstream's words.
pub fn unstated<'a>(object: &dyn Object, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let spec = object.as_any().downcast_ref::<Pod>()?.spec.as_ref()?;
    let demanded: Vec<&str> = names.filter(|name| STATED.contains(name)).collect();
    let read = |amounts: Option<&BTreeMap<String, Text>>| -> Resources {
        let amounts = amounts.into_iter().flatten();
        amounts
            .map(|(name, amount)| (name.clone(), Quantity::of(amount)))
            .collect()
    };
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // Pod-level resources need not be repeated by the containers.
    let mut stated = Resources::new();
    if let Some(own) = pod::level::own(spec) {
        computing(&read(own.requests.as_ref()), &read(own.limits.as_ref()), &mut stated);
    }
    let demanded: Vec<&str> = demanded
        .into_iter()
        .filter(|demand| !stated.contains_key(*demand))
        .collect();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in containers {
        let Container { name, resources, .. } = container;
        let resources = resources.as_ref();
        let requests = read(resources.and_then(|resources| resources.requests.as_ref()));
        let limits = read(resources.and_then(|resources| resources.limits.as_ref()));
        let mut stated = Resources::new();
        computing(&requests, &limits, &mut stated);
        for demand in demanded.iter().filter(|demand| !stated.contains_key(**demand)) {
            missing.entry(demand).or_default().insert(name);
        }
    }
    if missing.is_empty() {
        return None;
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(resource, containers)| {
            let containers: Vec<&str> = containers.into_iter().collect();
            format!("{resource} for: {}", containers.join(","))
        })
        .collect();
    Some(format!("must specify {}", parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use serde_json::{Value, json};

    use super::{covers, is_about, unstated, usage};
    use crate::kind::Kind;

    fn taken<K: crate::object::Object + serde::de::DeserializeOwned>(plural: &str, object: Value) -> String {
        taken_of::<K>("", plural, object)
    }

    fn taken_of<K: crate::object::Object + serde::de::DeserializeOwned>(
        group: &str,
        plural: &str,
        object: Value,
    ) -> String {
        let object: K = serde_json::from_value(object).unwrap();
        let usage = usage(group, plural, &object);
        assert!(usage.keys().all(|name| is_about(group, plural, name)), "{usage:?}");
        let texts: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        texts.join(" ")
    }

    #[test]
    fn what_objects_take() {
        let resources = json!({"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"cpu": "2"}});
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        assert_eq!(
            taken::<Pod>("pods", pod.clone()),
            "count/pods=1 cpu=1 limits.cpu=2 pods=1 requests.cpu=1 requests.nvidia.com/gpu=2"
        );
        let mut ended = pod;
        ended["status"] = json!({"phase": "Succeeded"});
        assert_eq!(taken::<Pod>("pods", ended), "count/pods=1");
        let service = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}});
        assert_eq!(
            taken::<Service>("services", service),
            "count/services=1 services=1 services.loadbalancers=1 services.nodeports=2"
        );
        let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            taken::<PersistentVolumeClaim>("persistentvolumeclaims", claim),
            "count/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
             fast.storageclass.storage.k8s.io/requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi"
        );
    }

    #[test]
    fn a_claim_takes_the_storage_that_was_allocated() {
        for (allocated, expected) in [("2Gi", "2Gi"), ("1", "1Gi")] {
            let claim = json!({
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"allocatedResources": {"storage": allocated}},
            });
            assert_eq!(
                taken::<PersistentVolumeClaim>("persistentvolumeclaims", claim),
                format!("count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage={expected}")
            );
        }
    }

    #[test]
    fn a_claim_takes_devices_of_classes() {
        let some = |count: i64| json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
        let all = json!({"deviceClassName": "gpu", "allocationMode": "All"});
        let other = json!({"deviceClassName": "nic", "allocationMode": "ExactCount", "count": 1});
        let claim = json!({"spec": {"devices": {"requests": [
            {"exactly": some(2)},
            {"firstAvailable": [all, other, some(4)]},
        ]}}});
        assert_eq!(
            taken_of::<ResourceClaim>("resource.k8s.io", "resourceclaims", claim),
            "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=34 \
             nic.deviceclass.resource.k8s.io/devices=1"
        );
    }

    #[test]
    fn containers_state_what_a_quota_limits() {
        let pod = json!({"spec": {"containers": [
            {"name": "b", "resources": {"requests": {"cpu": "1"}}},
            {"name": "a"},
        ]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let demanded = ["cpu", "limits.cpu", "pods"];
        assert_eq!(
            unstated(&pod, demanded.into_iter()).as_deref(),
            Some("must specify cpu for: a; limits.cpu for: a,b")
        );
        assert_eq!(unstated(&pod, ["pods"].into_iter()), None);
    }

    #[test]
    fn scopes() {
        let pod = |spec: Value| {
            let mut pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            pod.set_defaults();
            pod
        };
        let covered = |quota: Value, spec: Value| {
            let quota: ResourceQuota = serde_json::from_value(json!({"spec": quota})).unwrap();
            covers(&quota, &pod(spec))
        };
        let plain = json!({"containers": [{"name": "c"}]});
        let short = json!({"containers": [{"name": "c"}], "activeDeadlineSeconds": 5, "priorityClassName": "high"});
        for (scopes, of_plain, of_short) in [
            (json!([]), true, true),
            (json!(["Terminating"]), false, true),
            (json!(["NotTerminating"]), true, false),
            (json!(["BestEffort", "Terminating"]), false, true),
            (json!(["NotBestEffort"]), false, false),
            (json!(["PriorityClass"]), false, true),
        ] {
            let quota = json!({"scopes": scopes});
            assert_eq!(covered(quota.clone(), plain.clone()), of_plain, "{scopes}");
            assert_eq!(covered(quota, short.clone()), of_short, "{scopes}");
        }
        for (operator, values, of_plain, of_short) in [
            ("In", json!(["high"]), false, true),
            ("NotIn", json!(["high"]), true, false),
            ("Exists", json!(null), false, true),
            ("DoesNotExist", json!(null), true, false),
        ] {
            let expression = json!({"scopeName": "PriorityClass", "operator": operator, "values": values});
            let quota = json!({"scopeSelector": {"matchExpressions": [expression]}});
            assert_eq!(covered(quota.clone(), plain.clone()), of_plain, "{operator}");
            assert_eq!(covered(quota, short.clone()), of_short, "{operator}");
        }
    }

    #[test]
    fn scopes_of_claims() {
        let covered = |scope: &str, operator: &str, claim: &Value| {
            let values = operator.ends_with("In").then(|| json!(["gold"]));
            let expression = json!({"scopeName": scope, "operator": operator, "values": values});
            let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [expression]}}});
            let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
            let claim: PersistentVolumeClaim = serde_json::from_value(claim.clone()).unwrap();
            covers(&quota, &claim)
        };
        let plain = json!({"spec": {}});
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        let changed = json!({
            "spec": {"volumeAttributesClassName": "slow"},
            "status": {"currentVolumeAttributesClassName": "gold"},
        });
        for (operator, of_plain, of_gold, of_changed) in [
            ("In", false, true, true),
            ("NotIn", true, false, true),
            ("Exists", false, true, true),
            ("DoesNotExist", true, false, false),
        ] {
            let found = [&plain, &gold, &changed].map(|claim| covered("VolumeAttributesClass", operator, claim));
            assert_eq!(found, [of_plain, of_gold, of_changed], "{operator}");
        }
        assert!(!covered("PriorityClass", "DoesNotExist", &plain));
    }
}
