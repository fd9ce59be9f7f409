//! Ranks the feasible nodes: the lowest score wins. The order of the fields is the policy; upstream
//! weighs the same criteria in a sum.

use std::borrow::Cow;
use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Node;

use super::filters::Verdict;
use super::inter_pod_affinity::InterPodAffinity;
use super::spread::Spread;
use super::{Place, PodRequests, SchedulerCache};
use crate::objects::controller_of;
use crate::pod::Pod;

/// Score of a node for a pod; lower is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
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
    /// Sum of the scores of the same weight upstream: `NodeResourcesFit`,
    /// `NodeResourcesBalancedAllocation` and `ImageLocality`.
    pub resources: Reverse<i64>,
    /// Mean of the CPU and memory shares in use, in thousandths.
    pub load: i64,
    /// Pods on the node.
    pub pods: i64,
    /// Of equal nodes the first by name wins: here whether it comes after the one that was looked at first.
    pub late: bool,
}

/// The score of a node that passed the filters.
pub(super) fn of(
    pod: &Pod,
    needs: &PodRequests,
    (node, place): (&Node, &Place),
    verdict: Verdict,
    (inter_pod_affinity, spread, images): (&InterPodAffinity<'_>, &Spread<'_>, &Images<'_>),
    late: bool,
) -> Score {
    let share = |resource: &str, used: i64, wanted: i64| {
        let allocatable = place.allocatable.get(resource).max(1);
        used.saturating_add(wanted).saturating_mul(1000) / allocatable
    };
    let cpu = share("cpu", place.scored_cpu, needs.scored_cpu);
    let memory = share("memory", place.scored_memory, needs.scored_memory);
    let usage =
        |cpu, memory| [("cpu", cpu), ("memory", memory)].map(|(name, used)| (place.allocatable.get(name), used));
    let scored = usage(
        place.scored_cpu.saturating_add(needs.scored_cpu),
        place.scored_memory.saturating_add(needs.scored_memory),
    );
    let requested = |name| (place.requested.get(name), needs.requests.get(name));
    let balance = match (requested("cpu"), requested("memory")) {
        ((_, 0), (_, 0)) => 0,
        ((cpu, more_cpu), (memory, more_memory)) => balance(
            usage(cpu, memory),
            usage(cpu.saturating_add(more_cpu), memory.saturating_add(more_memory)),
        ),
    };
    let owner = controller_of(&pod.metadata).map(|owner| owner.uid.as_str());
    let preference = verdict.preference.saturating_add(inter_pod_affinity.preference(node));
    Score {
        soft_taints: verdict.soft_taints,
        preference: Reverse(preference),
        skew: spread.skew(node),
        siblings: owner.and_then(|owner| place.siblings.get(owner)).copied().unwrap_or(0),
        attraction: Reverse(inter_pod_affinity.attraction(node)),
        resources: Reverse(least_allocated(scored) + balance + images.score(place)),
        load: cpu.saturating_add(memory) / 2,
        pods: place.pods,
        late,
    }
}

/// Highest score of a plugin.
const MAX: i64 = 100;

/// Allocatable and requested CPU, and the same of memory.
type Usage = [(i64, i64); 2];

/// Score of `NodeResourcesFit`: mean share that is free.
fn least_allocated(usage: Usage) -> i64 {
    let known = usage.iter().filter(|(allocatable, _)| *allocatable > 0);
    let free = known.clone().map(|(allocatable, requested)| {
        let free = allocatable.saturating_sub(*requested).max(0);
        free.saturating_mul(MAX) / allocatable
    });
    free.sum::<i64>() / count(known.count()).max(1)
}

/// Score of `NodeResourcesBalancedAllocation`: 75 if the pod leaves the balance of a node as it is,
/// more if it improves it (`balancedResourceScorer`).
fn balance(before: Usage, after: Usage) -> i64 {
    MAX / 2 + (MAX / 2 + balanced(after) - balanced(before)) / 2
}

/// One minus the standard deviation of the shares of CPU and memory in use.
fn balanced(usage: Usage) -> i64 {
    const WHOLE: i64 = 1_000_000_000;
    let share = |(allocatable, requested): (i64, i64)| {
        let share = i128::from(requested) * i128::from(WHOLE) / i128::from(allocatable);
        i64::try_from(share).unwrap_or(WHOLE).min(WHOLE)
    };
    let [cpu, memory] = usage;
    if cpu.0 <= 0 || memory.0 <= 0 {
        return MAX;
    }
    (2 * WHOLE - (share(cpu) - share(memory)).abs()) * MAX / (2 * WHOLE)
}

/// Images of a pod, each with the number of nodes that have it, for the score of `ImageLocality`.
pub(super) struct Images<'a> {
    wanted: Vec<(Cow<'a, str>, i64)>,
    containers: i64,
    nodes: i64,
}

impl<'a> Images<'a> {
    pub(super) fn of(cache: &SchedulerCache, pod: &'a Pod) -> Self {
        let spec = pod.spec.iter();
        let containers = spec
            .clone()
            .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let of_containers = containers.clone().filter_map(|container| container.image.as_deref());
        let of_volumes = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
        let wanted = of_containers.chain(of_volumes).map(|image| {
            let image = tagged(image);
            let nodes = cache.images.get(&*image).copied().unwrap_or(0);
            (image, nodes)
        });
        // What no node has makes no difference between them.
        let wanted = wanted.filter(|(_, nodes)| *nodes > 0);
        Self {
            wanted: wanted.collect(),
            containers: count(containers.count()),
            nodes: count(cache.places.len()),
        }
    }

    /// Score by the size of the images that a node has; what few nodes have counts less.
    fn score(&self, place: &Place) -> i64 {
        const MIB: i64 = 1024 * 1024;
        const LEAST: i64 = 23 * MIB;
        let sizes = self.wanted.iter().filter_map(|(image, nodes)| {
            let size = place.images.get(&**image)?;
            Some(size.saturating_mul(*nodes) / self.nodes.max(1))
        });
        let most = self.containers.max(1).saturating_mul(1000 * MIB);
        let sum = sizes.fold(0, i64::saturating_add).clamp(LEAST, most);
        (sum - LEAST).saturating_mul(MAX) / (most - LEAST)
    }
}

/// Name with a tag or digest (`normalizedImageName`).
fn tagged(image: &str) -> Cow<'_, str> {
    if image.rfind(':') <= image.rfind('/') {
        format!("{image}:latest").into()
    } else {
        image.into()
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_scored_by_what_the_pod_changes() {
        let usage = |cpu, memory| [(4000, cpu), (8192, memory)];
        for (before, after, expected) in [
            (usage(0, 0), usage(0, 0), 75),
            (usage(2000, 0), usage(2000, 4096), 87),
            (usage(2000, 0), usage(4000, 0), 62),
            (usage(0, 0), usage(9000, 0), 50),
            ([(0, 0), (8192, 0)], [(0, 0), (8192, 8192)], 75),
        ] {
            assert_eq!(balance(before, after), expected, "{before:?} {after:?}");
        }
        assert_eq!(least_allocated(usage(1000, 8192)), 37);
        assert_eq!(least_allocated([(0, 5), (8192, 4096)]), 50);
    }
}
