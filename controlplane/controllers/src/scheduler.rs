//! Scheduler: takes pods without a node, highest priority first, and binds each to the best node.

mod bind;
mod claims;
mod metrics;
mod queue;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, name, uid};
use controlplane_plan::placement::{Claims, Displacement, SchedulerCache, priority};
use controlplane_plan::pod::{Pod, is_finished, node_of};
use controlplane_plan::step::Severity;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Namespace, Node};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::bind::{Bound, NotBound};
use self::metrics::{Outcome, SchedulerMetrics};
use self::queue::SchedulingQueue;
use self::refusal::{Nominated, make_room, note, refuse, report};
use crate::machinery::cache::{Change, Key};
use crate::machinery::driver::{Context, perform};
use crate::machinery::events::SCHEDULER;
use crate::machinery::kinds::Caches;
use crate::machinery::metrics::page::Page;

/// Concurrent bindings. One that waits for a volume to be provisioned may take minutes.
const IN_FLIGHT: usize = 1024;
/// Time after which an unschedulable pod is retried even without an event.
const FORGOTTEN: Duration = Duration::from_mins(5);

/// State shared by the watches and the scheduler.
struct State {
    cache: SchedulerCache,
    queue: SchedulingQueue,
    metrics: SchedulerMetrics,
    /// Bindings by the pod's uid; the tokens of those that wait for claims are alive.
    prebinds: BTreeMap<String, Weak<CancellationToken>>,
}

/// The scheduler's view of the cluster.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    changed: Notify,
    /// Counter of changes of claims and of finished pods, for bindings that wait for claims.
    claims: watch::Sender<u64>,
}

