//! The `CronJob` controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use controlplane_plan::objects::{Meta as _, controller_of, uid};
use controlplane_plan::step::{CRON_JOBS, Plan, Target};
use controlplane_plan::workloads::cron_job::{self, Snapshot};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, owned_by};
use crate::machinery::queue::Queue;

/// Plans `CronJob`s.
pub(crate) struct CronJobs {
    caches: Arc<Caches>,
    /// Uids of Jobs that a status lists but that do not exist.
    missing: Mutex<BTreeSet<String>>,
    /// Uids of the `CronJob`s, and their schedules and time zones when they were last planned.
    schedules: Mutex<BTreeMap<String, (String, Option<String>)>>,
}

impl CronJobs {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            missing: Mutex::default(),
            schedules: Mutex::default(),
        }
    }

    /// True if the schedule has changed since the last call.
    fn is_rescheduled(&self, cron_job: &CronJob) -> bool {
        let spec = &cron_job.spec;
        let schedule = (spec.schedule.clone(), spec.time_zone.clone());
        let mut schedules = self.schedules.lock().unwrap_or_else(PoisonError::into_inner);
        let before = schedules.insert(uid(cron_job).to_owned(), schedule.clone());
        if before.is_none() {
            let all = self.caches.cron_jobs.all();
            let there: BTreeSet<&str> = all.iter().map(|cron_job| uid(&**cron_job)).collect();
            schedules.retain(|known, _| there.contains(known.as_str()));
        }
        before.is_some_and(|before| before != schedule)
    }
}

impl Controller for CronJobs {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(cron_job) = self.caches.cron_jobs.get(key) else {
            return Plan::default();
        };
        let jobs = self.caches.jobs.indexed(&owned_by(uid(&*cron_job)));
        let jobs: Vec<&Job> = jobs.iter().map(Arc::as_ref).collect();
        let snapshot = Snapshot {
            cron_job: &cron_job,
            jobs: &jobs,
            uid_of: &|name| {
                let job = self.caches.jobs.get(&Key::new(&key.namespace, name));
                job.map(|job| uid(&*job).to_owned())
            },
            missing: &self.missing.lock().unwrap_or_else(PoisonError::into_inner),
            rescheduled: &|| self.is_rescheduled(&cron_job),
        };
        cron_job::plan(&snapshot, now)
    }

    fn learn(&self, target: &Target, exists: bool, _now: Timestamp) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if !exists {
            missing.insert(target.uid.clone());
        }
        // Bounded by the Jobs that statuses list.
        let all = self.caches.cron_jobs.all();
        let listed: BTreeSet<&str> = all.iter().flat_map(|cron_job| active(cron_job)).collect();
        missing.retain(|uid| listed.contains(uid.as_str()));
    }
}

fn active(cron_job: &CronJob) -> impl Iterator<Item = &str> {
    let active = cron_job.status.as_ref().and_then(|status| status.active.as_ref());
    active.into_iter().flatten().filter_map(|job| job.uid.as_deref())
}

/// Wakes the `CronJob`s that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("cronjob");
    caches.cron_jobs.wake_if(&queue, |_| true);
    let wake = queue.clone();
    caches.jobs.listen(move |change| {
        for job in change.sides() {
            let owner = controller_of(&job.metadata).filter(|owner| owner.kind == CRON_JOBS.kind);
            if let Some(owner) = owner {
                wake.push(Key::new(job.metadata.namespace(), &owner.name));
            }
        }
    });
    queue
}
