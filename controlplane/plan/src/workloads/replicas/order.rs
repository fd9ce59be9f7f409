//! Order in which a ReplicaSet deletes pods.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::objects::uid;
use crate::pod::Pod;
use crate::pod::{is_active, node_of, phase, ready_since};

/// Deletion order, the least first. The order of the fields is the policy.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worth<'a> {
    scheduled: bool,
    phase: u8,
    ready: bool,
    cost: i32,
    doubled: Reverse<usize>,
    ready_for: u32,
    restarts: Reverse<(i32, i32)>,
    age: u32,
    uid: &'a str,
}

/// The first `count` pods of `active` in deletion order.
pub(super) fn victims<'a>(
    active: &[&'a Pod],
    related: &[&Pod],
    count: usize,
    now: Timestamp,
) -> impl Iterator<Item = &'a Pod> + use<'a> {
    let mut per_node: BTreeMap<&str, usize> = BTreeMap::new();
    if count > 0 {
        for node in related
            .iter()
            .filter(|pod| is_active(pod))
            .filter_map(|pod| node_of(pod))
        {
            *per_node.entry(node).or_default() += 1;
        }
    }
    let mut sorted: Vec<&Pod> = active.to_vec();
    if count > 0 && count < sorted.len() {
        sorted.sort_by_cached_key(|pod| {
            let pod: &'a Pod = pod;
            worth(pod, &per_node, now)
        });
    }
    sorted.into_iter().take(count)
}

fn worth<'a>(pod: &'a Pod, per_node: &BTreeMap<&str, usize>, now: Timestamp) -> Worth<'a> {
    let node = node_of(pod);
    let ready_since = ready_since(pod);
    Worth {
        scheduled: node.is_some(),
        phase: match phase(pod) {
            "Running" => 2,
            "Unknown" => 1,
            _ => 0,
        },
        ready: ready_since.is_some(),
        cost: pod.metadata.deletion_cost,
        doubled: Reverse(node.and_then(|node| per_node.get(node)).copied().unwrap_or(0)),
        ready_for: magnitude(ready_since, now),
        restarts: Reverse(pod.status.restarts),
        age: magnitude(pod.metadata.created, now),
        uid: uid(pod),
    }
}

/// Binary logarithm of an age: ages of the same magnitude count alike, so that it is not always the
/// youngest pod that goes.
fn magnitude(since: Option<Timestamp>, now: Timestamp) -> u32 {
    let seconds = since.map_or(0, |since| now.as_second().saturating_sub(since.as_second()).max(0));
    u64::try_from(seconds).unwrap_or(0).saturating_add(1).ilog2()
}
