//! Ranks the feasible nodes: the lowest score wins. The order of the fields is the policy; upstream
//! weighs the same criteria in a sum.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Node;

use super::{Place, PodRequests, affinity, filters::tolerates, inter_pod_affinity::InterPodAffinity, spread::Spread};
use crate::objects::{controller_of, name};
use crate::pod::Pod;

/// Score of a node for a pod; lower is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score<'a> {
    /// `PreferNoSchedule` taints that the pod does not tolerate.
    pub soft_taints: usize,
    /// Sum of the weights of preferred node and pod affinities that the node meets.
    pub preference: Reverse<i64>,
    /// Skew of the `ScheduleAnyway` topologies with the pod.
    pub skew: i64,
    /// Pods of the same controller on the node.
    pub siblings: i64,
    /// Sum of the weights of the affinity terms of other pods that the node meets.
    pub attraction: Reverse<i64>,
    /// Mean of the CPU and memory shares in use, in thousandths.
    pub load: i64,
    /// Difference of those shares.
    pub imbalance: i64,
    /// Pods on the node.
    pub pods: i64,
    /// Name as the last resort, so that the choice is deterministic.
    pub name: &'a str,
}

/// The score of a node that passed the filters.
pub(super) fn of<'a>(
    pod: &Pod,
    needs: &PodRequests,
    node: &'a Node,
    place: &Place,
    inter_pod_affinity: &InterPodAffinity<'_>,
    spread: &Spread<'_>,
) -> Score<'a> {
    let spec = pod.spec.as_ref();
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let soft = taints.iter().filter(|taint| {
        taint.effect == "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    });
    let share = |resource: &str, used: i64, wanted: i64| {
        let allocatable = place.allocatable.get(resource).max(1);
        used.saturating_add(wanted).saturating_mul(1000) / allocatable
    };
    let cpu = share("cpu", place.scored_cpu, needs.scored_cpu);
    let memory = share("memory", place.scored_memory, needs.scored_memory);
    let owner = controller_of(&pod.metadata).map(|owner| owner.uid.as_str());
    let preference = spec
        .map_or(0, |spec| affinity::preference(spec, node))
        .saturating_add(inter_pod_affinity.preference(node));
    Score {
        soft_taints: soft.count(),
        preference: Reverse(preference),
        skew: spread.skew(node),
        siblings: owner.and_then(|owner| place.siblings.get(owner)).copied().unwrap_or(0),
        attraction: Reverse(inter_pod_affinity.attraction(node)),
        load: cpu.saturating_add(memory) / 2,
        imbalance: cpu.saturating_sub(memory).abs(),
        pods: place.pods,
        name: name(node),
    }
}
