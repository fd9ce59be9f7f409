//! Message of an evicted pod's status, and annotations of the event (`evictionMessage`,
//! `pkg/kubelet/eviction/helpers.go`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::pod::level;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Pod;

use super::{Signal, Starved, Used};
use crate::pod::pods;

/// Returns a message that names the starved resource and the containers that used more of it than
/// their requests, and the same as annotations.
pub fn message(starved: &Starved, pod: &Pod, used: &Used) -> (String, BTreeMap<String, String>) {
    let resource = starved.signal.resource();
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        starved.threshold, starved.available
    );
    let mut annotations: Vec<(&str, String)> = Vec::new();
    if let Some((amount, request)) = whole(starved.signal, pod, used) {
        let name = pods::name(pod);
        tell(&mut text, ("Pod", name), (amount, request), resource);
        annotations.extend([
            ("offending_pod", name.to_owned()),
            ("offending_pod_usage", amount.to_string()),
        ]);
    }
    let amounts: Vec<(&str, i64)> = match starved.signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => used
            .containers
            .iter()
            .map(|(name, bytes)| (name.as_str(), *bytes))
            .collect(),
        // Logs and writable layers alike, whichever file system they are on.
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            let disk = used.disk.iter().flat_map(|disk| &disk.containers);
            disk.map(|(name, own)| (name.as_str(), own.total().bytes)).collect()
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::PidAvailable => Vec::new(),
    };
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for (name, amount) in amounts {
        let Some(container) = pods::all_containers(pod).find(|container| container.name == name) else {
            continue;
        };
        let requests = container.resources.as_ref().and_then(|own| own.requests.as_ref());
        let request = requests
            .and_then(|own| own.get(resource))
            .map_or(Quantity::ZERO, Quantity::of);
        let amount = Quantity::bytes(amount);
        if amount > request {
            tell(&mut text, ("Container", name), (amount, request), resource);
            names.push(name);
            usages.push(amount.to_string());
        }
    }
    annotations.extend([
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", usages.join(",")),
        ("starved_resource", resource.to_owned()),
    ]);
    let annotations = annotations.into_iter().map(|(key, value)| (key.to_owned(), value));
    (text, annotations.collect())
}

/// Usage and request of a pod with a memory request of its own.
fn whole(signal: Signal, pod: &Pod, used: &Used) -> Option<(Quantity, Quantity)> {
    if !matches!(signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable) {
        return None;
    }
    let requests = level::own(pod.spec.as_ref()?)?.requests.as_ref()?;
    Some((Quantity::bytes(used.memory?), Quantity::of(requests.get("memory")?)))
}

fn tell(text: &mut String, (kind, name): (&str, &str), (amount, request): (Quantity, Quantity), resource: &str) {
    // Writing to a String cannot fail.
    write!(
        text,
        "{kind} {name} was using {amount}, request is {request}, has larger consumption of {resource}. "
    )
    .ok();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node::storage::{self, ContainerUse, DiskUse};

    fn starved(signal: Signal) -> Starved {
        Starved {
            signal,
            hard: true,
            threshold: Quantity::parse("100Mi").unwrap(),
            available: Quantity::bytes(54 << 20),
        }
    }

    #[test]
    fn it_names_the_containers_that_used_too_much() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"memory": "10Mi"}}},
            {"name": "b", "resources": {"requests": {"memory": "1Gi"}}},
            {"name": "c"},
        ]}}))
        .unwrap();
        let used = Used {
            containers: vec![("a".into(), 20 << 20), ("b".into(), 1 << 20), ("c".into(), 3000 << 10)],
            ..Used::default()
        };
        for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
            let (text, annotations) = message(&starved(signal), &pod, &used);
            assert_eq!(
                text,
                "The node was low on resource: memory. Threshold quantity: 100Mi, available: 54Mi. \
                 Container a was using 20Mi, request is 10Mi, has larger consumption of memory. \
                 Container c was using 3000Ki, request is 0, has larger consumption of memory. "
            );
            let annotations = json!(annotations);
            let expected = json!({
                "offending_containers": "a,c", "offending_containers_usage": "20Mi,3000Ki", "starved_resource": "memory",
            });
            assert_eq!(annotations, expected);
        }
    }

    #[test]
    fn it_names_a_pod_with_requests_of_its_own() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"resources": {"requests": {"memory": "1Gi"}}, "containers": [{"name": "a"}]},
        }))
        .unwrap();
        let used = Used {
            memory: Some(20 << 20),
            ..Used::default()
        };
        let (text, annotations) = message(&starved(Signal::MemoryAvailable), &pod, &used);
        let told = "Pod p was using 20Mi, request is 1Gi, has larger consumption of memory. ";
        assert!(text.ends_with(told), "{text}");
        assert_eq!(annotations["offending_pod"], "p");
        assert_eq!(annotations["offending_pod_usage"], "20Mi");
        assert_eq!(annotations["offending_containers"], "");
        let (text, annotations) = message(&starved(Signal::PidAvailable), &pod, &used);
        assert!(!text.contains("Pod p"), "{text}");
        assert_eq!(annotations["starved_resource"], "pids");
    }

    #[test]
    fn it_tells_of_all_that_a_container_wrote() {
        let pod = json!({"spec": {"containers": [{"name": "a"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let bytes = |bytes| storage::Used { bytes, inodes: 1 };
        let own = ContainerUse {
            layer: bytes(2 << 20),
            log: bytes(1 << 20),
        };
        let disk = DiskUse {
            containers: BTreeMap::from([("a".to_owned(), own)]),
            ..DiskUse::default()
        };
        let used = Used {
            disk: Some(disk),
            ..Used::default()
        };
        for signal in [Signal::NodefsAvailable, Signal::ImagefsAvailable] {
            assert_eq!(
                message(&starved(signal), &pod, &used).0,
                "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 54Mi. \
                 Container a was using 3Mi, request is 0, has larger consumption of ephemeral-storage. "
            );
        }
    }
}
