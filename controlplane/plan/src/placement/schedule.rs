//! Scheduling of one pod: filters, then scores (`pkg/scheduler/schedule_one.go`).

use std::ops::Bound;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::claims::Exclusive;
use super::filters::{self, Verdict};
use super::inter_pod_affinity::InterPodAffinity;
use super::score::{self, Images};
use super::spread::Spread;
use super::{Claims, Misfit, Place, Placed, PodRequests, Preemption, SchedulerCache, Score, Unplaceable, priority};
use crate::objects::{Meta as _, uid};
use crate::pod::Pod;

/// Inputs of the filters and scores for one pod.
pub(super) struct Judge<'a> {
    pod: &'a Pod,
    class: u64,
    needs: &'a PodRequests,
    claims: &'a Claims,
    exclusive: Exclusive<'a>,
    inter_pod_affinity: InterPodAffinity<'a>,
    spread: Spread<'a>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(cache: &'a SchedulerCache, pod: &'a Pod, needs: &'a PodRequests, claims: &'a Claims) -> Self {
        Self {
            pod,
            class: cache.class.borrow_mut().number(pod),
            needs,
            claims,
            exclusive: Exclusive::of(cache, pod, claims),
            inter_pod_affinity: InterPodAffinity::of(cache, pod),
            spread: Spread::of(cache, pod),
        }
    }

    pub(super) fn check(&self, node: &Node, place: &Place) -> Result<(), Misfit> {
        self.verdict(node, place)
            .and_then(|_| filters::check(self.pod, self.needs, node, place))
            .and_then(|()| self.exclusive.check())
            .and_then(|()| self.claims.check_limits(node))
            .and_then(|()| self.claims.check(node))
            .and_then(|()| self.spread.check(node))
            .and_then(|()| self.inter_pod_affinity.check(node))
    }

    fn verdict(&self, node: &Node, place: &Place) -> Result<Verdict, Misfit> {
        filters::verdict(self.class, self.pod, node, place)
    }

    /// Removes a pod from its node in this calculation (`-1`), or puts it back (`1`).
    pub(super) fn shift(&mut self, placed: &'a Placed, node: &'a Node, sign: i64) {
        self.exclusive.shift(placed, sign);
        self.spread.shift(placed, sign);
        self.inter_pod_affinity.shift(placed, node, sign);
    }
}

impl SchedulerCache {
    /// True if victims of a nominated pod still exist on a node that would still fit it.
    pub fn awaits(&self, pod: &Pod, claims: &Claims) -> bool {
        let Some(promise) = self.promises.get(uid(pod)) else {
            return false;
        };
        let least = priority(pod);
        let goes = if promise.victims.is_empty() {
            let on_it = |placed: &&Placed| placed.node == promise.placed.node && priority(&placed.pod) < least;
            let mut on_it = self.pods().filter(on_it);
            on_it.any(|placed| placed.pod.metadata.is_deleting())
        } else {
            // One whose binding was cancelled may be on another node by now.
            let is_on_it = |placed: &Placed| placed.node == promise.placed.node;
            promise
                .victims
                .iter()
                .any(|victim| self.find(victim).is_some_and(is_on_it))
        };
        goes && self.at(&promise.placed.node).is_some_and(|(own, place)| {
            let judge = Judge::new(self, pod, &promise.placed.needs, claims);
            judge.check(own, place).err().is_none_or(|misfit| misfit.resolvable)
        })
    }

    /// Returns the best node for a pod with these claims, or the reasons why it is unschedulable.
    pub fn choose(&self, pod: &Pod, claims: &Claims) -> Result<Arc<Node>, Unplaceable> {
        let never = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never");
        let preemption = if never { Preemption::Never } else { Preemption::Vain };
        if let Err(reason) = claims.check_pod(pod) {
            return Err(Unplaceable {
                misfits: self.nodes().map(|_| Misfit::unresolvable(reason.clone())).collect(),
                of_pod: Some(reason),
                preemption,
            });
        }
        let needs = PodRequests::of(pod);
        let judge = Judge::new(self, pod, &needs, claims);
        let images = Images::of(self, pod);
        let mut misfits: Vec<Misfit> = Vec::new();
        let mut best: Option<(Score, &Arc<Node>)> = None;
        let next = self.next.take();
        let rest = (Bound::Included(next.as_str()), Bound::Unbounded);
        let rest = self.places.range::<str, _>(rest).map(|each| (true, each));
        let start = (Bound::Unbounded, Bound::Excluded(next.as_str()));
        let start = self.places.range::<str, _>(start).map(|each| (false, each));
        let mut fit = 0;
        let mut stop = None;
        // Misfits of the nodes from the next one on.
        let mut late = 0;
        for (is_late, (name, place)) in rest.chain(start) {
            let Some(node) = &place.node else { continue };
            if fit >= enough(self.places.len()) {
                stop = Some(name.clone());
                break;
            }
            let checked = judge.check(node, &self.promised(pod, name, place));
            match checked.and_then(|()| judge.verdict(node, place)) {
                Ok(verdict) => {
                    fit += 1;
                    let of_pod = (&judge.inter_pod_affinity, &judge.spread, &images);
                    let score = score::of(pod, &needs, (node, place), verdict, of_pod, is_late);
                    if best.as_ref().is_none_or(|(best, _)| score < *best) {
                        best = Some((score, node));
                    }
                }
                Err(misfit) => {
                    late += usize::from(is_late);
                    misfits.push(misfit);
                }
            }
        }
        self.next.replace(stop.unwrap_or(next));
        if let Some((_, node)) = best {
            return Ok(Arc::clone(node));
        }
        // In the nodes' order.
        misfits.rotate_left(late);
        Err(Unplaceable {
            misfits,
            of_pod: None,
            preemption,
        })
    }
}

/// Number of nodes that fit after which no more are looked for; the next pod begins with those that were left
/// (`numFeasibleNodesToFind` of `pkg/scheduler/schedule_one.go`).
fn enough(nodes: usize) -> usize {
    const LEAST: usize = 100;
    let percent = 50_usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(LEAST.min(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_nodes_some_are_enough() {
        let expected = [(1, 1), (100, 100), (150, 100), (1000, 420), (5000, 500), (10_000, 500)];
        for (nodes, expected) in expected {
            assert_eq!(enough(nodes), expected, "{nodes}");
        }
    }
}
