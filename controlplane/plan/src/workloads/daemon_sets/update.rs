//! Rolling updates: pods of old revisions are replaced (`rollingUpdate` in
//! `pkg/controller/daemon/update.go`).

use super::placing::Fit;
use super::{View, Work};
use crate::objects::Meta as _;
use crate::pod::Pod;
use crate::workloads::rollout::scaled;

/// The pods of a node that are not being deleted.
struct OnNode<'a> {
    new: Option<&'a Pod>,
    old: Option<&'a Pod>,
}

/// Nodes and pods, as a rolling update with surge sorts them.
#[derive(Default)]
struct Surge<'a> {
    /// Nodes whose new pod is not available yet.
    under_way: usize,
    available: usize,
    /// Nodes whose old pod is unavailable: the new one may be created at once.
    broken: Vec<&'a str>,
    candidates: Vec<&'a str>,
    /// Old pods on nodes that they no longer fit.
    misplaced: Vec<&'a Pod>,
}

impl<'a> View<'a> {
    pub(super) fn update(&self, work: &mut Work<'a>) {
        let runs = self.nodes.values().filter(|fit| **fit == Fit::Runs).count();
        let desired = i32::try_from(runs).unwrap_or(i32::MAX);
        let surge = usize::try_from(self.max_surge(desired)).unwrap_or(0);
        if surge == 0 {
            let unavailable = usize::try_from(self.max_unavailable(desired)).unwrap_or(0);
            self.replace(unavailable, work);
        } else {
            self.surge(surge, runs, work);
        }
    }

    /// The set's `maxUnavailable`, at least one.
    fn max_unavailable(&self, nodes: i32) -> i32 {
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        unavailable
            .map_or(1, |unavailable| scaled(unavailable, nodes, true))
            .max(1)
    }

    /// Nodes that have or should have pods.
    fn considered(&self) -> impl Iterator<Item = &'a str> {
        let runs = self
            .nodes
            .iter()
            .filter(|(node, fit)| **fit == Fit::Runs && !self.pods.contains_key(*node));
        self.pods.keys().copied().chain(runs.map(|(node, _)| *node))
    }

    /// `None` if there are several old or several new pods: duplicates are deleted first
    /// (`findUpdatedPodsOnNode`).
    fn on_node(&self, node: &str) -> Option<OnNode<'a>> {
        let pods = self.pods.get(node).into_iter().flatten().copied();
        let lasting = pods.filter(|pod| !pod.metadata.is_deleting());
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = lasting.partition(|pod| self.placing.is_current(pod, &self.hash));
        (new.len() <= 1 && old.len() <= 1).then(|| OnNode {
            new: new.first().copied(),
            old: old.first().copied(),
        })
    }

    /// Deletes old pods: unavailable ones, and others as long as the limit allows.
    fn replace(&self, most: usize, work: &mut Work<'a>) {
        let mut missing: usize = 0;
        let mut candidates = Vec::new();
        for node in self.considered() {
            match self.on_node(node) {
                Some(OnNode {
                    new: Some(new),
                    old: None,
                }) if self.is_available(new) => {}
                Some(OnNode {
                    new: None,
                    old: Some(old),
                }) if self.is_available(old) => candidates.push(old),
                Some(OnNode {
                    new: None,
                    old: Some(old),
                }) => {
                    work.delete.push(old);
                    missing = missing.saturating_add(1);
                }
                Some(_) | None => missing = missing.saturating_add(1),
            }
        }
        work.delete
            .extend(candidates.into_iter().take(most.saturating_sub(missing)));
    }

    /// Creates new pods beside old ones, and deletes the old ones whose new ones are available.
    fn surge(&self, most: usize, desired: usize, work: &mut Work<'a>) {
        let mut surge = Surge::default();
        for node in self.considered() {
            match self.on_node(node) {
                Some(found) => self.surge_on(node, &found, &mut surge, work),
                None => surge.under_way = surge.under_way.saturating_add(1),
            }
        }
        // With `maxSurge` all pods are expected to be available: a pod on a node that it no longer
        // fits goes once another node's pod is available.
        let deletable = surge.available.saturating_sub(desired);
        work.delete.extend(surge.misplaced.into_iter().take(deletable));
        let more = most.saturating_sub(surge.under_way);
        work.create.extend(surge.broken);
        work.create.extend(surge.candidates.into_iter().take(more));
    }

    fn surge_on(&self, node: &'a str, found: &OnNode<'a>, surge: &mut Surge<'a>, work: &mut Work<'a>) {
        let first = found.old.or(found.new);
        let available = first.is_some_and(|pod| self.is_available(pod));
        surge.available = surge.available.saturating_add(usize::from(available));
        let fits = self.nodes.get(node) == Some(&Fit::Runs);
        match (found.old, found.new) {
            (None, _) => {}
            (Some(old), None) if !fits && available => surge.misplaced.push(old),
            (Some(old), None) if !fits => work.delete.push(old),
            (Some(_), None) if available => surge.candidates.push(node),
            (Some(_), None) => surge.broken.push(node),
            (Some(old), Some(new)) if self.is_available(new) => work.delete.push(old),
            (Some(_), Some(_)) => surge.under_way = surge.under_way.saturating_add(1),
        }
    }
}
