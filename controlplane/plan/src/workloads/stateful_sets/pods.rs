//! Pods of a StatefulSet: identity, creation, correction and deletion
//! (`pkg/controller/statefulset/stateful_pod_control.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod as Whole, Volume};
use serde_json::{Value, json};

use super::{View, Work};
use crate::objects::{Meta as _, name, target};
use crate::pod::Pod;
use crate::pod::phase;
use crate::step::{Note, Outcome, PODS, Severity, Step, Target};
use crate::workloads::history::REVISION;
use crate::workloads::pod_template;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// A change of a pod, as named in events.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Create,
    Update,
    Delete,
}

impl Verb {
    const fn reasons(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Create => ("Create", "SuccessfulCreate", "FailedCreate"),
            Self::Update => ("Update", "SuccessfulUpdate", "FailedUpdate"),
            Self::Delete => ("Delete", "SuccessfulDelete", "FailedDelete"),
        }
    }
}

impl View<'_> {
    fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.owner.name)
    }

    /// The events of a change of a pod (`recordPodEvent`).
    fn outcome(&self, verb: Verb, pod: &str) -> Outcome {
        let (word, done, _) = verb.reasons();
        let set = &self.owner.name;
        let message = format!("{word} Pod {pod} in StatefulSet {set} successful");
        Outcome {
            done: Some(self.owner.note(Severity::Normal, done, message)),
            failed: vec![self.failure(verb, pod, "{}")],
        }
    }

    pub(super) fn failure(&self, verb: Verb, pod: &str, error: &str) -> Note {
        let (word, _, failed) = verb.reasons();
        let set = &self.owner.name;
        let message = format!("{word} Pod {pod} in StatefulSet {set} failed error: {error}");
        self.owner.note(Severity::Warning, failed, message)
    }

    /// Creates a pod and the claims that it needs.
    pub(super) fn make(&self, ordinal: i32, work: &mut Work) {
        let pod_name = self.pod_name(ordinal);
        // Its uid is not known yet, so claims of an existing pod of this name are not its own.
        let pod = Target {
            resource: PODS,
            namespace: self.owner.namespace.clone(),
            name: pod_name.clone(),
            uid: String::new(),
        };
        if self.has_stale_claim(ordinal, &pod) {
            return;
        }
        if let Err(going) = self.make_claims(ordinal, &pod, work) {
            let error = format!("pvc {going} is being deleted");
            work.pods
                .push(Step::Event(self.failure(Verb::Create, &pod_name, &error)));
            return;
        }
        work.made = work.made.saturating_add(1);
        work.pods.push(Step::Create {
            resource: PODS,
            namespace: self.owner.namespace.clone(),
            body: Box::new(json!(self.pod(ordinal))),
            outcome: self.outcome(Verb::Create, &pod_name),
        });
    }

    pub(super) fn delete(&self, pod: &Pod) -> Step {
        let mut step = pod_template::delete(&self.owner, pod);
        if let Step::Delete { outcome, .. } = &mut step {
            *outcome = self.outcome(Verb::Delete, name(pod));
        }
        step
    }

    fn pod(&self, ordinal: i32) -> Whole {
        let version = self.version(ordinal);
        let mut pod = pod_template::pod(&self.owner, &version.template);
        let pod_name = self.pod_name(ordinal);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(REVISION.to_owned(), version.name.clone());
        labels.extend(identity(&pod_name, ordinal));
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(pod_name.clone());
        spec.subdomain.clone_from(&self.spec.service_name);
        let own = spec.volumes.take().into_iter().flatten();
        let own = own.filter(|volume| !self.templates.contains_key(&*volume.name));
        let volumes: Vec<Volume> = self.volumes(ordinal).into_iter().chain(own).collect();
        spec.volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
        pod.metadata.name = Some(pod_name);
        pod.metadata.generate_name = None;
        pod
    }

    /// Volumes of a pod's claims.
    fn volumes(&self, ordinal: i32) -> Vec<Volume> {
        let volume = |template: &&str| Volume {
            name: (*template).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: self.claim_name(template, ordinal),
                read_only: None,
            }),
            ..Volume::default()
        };
        self.templates.keys().map(volume).collect()
    }

    /// Restores a pod's labels and its claims' owners. Volumes are immutable: upstream still tries
    /// to change them, and so does this, for the event.
    pub(super) fn correct(&self, ordinal: i32, pod: &Pod, work: &mut Work) {
        let about = target(PODS, pod);
        // For a pod that has not started this is done with its claims (`make_claims`).
        let begun = phase(pod) != "Pending";
        let mut steps = if begun {
            self.owners_of_claims(ordinal, &about)
        } else {
            Vec::new()
        };
        let labels = identity(name(pod), ordinal);
        let known = |key: &str| pod.metadata.labels().and_then(|own| own.get(key));
        let mut body = json!({});
        if known(POD_NAME).map(String::as_str) != Some(name(pod)) {
            body = json!({ "metadata": { "labels": labels } });
        }
        let volumes = self.volumes(ordinal);
        let spec = pod.spec.as_ref();
        let own = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let claim = |volume: &Volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone());
        let has = |wanted: &Volume| {
            own.iter()
                .any(|own| own.name == wanted.name && claim(own) == claim(wanted))
        };
        if !volumes.iter().all(has) {
            crate::workloads::rollout::merge(&mut body, &json!({ "spec": { "volumes": volumes } }));
        }
        if body != json!({}) {
            steps.push(patch(pod, body));
        }
        if let Some(Step::Patch { outcome, .. }) = steps.last_mut() {
            *outcome = self.outcome(Verb::Update, name(pod));
        }
        work.corrections.extend(steps);
    }
}

/// Labels that identify a pod of the StatefulSet.
fn identity(name: &str, ordinal: i32) -> BTreeMap<String, String> {
    [(POD_NAME, name.to_owned()), (POD_INDEX, ordinal.to_string())]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
}

fn patch(pod: &Pod, mut body: Value) -> Step {
    let version =
        json!({ "metadata": { "uid": pod.metadata.uid(), "resourceVersion": pod.metadata.resource_version() } });
    crate::workloads::rollout::merge(&mut body, &version);
    target(PODS, pod).strategic(body)
}
