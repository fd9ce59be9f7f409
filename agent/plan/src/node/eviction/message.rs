//! Message of an evicted pod's status.

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Pod;

use super::{Signal, Starved, Used};
use crate::pod::pods;

/// Names the starved resource and the containers that used more of it than their requests.
pub fn message(starved: &Starved, pod: &Pod, used: &Used) -> String {
    let resource = starved.signal.resource();
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        starved.threshold, starved.available
    );
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
            let more = format!(
                "Container {name} was using {amount}, request is {request}, has larger consumption of {resource}. "
            );
            text.push_str(&more);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
            assert_eq!(
                message(&starved(signal), &pod, &used),
                "The node was low on resource: memory. Threshold quantity: 100Mi, available: 54Mi. \
                 Container a was using 20Mi, request is 10Mi, has larger consumption of memory. \
                 Container c was using 3000Ki, request is 0, has larger consumption of memory. "
            );
        }
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
                message(&starved(signal), &pod, &used),
                "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 54Mi. \
                 Container a was using 3Mi, request is 0, has larger consumption of ephemeral-storage. "
            );
        }
    }
}
