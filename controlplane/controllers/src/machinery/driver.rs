//! The only loop with effects: takes a key, asks for its plan, performs the steps, and plans the
//! key again only when the caches show the results. So a plan never misses what its predecessor
//! did.

mod perform;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::step::{Plan, Resource, Target};
use controlplane_plan::workloads::rollout::Failure;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::{debug, error, warn};

pub(crate) use self::perform::perform;
use crate::Clock;
use crate::machinery::cache::Key;
use crate::machinery::events::Recorder;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Keys whose steps are performed at once.
const IN_FLIGHT: usize = 64;
/// Time without seeing the results after which a list is requested.
const RELIST_AFTER: Duration = Duration::from_secs(5);
/// Number of consecutive successful plans, none of which has waited for more, after which a key is
/// delayed, and the delay: a hot loop must not keep a processor busy.
const HOT_LOOP_LIMIT: (u32, Duration) = (100, Duration::from_millis(100));
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_mins(1));

/// A controller: a plan.
pub(crate) trait Controller: Send + Sync + 'static {
    /// Plans `key`; `failure` is the server's last refusal of a creation, or to delete a set's pod.
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan;
    /// Receives the result of a lookup: whether the object of this uid exists.
    fn learn(&self, _target: &Target, _exists: bool, _now: Timestamp) {}
    /// Receives the size of an object by its scale.
    fn measured(&self, _target: &Target, _size: &Size) {}
    /// Receives the result of a sync, and its duration including the plan.
    fn synced(&self, _key: &Key, _done: &Done, _took: Duration) {}
}

/// Result that must be seen before a key is planned again.
#[derive(Debug, Clone)]
pub(crate) enum Awaited {
    /// The resource's cache has reached a revision.
    Revision(Resource, u64),
    /// The object is gone or being deleted.
    Deleted(Resource, Key, String),
    /// A request was not answered: a list that began afterwards is in the cache.
    Listed(Resource, u64),
}

impl Awaited {
    /// True if the caches show it. Kinds that are not cached cannot be awaited.
    pub(crate) fn is_met(&self, caches: &Caches) -> bool {
        match self {
            Self::Revision(resource, revision) => caches.of(resource).is_none_or(|cache| cache.revision() >= *revision),
            Self::Deleted(resource, key, uid) => caches.of(resource).is_none_or(|cache| cache.is_deleted(key, uid)),
            Self::Listed(resource, number) => caches.of(resource).is_none_or(|cache| cache.listed() >= *number),
        }
    }

    fn resource(&self) -> Resource {
        match self {
            Self::Revision(resource, _) | Self::Deleted(resource, ..) | Self::Listed(resource, _) => *resource,
        }
    }
}

/// Time at which a key whose steps succeeded is planned again, if no event comes before. The last
/// step that sets it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Next {
    /// Never: the plan would be the same.
    Idle,
    /// After a delay: the steps cannot be done in the current state.
    Later,
    /// As soon as the caches show the results.
    #[default]
    Now,
}

/// Desired number of pods of an object by its scale, if it exists; or the server's refusal.
pub(crate) type Size = Result<Option<i32>, String>;

/// Result of a plan's steps.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) awaited: Vec<Awaited>,
    pub(crate) failure: Option<Failure>,
    /// Objects that were looked up, and whether they exist.
    pub(crate) looked: Vec<(Target, bool)>,
    /// Objects that were measured.
    pub(crate) measured: Vec<(Target, Size)>,
    /// A step failed and must be retried.
    pub(crate) retry: bool,
    pub(crate) next: Next,
    pub(crate) counts: StepCounts,
}

/// Number of objects that a plan's steps have changed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StepCounts {
    pub(crate) created: u64,
    /// Number of creations that the server refused.
    pub(crate) refused: u64,
    pub(crate) deleted: u64,
}

impl std::ops::AddAssign for StepCounts {
    fn add_assign(&mut self, more: Self) {
        self.created += more.created;
        self.refused += more.refused;
        self.deleted += more.deleted;
    }
}

/// Handles for a worker.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: kube::Client,
    pub(crate) caches: Arc<Caches>,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
}

struct Parked {
    awaited: Vec<Awaited>,
    since: Instant,
}

/// State of the worker; each map holds only keys in that state.
#[derive(Default)]
struct Memory {
    parked: BTreeMap<Key, Parked>,
    failures: BTreeMap<Key, Failure>,
    attempts: BTreeMap<Key, u32>,
    /// Number of plans since the last one without steps, or that has waited.
    streaks: BTreeMap<Key, u32>,
    /// Time until which non-urgent plans wait.
    patient: BTreeMap<Key, Instant>,
}

/// Processes `queue` forever. `component` is the source of events, `replicaset-controller`.
pub(crate) async fn run(
    controller: Arc<dyn Controller>,
    component: &'static str,
    context: Context,
    queue: Arc<Queue<Key>>,
) {
    context.caches.synced().await;
    work(&*controller, component, &context, &queue).await;
}

