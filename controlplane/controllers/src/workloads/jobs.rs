//! Job controller, and the controllers that remove finalizers of orphaned pods and delete finished
//! Jobs.

mod metrics;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, controller_of, matches, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{JOBS, Plan};
use controlplane_plan::workloads::job::{self, Backoff, Snapshot};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;

pub(crate) use self::metrics::JobMetrics;
use crate::machinery::cache::Key;
use crate::machinery::driver::{Controller, Done};
use crate::machinery::kinds::{Caches, owned_by, unmanaged};
use crate::machinery::queue::Queue;

/// Number of active pods above which a Job is not planned for each of their changes, and the time in which changes are
/// gathered (`syncJobBatchPeriod` of `pkg/controller/job/job_controller.go` is a second, for all Jobs).
const CROWD: i32 = 8;
const BATCH: Duration = Duration::from_millis(50);

/// Plans Jobs.
pub(crate) struct Jobs {
    caches: Arc<Caches>,
    /// Backoff of unfinished Jobs, with their uids.
    backoffs: Mutex<BTreeMap<Key, (String, Backoff)>>,
    metrics: Arc<JobMetrics>,
}

impl Jobs {
    pub(crate) fn new(caches: Arc<Caches>, metrics: Arc<JobMetrics>) -> Self {
        Self {
            caches,
            backoffs: Mutex::default(),
            metrics,
        }
    }

    /// Failures of a Job's pods, including these.
    fn backoff(&self, key: &Key, job: &Job, pods: &[&Pod]) -> Backoff {
        let mut backoffs = self.backoffs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(spec) = job.spec.as_ref().filter(|_| !job::is_finished(job)) else {
            backoffs.remove(key);
            return Backoff::default();
        };
        let (known, backoff) = backoffs.entry(key.clone()).or_default();
        if known != uid(job) {
            uid(job).clone_into(known);
            *backoff = Backoff::default();
        }
        backoff.observe(spec, pods);
        backoff.clone()
    }
}

impl Controller for Jobs {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(job) = self.caches.jobs.get(key) else {
            self.backoffs.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            return Plan::default();
        };
        let own = self.caches.pods.indexed(&owned_by(uid(&*job)));
        let own: Vec<&Pod> = own.iter().map(Arc::as_ref).collect();
        let backoff = self.backoff(key, &job, &own);
        let free = self.caches.pods.indexed(&unmanaged(&key.namespace));
        let pods: Vec<&Pod> = own.into_iter().chain(free.iter().map(Arc::as_ref)).collect();
        let snapshot = Snapshot {
            job: &job,
            pods: &pods,
            failure,
            backoff: &backoff,
        };
        job::plan(&snapshot, now)
    }

    fn synced(&self, key: &Key, done: &Done, took: Duration) {
        if let Some(job) = self.caches.jobs.get(key) {
            self.metrics.synced(&job, done, took);
        }
    }
}

/// Wakes the Jobs that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("job");
    caches.jobs.wake(&queue);
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for pod in change.sides() {
            let namespace = pod.metadata.namespace();
            match controller_of(&pod.metadata) {
                Some(owner) if owner.kind == JOBS.kind => {
                    let key = Key::new(namespace, &owner.name);
                    let active = caches.jobs.get(&key).and_then(|job| job.status.as_ref()?.active);
                    if active.is_some_and(|active| active > CROWD) {
                        wake.push_after(key, BATCH);
                    } else {
                        wake.push(key);
                    }
                }
                Some(_) => {}
                None => {
                    let adopts = |job: &&Arc<Job>| {
                        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                        selector.is_some_and(|selector| matches(selector, pod.metadata.labels()))
                    };
                    for job in caches.jobs.in_namespace(namespace).iter().filter(adopts) {
                        wake.push(Key::of(&job.metadata));
                    }
                }
            }
        }
    });
    queue
}

/// Plans pods that no Job will count.
pub(crate) struct Orphans(pub(crate) Arc<Caches>);

impl Controller for Orphans {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let Some(pod) = self.0.pods.get(key) else {
            return Plan::default();
        };
        let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == JOBS.kind);
        let job = owner.and_then(|owner| self.0.jobs.get(&Key::new(&key.namespace, &owner.name)));
        job::plan_orphan(&pod, job.as_deref())
    }
}

/// Wakes a Job's pods when it changes, and pods whose Job is finished or gone.
pub(crate) fn listen_orphans(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("job_orphan_pod");
    caches.pods.wake_if(&queue, job::is_tracked);
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.jobs.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        if let Some(job) = change
            .sides()
            .last()
            .filter(|job| change.new.is_none() || job::is_finished(job))
        {
            for pod in caches.pods.indexed(&owned_by(uid(job))) {
                wake.push(Key::of(&pod.metadata));
            }
        }
    });
    queue
}

/// Plans the deletion of finished Jobs with a TTL.
pub(crate) struct Ended(pub(crate) Arc<Caches>);

impl Controller for Ended {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let job = self.0.jobs.get(key);
        job.map(|job| job::ttl::plan(&job, now)).unwrap_or_default()
    }
}

/// Wakes finished Jobs.
pub(crate) fn listen_ended(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("ttl_jobs_to_delete");
    caches.jobs.wake_if(&queue, job::is_finished);
    queue
}
