//! Creates and deletes a Job's pods (`manageJob` of `pkg/controller/job/job_controller.go`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{
    FAILURES, IGNORED_FAILURES, INDEX, Snapshot, Sync, TRACKING, backoff, count, index_of, indexes_of, is_indexed,
    is_suspended, is_terminating, policy, waits_for_end,
};
use crate::objects::{Meta as _, target, uid};
use crate::pod::Pod;
use crate::pod::{is_ready, node_of, phase, ready_since};
use crate::step::{PODS, Plan, Step};
use crate::workloads::pod_template;

/// Most pods that one plan creates or deletes.
const BURST: usize = 500;
/// Longest prefix before the five random letters
/// (`staging/src/k8s.io/apiserver/pkg/storage/names/generate.go`).
const LONGEST_PREFIX: usize = 58;

/// Deletion order, the least first. The order of the fields is the policy (`ActivePods` of
/// `pkg/controller/controller_utils.go`).
type Worth<'a> = (
    bool,
    u8,
    bool,
    Reverse<Option<Timestamp>>,
    Reverse<(i32, i32)>,
    Reverse<Option<Timestamp>>,
    &'a str,
);

fn worth(pod: &Pod) -> Worth<'_> {
    let rank = match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    (
        node_of(pod).is_some(),
        rank,
        is_ready(pod),
        Reverse(ready_since(pod)),
        Reverse(pod.status.restarts),
        Reverse(pod.metadata.created),
        uid(pod),
    )
}

/// Removes the finalizer of a pod. With `exactly` only from this revision of it, since a pod that
/// has ended meanwhile must be counted.
pub(super) fn untrack(pod: &Pod, exactly: bool) -> Step {
    let revision = pod.metadata.resource_version().filter(|_| exactly);
    target(PODS, pod).strategic(json!({ "metadata": {
            "uid": uid(pod), "resourceVersion": revision, "$deleteFromPrimitiveList/finalizers": [TRACKING],
        } }))
}

impl<'a> Sync<'a> {
    /// Deletes active pods when the Job ends. The finalizers stay until the pods are counted.
    pub(super) fn delete_active(&self) -> Vec<Step> {
        self.active
            .iter()
            .map(|pod| pod_template::delete(&self.owner, pod))
            .collect()
    }

    /// Desired number of active pods.
    fn wanted(&self) -> usize {
        let most = count(self.spec.parallelism);
        let wanted = match self.spec.completions {
            _ if is_suspended(self.spec) => 0,
            None if self.succeeded > 0 => return self.active.len(),
            None => most,
            Some(_) => self.completions().saturating_sub(self.succeeded).min(most),
        };
        usize::try_from(wanted).unwrap_or(usize::MAX)
    }

    /// Deletes surplus active pods. They do not count as failed: their finalizers are removed
    /// first.
    pub(super) fn remove_surplus(&self) -> [Vec<Step>; 2] {
        let least = self.active.len().saturating_sub(self.wanted());
        let (mut surplus, mut left) = if is_indexed(self.spec) {
            self.without_index_of_their_own()
        } else {
            (Vec::new(), self.active.clone())
        };
        left.sort_by_key(|pod| worth(pod));
        surplus.extend(left.into_iter().take(least.saturating_sub(surplus.len())));
        surplus.truncate(if is_suspended(self.spec) { usize::MAX } else { BURST });
        let tracked = surplus.iter().filter(|pod| super::is_tracked(pod));
        [
            tracked.map(|pod| untrack(pod, true)).collect(),
            surplus
                .iter()
                .map(|pod| pod_template::delete(&self.owner, pod))
                .collect(),
        ]
    }

    /// Pods without a valid index, or with a duplicate one, that are to be removed; and the rest.
    fn without_index_of_their_own(&self) -> (Vec<&'a Pod>, Vec<&'a Pod>) {
        let (mut surplus, mut best) = (Vec::new(), BTreeMap::<u32, &Pod>::new());
        for pod in self.active.iter().copied() {
            let index = index_of(pod).filter(|index| *index < self.completions());
            let loser = match index.and_then(|index| Some((index, *best.get(&index)?))) {
                Some((_, other)) if worth(other) >= worth(pod) => Some(pod),
                Some((index, _)) => best.insert(index, pod),
                None => match index {
                    Some(index) => best.insert(index, pod),
                    None => Some(pod),
                },
            };
            surplus.extend(loser);
        }
        (surplus, best.into_values().collect())
    }