async fn work(controller: &dyn Controller, component: &'static str, context: &Context, queue: &Arc<Queue<Key>>) {
    let mut memory = Memory::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((key, done, begun)) = under_way.next(), if !under_way.is_empty() => {
                let (done, begun): (Done, Instant) = (done, begun);
                controller.synced(&key, &done, begun.elapsed());
                for (target, exists) in &done.looked {
                    controller.learn(target, *exists, (context.clock)());
                }
                for (target, size) in &done.measured {
                    controller.measured(target, size);
                }
                queue.done(&key);
                memory.finish(context, queue, key, done);
            }
            key = queue.next(), if under_way.len() < IN_FLIGHT => {
                if !memory.may_plan(context, queue, &key) {
                    continue;
                }
                let begun = Instant::now();
                let Some(plan) = memory.plan(controller, context, &key) else {
                    error!(controller = component, %key, "planning panicked");
                    queue.done(&key);
                    queue.push_after(key, BACKOFF.1);
                    continue;
                };
                if let Some(delay) = plan.again {
                    queue.push_after(key.clone(), delay);
                }
                if plan.is_empty() {
                    queue.done(&key);
                    controller.synced(&key, &Done::default(), begun.elapsed());
                    memory.failures.remove(&key);
                    memory.attempts.remove(&key);
                    memory.streaks.remove(&key);
                    memory.patient.remove(&key);
                    continue;
                }
                if let Some(wait) = memory.may_wait(&key, &plan) {
                    queue.done(&key);
                    queue.push_after(key, wait);
                    continue;
                }
                debug!(controller = component, %key, %plan, "plan");
                let context = context.clone();
                under_way.push(Box::pin(async move {
                    let done = perform(&context, component, plan).await;
                    (key, done, begun)
                }));
            }
        }
    }
}

impl Memory {
    /// Runs a plan and catches panics. A panic is a bug, but an object caused it, and that object
    /// still exists after a restart: it must not block all other keys.
    fn plan(&self, controller: &dyn Controller, context: &Context, key: &Key) -> Option<Plan> {
        let (failure, now) = (self.failures.get(key), (context.clock)());
        catch_unwind(AssertUnwindSafe(|| controller.plan(key, failure, now))).ok()
    }

    /// Time for which a plan may still wait.
    fn may_wait(&mut self, key: &Key, plan: &Plan) -> Option<Duration> {
        let now = Instant::now();
        let until = plan
            .patience
            .map(|patience| *self.patient.entry(key.clone()).or_insert(now + patience));
        let wait = until
            .and_then(|until| until.checked_duration_since(now))
            .filter(|wait| !wait.is_zero());
        if wait.is_none() {
            self.patient.remove(key);
        } else {
            self.streaks.remove(key);
        }
        wait
    }

    /// True if all steps of the key's last plan are finished and seen.
    fn may_plan(&mut self, context: &Context, queue: &Queue<Key>, key: &Key) -> bool {
        let Some(parked) = self.parked.get_mut(key) else {
            return true;
        };
        parked.awaited.retain(|awaited| !awaited.is_met(&context.caches));
        if parked.awaited.is_empty() {
            self.parked.remove(key);
            return true;
        }
        if parked.since.elapsed() >= RELIST_AFTER {
            warn!(%key, awaited = ?parked.awaited, "not seen yet, listing again");
            parked.since = Instant::now();
            let resources: BTreeSet<Resource> = parked.awaited.iter().map(Awaited::resource).collect();
            for cache in resources.iter().filter_map(|resource| context.caches.of(resource)) {
                cache.relist();
            }
        }
        let lists = parked
            .awaited
            .iter()
            .any(|awaited| matches!(awaited, Awaited::Listed(..)));
        queue.done(key);
        queue.push_after(key.clone(), if lists { RELIST_AFTER / 50 } else { RELIST_AFTER });
        false
    }

    fn finish(&mut self, context: &Context, queue: &Queue<Key>, key: Key, done: Done) {
        match done.failure {
            Some(failure) => drop(self.failures.insert(key.clone(), failure)),
            None if !done.retry => drop(self.failures.remove(&key)),
            None => {}
        }
        let awaited: Vec<_> = done
            .awaited
            .into_iter()
            .filter(|awaited| !awaited.is_met(&context.caches))
            .collect();
        if !awaited.is_empty() {
            self.parked.insert(
                key.clone(),
                Parked {
                    awaited,
                    since: Instant::now(),
                },
            );
        }
        if done.retry {
            let attempts = self.attempts.entry(key.clone()).or_default();
            let delay = BACKOFF.0.saturating_mul(1 << (*attempts).min(16)).min(BACKOFF.1);
            *attempts = attempts.saturating_add(1);
            queue.push_after(key, delay);
            return;
        }
        self.attempts.remove(&key);
        if done.next == Next::Now {
            let streak = self.streaks.entry(key.clone()).or_default();
            *streak = streak.saturating_add(1);
            if *streak == HOT_LOOP_LIMIT.0 {
                warn!(%key, "plans do not come to an end");
            }
            if *streak < HOT_LOOP_LIMIT.0 {
                queue.push(key);
            } else {
                queue.push_after(key, HOT_LOOP_LIMIT.1);
            }
            return;
        }
        self.streaks.remove(&key);
        if done.next == Next::Later {
            queue.push_after(key, RELIST_AFTER);
        }
    }
}