impl Scheduler {
    /// Subscribes to the caches.
    pub(crate) fn listen(caches: &Caches) -> Arc<Self> {
        let state = State {
            cache: SchedulerCache::default(),
            queue: SchedulingQueue::default(),
            metrics: SchedulerMetrics::default(),
            prebinds: BTreeMap::new(),
        };
        let this = Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            claims: watch::Sender::new(0),
        });
        let scheduler = this.clone();
        caches.pods.listen(move |change| scheduler.pod_changed(change));
        let scheduler = this.clone();
        caches.nodes.listen(move |change| scheduler.node_changed(change));
        let scheduler = this.clone();
        caches
            .namespaces
            .listen(move |change| scheduler.namespace_changed(change));
        let scheduler = this.clone();
        caches.claims.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.volumes.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.storage_classes.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.csi_capacities.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.csi_drivers.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.csi_nodes.listen(move |_| scheduler.storage_changed());
        let scheduler = this.clone();
        caches.attachments.listen(move |change| {
            // Its node has room for another volume (`EventsToRegister`,
            // `pkg/scheduler/framework/plugins/nodevolumelimits/csi.go`).
            if change.new.is_none() {
                scheduler.storage_changed();
            }
        });
        this
    }

    /// Writes metrics, including those of the queue of pods.
    pub(crate) fn measure(&self, page: &mut Page) {
        let state = self.lock();
        let (pending, incoming, metrics) = (
            state.queue.pending(),
            state.queue.incoming.clone(),
            state.metrics.clone(),
        );
        drop(state);
        metrics::write(page, pending, &incoming, &metrics);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Activates pods that wait for claims or volumes, and bindings that wait for their claims.
    fn storage_changed(&self) {
        self.lock().queue.stir();
        self.claims.send_modify(|count| *count = count.wrapping_add(1));
        self.changed.notify_one();
    }

    fn pod_changed(&self, change: &Change<'_, Pod>) {
        if change.new.is_none() {
            self.claims.send_modify(|count| *count = count.wrapping_add(1));
        }
        let mut state = self.lock();
        // Another pod of the same name has replaced the old one.
        let replaced = change
            .old
            .filter(|old| change.new.is_none_or(|new| uid(new) != uid(*old)));
        let mut freed = false;
        if let Some(old) = replaced {
            freed |= state.cache.lift(uid(old));
            state.queue.remove(&Key::of(&old.metadata));
        }
        // The cache shares the pod with the cache.
        if let Some(pod) = change.kept {
            let key = Key::of(&pod.metadata);
            if let Some(node) = node_of(pod) {
                state.queue.remove(&key);
                if is_finished(pod) {
                    freed |= state.cache.lift(uid(&**pod));
                } else {
                    let was_bound = state.cache.find(uid(&**pod)).is_some_and(|placed| !placed.assumed);
                    if was_bound && same_claims(change) {
                        state.cache.renew(pod);
                    } else {
                        state.cache.place(pod, node, false);
                        state.queue.stir_followers();
                        // Its new labels may repel no other pod, its new size may leave room
                        // (`PodSchedulingPropertiesChange`, `pkg/scheduler/framework/events.go`).
                        freed |= was_bound;
                    }
                }
            } else if !is_ours(pod) {
                state.queue.remove(&key);
                freed |= state.cache.lift(uid(&**pod));
            } else if state.cache.find(uid(&**pod)).is_none() {
                // For a new pod whose node was nominated by an earlier scheduler.
                if let Some(node) = pod.status.nominated.as_deref().filter(|_| change.old.is_none()) {
                    state.cache.remember(pod, node);
                }
                state.queue.add(key, priority(pod), !same_claims(change));
            }
        }
        if freed {
            state.queue.stir();
        }
        drop(state);
        self.changed.notify_one();
    }

    fn node_changed(&self, change: &Change<'_, Node>) {
        let mut state = self.lock();
        if let Some(old) = change
            .old
            .filter(|old| change.new.is_none_or(|new| name(new) != name(*old)))
        {
            state.cache.remove_node(name(old));
            // Others may have been compared with it (`EventsToRegister`,
            // `pkg/scheduler/framework/plugins/podtopologyspread/plugin.go`).
            state.queue.stir_followers();
        }
        if let Some(node) = change.kept {
            let matters = change.old.is_none_or(|old| {
                let told = |node: &Node| {
                    let status = node.status.as_ref();
                    status.map(|status| (status.allocatable.clone(), status.declared_features.clone()))
                };
                old.spec != node.spec || old.metadata.labels != node.metadata.labels || told(old) != told(node)
            });
            // Its images change without making room.
            state.cache.set_node(node);
            if matters {
                state.queue.stir();
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Affinity terms may select the pods of namespaces by labels.
    fn namespace_changed(&self, change: &Change<'_, Namespace>) {
        let labels = |namespace: Option<&Namespace>| namespace.map(|namespace| namespace.metadata.labels.clone());
        if labels(change.old) == labels(change.new) {
            return;
        }
        let mut state = self.lock();
        match (change.old, change.new) {
            (_, Some(new)) => state.cache.set_namespace(name(new), new.metadata.labels.as_ref()),
            (Some(old), None) => state.cache.remove_namespace(name(old)),
            (None, None) => {}
        }
        // A namespace that was just created or deleted has no pods.
        if change.old.is_some() && change.new.is_some() {
            state.queue.stir();
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// True if a change leaves the fields for scheduling alone.
fn same_claims(change: &Change<'_, Pod>) -> bool {
    change.old.zip(change.new).is_some_and(|(old, new)| {
        old.spec == new.spec
            && old.node == new.node
            && old.metadata.labels() == new.metadata.labels()
            && uid(old) == uid(new)
    })
}

fn is_ours(pod: &Pod) -> bool {
    let wanted = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        .unwrap_or(SCHEDULER);
    wanted == SCHEDULER && !pod.metadata.is_deleting() && !is_finished(pod)
}

/// Runs the scheduler forever.
pub(crate) async fn run(scheduler: Arc<Scheduler>, context: Context) {
    context.caches.synced().await;
    let mut under_way: FuturesUnordered<BoxFuture<'static, Option<Bound>>> = FuturesUnordered::new();
    loop {
        while under_way.len() < IN_FLIGHT {
            let Some(key) = scheduler.lock().queue.take() else {
                break;
            };
            if let Some(request) = scheduler.decide(&context, &key) {
                under_way.push(request);
            }
        }
        let due = scheduler.lock().queue.next_due();
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(bound) = under_way.next(), if !under_way.is_empty() => {
                if let Some(bound) = bound {
                    scheduler.settle(&context, bound);
                }
            }
            () = scheduler.changed.notified() => {}
            () = wait => {}
        }
    }
}

impl Scheduler {
    /// Chooses a node for a pod and assumes it there; returns the binding to perform, or reports
    /// why there is none.
    fn decide(self: &Arc<Self>, context: &Context, key: &Key) -> Option<BoxFuture<'static, Option<Bound>>> {
        let pod = context
            .caches
            .pods
            .get(key)
            .filter(|pod| node_of(pod).is_none() && is_ours(pod));
        let Some(pod) = pod else {
            self.lock().queue.remove(key);
            return None;
        };
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_deref())
            .unwrap_or_default();
        if !gates.is_empty() {
            // Removing a gate changes the spec, which adds the pod again.
            self.lock().queue.gate(key);
            let message = "Scheduling is blocked due to non-empty scheduling gates";
            return report(context, &pod, "SchedulingGated", message, Nominated::AsBefore);
        }
        let mut state = self.lock();
        // Read under the lock: a change of them is heard once the pod is in a queue again.
        let claims = claims::of(&context.caches, &state.cache, &pod);
        if state.cache.find(uid(&*pod)).is_some() {
            return None;
        }
        let begun = Instant::now();
        match state.cache.choose(&pod, &claims) {
            Ok(node) => {
                state.metrics.chosen(begun.elapsed());
                Some(self.assume(context, &mut state, pod, &claims, &node))
            }
            Err(mut unplaceable) => {
                let attempts = state.queue.attempts(key);
                state.metrics.attempt(Outcome::Unschedulable, attempts);
                state.queue.refuse(key.clone(), &pod, FORGOTTEN);
                let promised = state.cache.promised_node(uid(&*pod)).is_some();
                let displacement = make_room(context, &mut state.cache, &pod, &claims, &mut unplaceable);
                state.metrics.chosen(begun.elapsed());
                state.metrics.preemption(&unplaceable, displacement.as_ref());
                if promised && state.cache.promised_node(uid(&*pod)).is_none() {
                    state.queue.stir();
                }
                drop(state);
                let nominated = Nominated::after(&pod, displacement.as_ref(), &unplaceable, promised);
                let told = refuse(context, &pod, &unplaceable, nominated);
                match displacement {
                    Some(displacement) => Some(Box::pin(self.clone().displace(
                        context.clone(),
                        pod,
                        displacement,
                        told,
                    ))),
                    None => told,
                }
            }
        }
    }

    /// Assumes a pod on a node; returns the binding to perform.
    fn assume(
        &self,
        context: &Context,
        state: &mut State,
        pod: Arc<Pod>,
        claims: &Claims,
        node: &Node,
    ) -> BoxFuture<'static, Option<Bound>> {
        let key = Key::of(&pod.metadata);
        let promised = state.cache.promised_node(uid(&*pod));
        if promised.is_some_and(|promised| promised != name(node)) {
            // Other pods may have that room now.
            state.queue.stir();
        }
        state.cache.place(&pod, name(node), true);
        debug!(pod = %key, node = name(node), "chosen");
        let bonds = claims.bonds(node).unwrap_or_default();
        let preempted = Arc::new(CancellationToken::new());
        if !bonds.is_empty() {
            let prebind = Arc::downgrade(&preempted);
            state.prebinds.insert(uid(&*pod).to_owned(), prebind);
        }
        let attempts = state.queue.attempts(&key);
        let bound = bind::bind(
            context.clone(),
            pod,
            name(node).to_owned(),
            bonds,
            self.claims.subscribe(),
            preempted,
        );
        Box::pin(async move {
            let bound = bound.await;
            bound.map(|bound| Bound { attempts, ..bound })
        })
    }

    /// Cancels the bindings of victims that still wait for their claims: those go back to the queue
    /// instead of being deleted (`pkg/scheduler/framework/preemption/executor.go`).
    fn cancel_prebinds(&self, context: &Context, pod: &Pod, displacement: &mut Displacement) {
        let node = &displacement.node;
        let said = format!(
            "Preempted by pod {} on node {node} (in kube-scheduler memory).",
            uid(pod)
        );
        let state = self.lock();
        displacement.victims.retain(|victim| {
            let Some(prebind) = state.prebinds.get(uid(&**victim)).and_then(Weak::upgrade) else {
                return true;
            };
            prebind.cancel();
            let told = note(victim, Severity::Normal, "Preempted", said.clone());
            context.recorder.note(SCHEDULER, Some(told));
            false
        });
    }

    /// Evicts the victims of a preemption, and then reports it.
    async fn displace(
        self: Arc<Self>,
        context: Context,
        pod: Arc<Pod>,
        mut displacement: Displacement,
        told: Option<BoxFuture<'static, Option<Bound>>>,
    ) -> Option<Bound> {
        info!(pod = %Key::of(&pod.metadata), node = displacement.node, victims = displacement.victims.len(), "preempts");
        self.cancel_prebinds(&context, &pod, &mut displacement);
        let plan = displacement.plan(&pod, SCHEDULER, (context.clock)());
        if perform(&context, SCHEDULER, plan).await.retry {
            // The next attempt looks for victims again.
            let mut state = self.lock();
            state.cache.disappoint(uid(&*pod));
            state.queue.stir();
        }
        told?.await
    }

    /// Processes the result of a binding.
    fn settle(&self, context: &Context, bound: Bound) {
        let Bound {
            pod,
            node,
            result,
            attempts,
        } = bound;
        let key = Key::of(&pod.metadata);
        self.lock().prebinds.remove(uid(&*pod));
        match result {
            Ok(()) => {
                info!(pod = %key, node, "bound");
                {
                    let mut state = self.lock();
                    state.queue.settled(&key);
                    state.metrics.bound(attempts);
                }
                let message = format!("Successfully assigned {key} to {node}");
                context
                    .recorder
                    .note(SCHEDULER, Some(note(&pod, Severity::Normal, "Scheduled", message)));
            }
            Err(reason) => {
                warn!(pod = %key, node, %reason, "not bound");
                let failed = match &reason {
                    NotBound::Claims(reason) => Some(format!("binding volumes: {reason}")),
                    NotBound::Preempted => Some(reason.to_string()),
                    NotBound::Pod(_) => None,
                };
                if let Some(failed) = failed {
                    let message = format!("running PreBind plugin \"VolumeBinding\": {failed}");
                    let told = note(&pod, Severity::Warning, "FailedScheduling", message);
                    context.recorder.note(SCHEDULER, Some(told));
                }
                let mut state = self.lock();
                let assumed = state.cache.find(uid(&*pod)).is_some_and(|placed| placed.assumed);
                if assumed {
                    state.cache.lift(uid(&*pod));
                }
                state.metrics.attempt(Outcome::Error, attempts);
                state.queue.back_off(key, priority(&pod));
                state.queue.stir();
            }
        }
    }
}
