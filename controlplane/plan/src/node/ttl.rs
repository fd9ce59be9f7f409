//! TTL of the agents' caches of Secrets and ConfigMaps: a node annotation that depends on the
//! number of nodes.

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::objects::{annotation, target};
use crate::step::{NODES, Plan};

/// Annotation that holds a node's TTL in seconds.
pub const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Cluster sizes: the node count below which a size is left downward, the one above which it is
/// left upward, and the TTL in seconds.
const SIZES: [(usize, usize, u32); 6] = [
    (0, 100, 0),
    (90, 500, 15),
    (450, 1_000, 30),
    (900, 2_000, 60),
    (1_800, 10_000, 300),
    (9_000, usize::MAX, 600),
];

/// Index of the size for a number of nodes, if it was `size` before.
pub fn next(mut size: usize, nodes: usize) -> usize {
    while SIZES.get(size).is_some_and(|(_, most, _)| nodes > *most) {
        size += 1;
    }
    while SIZES.get(size).is_none_or(|(least, ..)| nodes < *least) && size > 0 {
        size -= 1;
    }
    size
}

/// Makes the plan for a node of a cluster of this size.
pub fn plan(node: &Node, size: usize) -> Plan {
    let mut plan = Plan::default();
    let wanted = SIZES.get(size).map_or(0, |(.., seconds)| *seconds).to_string();
    if annotation(&node.metadata, ANNOTATION) != Some(&wanted) {
        plan.stage(vec![target(NODES, node).merge(json!({
            "metadata": { "uid": node.metadata.uid, "annotations": { ANNOTATION: wanted } },
        }))]);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_left_late() {
        let mut size = 0;
        let mut seen = Vec::new();
        for nodes in [1, 100, 101, 90, 89, 600, 20_000, 8_999, 0] {
            size = next(size, nodes);
            seen.push(SIZES[size].2);
        }
        assert_eq!(seen, [0, 0, 15, 15, 0, 30, 600, 300, 0]);
    }

    #[test]
    fn a_node_is_told_once() {
        let mut node = Node::default();
        node.metadata.name = Some("n".to_owned());
        assert_eq!(plan(&node, 0).to_string(), "patch Node n");
        node.metadata.annotations = Some([(ANNOTATION.to_owned(), "0".to_owned())].into());
        assert!(plan(&node, 0).is_empty());
        assert_eq!(plan(&node, 1).to_string(), "patch Node n");
    }
}
