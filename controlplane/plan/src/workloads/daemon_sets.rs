//! `DaemonSet`s: one pod on each eligible node, which the scheduler binds by the node's name.
//!
//! The rules are those of upstream's `pkg/controller/daemon`:
//! 1. The revision of the current template is found or created (`constructHistory`).
//! 2. Nodes without a pod get one; finished and duplicate pods, and pods on nodes that they do not
//!    fit, are deleted (`manage`).
//! 3. If none of that is left to do, pods of old revisions are replaced (`rollingUpdate`).

mod placing;
mod revisions;
mod status;
#[cfg(test)]
mod tests;
mod update;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

use crate::objects::{Map, Meta as _, name, selects, target};
use crate::pod::Pod;
use crate::pod::{available_in, is_finished, is_ready, node_of, phase};
use crate::step::{CONTROLLER_REVISIONS, DAEMON_SETS, PODS, Plan, Severity, Step, Target};
pub use crate::workloads::backoff::Backoff;
use crate::workloads::claim::claim;
use crate::workloads::pod_template;
pub use crate::workloads::rollout::Failure;
use crate::workloads::rollout::scaled;
use placing::{Fit, Placing};
use revisions::{Revisions, hash};

/// Most pods that one plan creates or deletes (`BurstReplicas`).
const BURST: usize = 250;

/// The DaemonSet and everything that its plan reads.
pub struct Snapshot<'a> {
    /// The DaemonSet.
    pub set: &'a DaemonSet,
    /// All revisions of its namespace: some are its own, some may be adopted, and names must not
    /// collide.
    pub revisions: &'a [&'a ControllerRevision],
    /// Its pods and the namespace's pods without a manager.
    pub pods: &'a [&'a Pod],
    /// All nodes.
    pub nodes: &'a [&'a Node],
    /// The server's last refusal of a creation.
    pub failure: Option<&'a Failure>,
}

/// State of one DaemonSet while its plan is made.
struct View<'a> {
    set: &'a DaemonSet,
    spec: &'a DaemonSetSpec,
    owner: Target,
    placing: Placing,
    /// Hash of the current template's revision.
    hash: String,
    /// The fit of each node, by its name.
    nodes: BTreeMap<&'a str, Fit>,
    /// Its pods by node, in the order of preference.
    pods: BTreeMap<&'a str, Vec<&'a Pod>>,
    now: Timestamp,
}

/// Pods to create and delete.
#[derive(Default)]
struct Work<'a> {
    events: Vec<Step>,
    /// Nodes that get a pod.
    create: Vec<&'a str>,
    delete: Vec<&'a Pod>,
}

/// Makes the plan. `backoff` remembers the failed pods that were deleted.
pub fn plan(snapshot: &Snapshot<'_>, backoff: &mut Backoff, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let set = snapshot.set;
    // The garbage collector decides about the revisions and pods of a set that is being deleted.
    let Some(spec) = set.spec.as_ref().filter(|_| set.metadata.deletion_timestamp.is_none()) else {
        return plan;
    };
    let owner = target(DAEMON_SETS, set);
    let selected = |labels: Option<&Map>| selects(&spec.selector, labels);
    let revisions = claim(
        &owner,
        false,
        |revision| selected(revision.metadata.labels.as_ref()),
        CONTROLLER_REVISIONS,
        snapshot.revisions.iter().copied(),
    );
    let pods = claim(
        &owner,
        false,
        |pod| selected(pod.metadata.labels()),
        PODS,
        snapshot.pods.iter().copied(),
    );
    let claiming: Vec<Step> = revisions.steps.into_iter().chain(pods.steps).collect();
    if !claiming.is_empty() {
        plan.stage(claiming);
        return plan;
    }
    let revisions = match Revisions::of(snapshot, spec, &owner, revisions.owned, &pods.owned) {
        Ok(revisions) => revisions,
        Err(first) => {
            plan.stage(first);
            return plan;
        }
    };
    let placing = Placing::of(set, &spec.template);
    let nodes = snapshot.nodes.iter().map(|node| (name(*node), placing.fit(node)));
    let view = View {
        set,
        spec,
        nodes: nodes.collect(),
        pods: by_node(&pods.owned),
        owner,
        placing,
        hash: revisions.hash.clone(),
        now,
    };
    plan.stage(revisions.steps.clone());
    let tolerant = plan.stages.len();
    view.work(snapshot.failure.is_some(), backoff, &mut plan);
    // The status is also updated if a pod cannot be created or deleted (`syncDaemonSet`).
    let mut last: Vec<Step> = view.status().into_iter().collect();
    last.extend(revisions.superfluous(spec, &pods.owned));
    plan.close(tolerant, last);
    let delays = pods.owned.iter().filter_map(|pod| view.available_in(pod));
    if let Some(next) = delays.filter(|delay| !delay.is_zero()).min() {
        plan.again(next);
    }
    plan
}

