//! Which of the nodes that will do is best: the least score. The order of the fields is the policy; upstream weighs
//! the same questions in a sum.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Node;

use super::{Needs, Place, affinity, filters::tolerates, neighbours::Neighbourhood, spread::Spread};
use crate::objects::{controller_of, name};
use crate::pod::Pod;

/// How little a node suits a pod.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score<'a> {
    /// `PreferNoSchedule` taints that the pod does not tolerate.
    pub soft_taints: usize,
    /// The weights of its preferences that the node meets: nodes, and pods to be near or far from.
    pub preference: Reverse<i64>,
    /// How uneven its `ScheduleAnyway` topologies would be.
    pub skew: i64,
    /// Pods of the same owner that are there already.
    pub siblings: i64,
    /// The mean of the shares of cpu and memory that would be taken, in thousandths.
    pub load: i64,
    /// The difference of those shares.
    pub imbalance: i64,
    /// Pods that are there already.
    pub pods: i64,
    /// The last resort, so that the choice is always the same.
    pub name: &'a str,
}

/// The score of a node that passed the filters.
pub(super) fn of<'a>(
    pod: &Pod,
    needs: &Needs,
    node: &'a Node,
    place: &Place,
    neighbourhood: &Neighbourhood<'_>,
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
        let allocatable = place.allocatable.get(resource).copied().unwrap_or(0).max(1);
        used.saturating_add(wanted).saturating_mul(1000) / allocatable
    };
    let cpu = share("cpu", place.scored_cpu, needs.scored_cpu);
    let memory = share("memory", place.scored_memory, needs.scored_memory);
    let owner = controller_of(&pod.metadata).map(|owner| owner.uid.as_str());
    let preference = spec
        .map_or(0, |spec| affinity::preference(spec, node))
        .saturating_add(neighbourhood.preference(node));
    Score {
        soft_taints: soft.count(),
        preference: Reverse(preference),
        skew: spread.skew(node),
        siblings: owner.and_then(|owner| place.siblings.get(owner)).copied().unwrap_or(0),
        load: cpu.saturating_add(memory) / 2,
        imbalance: cpu.saturating_sub(memory).abs(),
        pods: place.pods,
        name: name(node),
    }
}
