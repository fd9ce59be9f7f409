//! Counts of pods and containers that were started, of failures to, of terminations, rejections and
//! evictions, of removed images, and of health checks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_plan::pod::observed::Exit;
use agent_plan::pod::pods::{self, Group};
use agent_plan::pod::termination::Rejection;
use k8s_openapi::api::core::v1::Pod;

/// Counts since the agent began.
#[derive(Debug, Default)]
pub(crate) struct StartCounts {
    counts: Mutex<Counts>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) pods: u64,
    pub(crate) pod_failures: u64,
    /// Pods with user namespaces.
    pub(crate) user_pods: u64,
    pub(crate) user_pod_failures: u64,
    /// By kind.
    pub(crate) containers: BTreeMap<&'static str, u64>,
    /// By kind and reason.
    pub(crate) container_failures: BTreeMap<(&'static str, String), u64>,
    /// By kind, exit code and reason.
    pub(crate) terminations: BTreeMap<(&'static str, i32, String), u64>,
    /// By reason.
    pub(crate) rejections: BTreeMap<&'static str, u64>,
    /// By signal.
    pub(crate) evictions: BTreeMap<&'static str, u64>,
    /// Images that were removed to make room.
    pub(crate) images: u64,
    /// By the check's name and whether it passed.
    pub(crate) checks: BTreeMap<(&'static str, bool), u64>,
}

impl StartCounts {
    pub(crate) fn pod(&self, pod: &Pod) {
        let mut counts = self.lock();
        counts.pods += 1;
        counts.user_pods += u64::from(has_users(pod));
    }

    pub(crate) fn pod_failed(&self, pod: &Pod) {
        let mut counts = self.lock();
        counts.pod_failures += 1;
        counts.user_pod_failures += u64::from(has_users(pod));
    }

    pub(crate) fn container(&self, pod: &Pod, name: &str) {
        *self.lock().containers.entry(kind(pod, name)).or_default() += 1;
    }

    pub(crate) fn container_failed(&self, pod: &Pod, name: &str, reason: &str) {
        let mut counts = self.lock();
        let failures = counts.container_failures.entry((kind(pod, name), reason.to_owned()));
        *failures.or_default() += 1;
        counts.user_pod_failures += u64::from(has_users(pod));
    }

    pub(crate) fn container_ended(&self, pod: &Pod, name: &str, exit: &Exit) {
        let key = (kind(pod, name), exit.code, exit.reason.clone());
        *self.lock().terminations.entry(key).or_default() += 1;
    }

    pub(crate) fn rejected(&self, rejection: &Rejection) {
        *self.lock().rejections.entry(rejection.label()).or_default() += 1;
    }

    pub(crate) fn evicted(&self, signal: &'static str) {
        *self.lock().evictions.entry(signal).or_default() += 1;
    }

    pub(crate) fn image_removed(&self) {
        self.lock().images += 1;
    }

    pub(crate) fn checked(&self, check: &'static str, passed: bool) {
        *self.lock().checks.entry((check, passed)).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_users(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false))
}

fn kind(pod: &Pod, name: &str) -> &'static str {
    match pods::group(pod, name) {
        Group::Init => "init_container",
        Group::Main => "container",
        Group::Ephemeral => "ephemeral_container",
    }
}