/// The pods of each node, bound ones first, then the oldest. Pods that have ended and are being
/// deleted do not count.
fn by_node<'a>(pods: &[&'a Pod]) -> BTreeMap<&'a str, Vec<&'a Pod>> {
    let mut nodes: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        if is_finished(pod) && pod.metadata.is_deleting() {
            continue;
        }
        if let Some(node) = placing::target_node(pod) {
            nodes.entry(node).or_default().push(pod);
        }
    }
    for pods in nodes.values_mut() {
        pods.sort_by_key(|pod| (node_of(pod).is_none(), pod.metadata.created, name(*pod)));
    }
    nodes
}

impl<'a> View<'a> {
    fn work(&self, failing: bool, backoff: &mut Backoff, plan: &mut Plan) {
        let mut work = Work::default();
        for (node, fit) in &self.nodes {
            self.manage(node, *fit, backoff, &mut work, plan);
        }
        // No other controller looks for pending pods whose node is gone
        // (`getUnscheduledPodsWithoutNode`).
        let lost = self.pods.iter().filter(|(node, _)| !self.nodes.contains_key(*node));
        let lost = lost.flat_map(|(_, pods)| pods.iter().copied());
        work.delete
            .extend(lost.filter(|pod| node_of(pod).is_none() && !pod.metadata.is_deleting()));
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref());
        if work.create.is_empty() && work.delete.is_empty() && rolling != Some("OnDelete") {
            self.update(&mut work);
        }
        // While creation fails, one attempt is enough.
        let limit = if failing { 1 } else { BURST };
        let create = work.create.into_iter().take(limit);
        let create =
            create.map(|node| pod_template::create(&self.owner, &self.placing.pod(&self.owner, &self.hash, node)));
        let delete = work.delete.into_iter().take(BURST);
        let delete = delete.map(|pod| pod_template::delete(&self.owner, pod));
        plan.stage(work.events.into_iter().chain(create).chain(delete).collect());
    }

    /// Decides on a node's pods, regardless of their revisions (`podsShouldBeOnNode`).
    fn manage(&self, node: &'a str, fit: Fit, backoff: &mut Backoff, work: &mut Work<'a>, plan: &mut Plan) {
        let Some(pods) = self.pods.get(node) else {
            work.create.extend((fit == Fit::Runs).then_some(node));
            return;
        };
        let lasting = pods.iter().copied().filter(|pod| !pod.metadata.is_deleting());
        if fit == Fit::Never {
            work.delete.extend(lasting);
            return;
        }
        let mut running = Vec::new();
        for pod in lasting {
            match phase(pod) {
                "Failed" => match backoff.next(&self.owner.uid, self.observed(), node, self.now) {
                    Some(delay) => plan.again(delay),
                    None => self.give_up(pod, node, "failed", work),
                },
                "Succeeded" => self.give_up(pod, node, "succeeded", work),
                _ => running.push(pod),
            }
        }
        if self.max_surge(1) == 0 {
            work.delete.extend(running.into_iter().skip(1));
            return;
        }
        if running.is_empty() && fit == Fit::Runs {
            work.create.push(node);
        }
        if running.len() > 1 {
            self.thin_out(&running, work);
        }
    }

    /// Deletes a finished pod, and records an event.
    fn give_up(&self, pod: &'a Pod, node: &str, how: &str, work: &mut Work<'a>) {
        let (severity, reason, what) = if how == "failed" {
            (Severity::Warning, "FailedDaemonPod", "kill")
        } else {
            (Severity::Normal, "SucceededDaemonPod", "delete")
        };
        let (namespace, pod_name) = (pod.metadata.namespace(), name(pod));
        let message = format!("Found {how} daemon pod {namespace}/{pod_name} on node {node}, will try to {what} it");
        work.events
            .push(Step::Event(self.owner.note(severity, reason, message)));
        work.delete.push(pod);
    }

    /// With surge a node has two pods while the old one is ready and the new one is not available
    /// yet.
    fn thin_out(&self, running: &[&'a Pod], work: &mut Work<'a>) {
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = running.iter().partition(|pod| hash(pod) == Some(&self.hash));
        work.delete
            .extend(new.iter().skip(1).chain(old.iter().skip(1)).copied());
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!is_ready(old) || self.is_available(new))
        {
            work.delete.push(old);
        }
    }

    fn observed(&self) -> i64 {
        let status = self.set.status.as_ref();
        status.and_then(|status| status.observed_generation).unwrap_or(0)
    }

    fn available_in(&self, pod: &Pod) -> Option<Duration> {
        available_in(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        self.available_in(pod) == Some(Duration::ZERO)
    }

    fn max_surge(&self, nodes: i32) -> i32 {
        let strategy = self.spec.update_strategy.as_ref();
        let strategy = strategy.filter(|strategy| strategy.type_.as_deref() == Some("RollingUpdate"));
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        surge.map_or(0, |surge| scaled(surge, nodes, true))
    }
}