    /// Creates missing pods, or asks for another plan once that is allowed.
    pub(super) fn add_missing(&self, snapshot: &Snapshot<'_>, plan: &mut Plan) -> Vec<Step> {
        let ending = if waits_for_end(self.spec) { self.terminating } else { 0 };
        let missing = self.wanted().saturating_sub(ending).saturating_sub(self.active.len());
        if missing == 0 {
            return Vec::new();
        }
        // While creation fails, one attempt is enough.
        let most = if snapshot.failure.is_some() { 1 } else { BURST };
        if self.spec.backoff_limit_per_index.is_none() {
            let wait = snapshot.backoff.remaining(self.now);
            if !wait.is_zero() {
                plan.again(wait);
                return Vec::new();
            }
        }
        if !is_indexed(self.spec) {
            let create = |_| pod_template::create(&self.owner, &self.pod(None));
            return (0..missing.min(most)).map(create).collect();
        }
        let mut indexes = self.pending(missing.min(BURST));
        if self.spec.backoff_limit_per_index.is_some() {
            let wait = |index: &u32| match self.replaced.get(index) {
                Some(failed) => backoff::of_index(failed, self.now),
                None => Duration::ZERO,
            };
            if let Some(wait) = indexes.iter().map(wait).filter(|wait| !wait.is_zero()).min() {
                plan.again(wait);
            }
            indexes.retain(|index| wait(index).is_zero());
        }
        indexes.truncate(most);
        let create = |index| pod_template::create(&self.owner, &self.pod(Some(index)));
        indexes.into_iter().map(create).collect()
    }

    /// The first indexes that are neither active nor finished.
    fn pending(&self, count: usize) -> Vec<u32> {
        let mut taken = self.completed.with_each(&indexes_of(self.active.iter().copied()));
        if waits_for_end(self.spec) {
            let ending = self.pods.iter().copied().filter(|pod| is_terminating(pod));
            taken = taken.with_each(&indexes_of(ending));
        }
        if let Some(failed) = &self.failed_indexes {
            taken = taken.with(failed.intervals());
        }
        taken.missing(count, self.completions())
    }

    fn pod(&self, index: Option<u32>) -> k8s_openapi::api::core::v1::Pod {
        let mut template: PodTemplateSpec = self.spec.template.clone();
        let metadata = template.metadata.get_or_insert_default();
        let finalizers = metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|held| held == TRACKING) {
            finalizers.push(TRACKING.to_owned());
        }
        let Some(index) = index else {
            return pod_template::pod(&self.owner, &template);
        };
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX.to_owned(), index.to_string());
        if self.spec.backoff_limit_per_index.is_some() {
            let (failures, ignored) = self.failures_before(index);
            annotations.insert(FAILURES.to_owned(), failures.to_string());
            if ignored > 0 {
                annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
            }
        }
        metadata
            .labels
            .get_or_insert_default()
            .insert(INDEX.to_owned(), index.to_string());
        if let Some(spec) = template.spec.as_mut() {
            spec.hostname = Some(format!("{}-{index}", self.owner.name));
            spec.containers.iter_mut().for_each(tell_index);
            spec.init_containers.iter_mut().flatten().for_each(tell_index);
        }
        let mut pod = pod_template::pod(&self.owner, &template);
        pod.metadata.generate_name = Some(prefix(&self.owner.name, index));
        pod
    }

    /// Earlier failures of an index: counted and ignored ones.
    fn failures_before(&self, index: u32) -> (i32, i32) {
        let Some(failed) = self.replaced.get(&index) else {
            return (0, 0);
        };
        let before = failed
            .attempt
            .as_ref()
            .map_or((0, 0), |attempt| (attempt.failures, attempt.ignored));
        if policy::on_failure(self.spec, failed) == policy::Action::Ignore {
            (before.0, before.1.saturating_add(1))
        } else {
            (before.0.saturating_add(1), before.1)
        }
    }
}

/// Prefix of a pod's name: the Job's name is truncated so that the index is not.
fn prefix(job: &str, index: u32) -> String {
    let suffix = format!("-{index}-");
    let most = LONGEST_PREFIX.saturating_sub(suffix.len());
    // Names are ASCII.
    let job = if job.len() > most {
        job.get(..most).unwrap_or(job)
    } else {
        job
    };
    format!("{job}{suffix}")
}

fn tell_index(container: &mut Container) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|variable| variable.name == NAME) {
        return;
    }
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.labels['{INDEX}']"),
    };
    variables.push(EnvVar {
        name: NAME.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(field),
            ..EnvVarSource::default()
        }),
    });
}
