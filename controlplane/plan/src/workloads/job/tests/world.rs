//! A Job, its pods, and a server that performs plans.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::Pod;
use crate::step::{PatchKind, Plan, Step};
use crate::workloads::job::{Backoff, FAILURES, Failure, INDEX, Snapshot, TRACKING, plan};

pub(super) const NOW: &str = "2026-01-01T01:00:00Z";

pub(super) struct World {
    pub(super) job: Value,
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) backoff: Backoff,
    pub(super) refusal: bool,
    pub(super) now: Timestamp,
    revision: u64,
}

/// A plan to print.
pub(super) struct Planned(pub(super) Plan);

impl World {
    pub(super) fn new(spec: &Value, status: &Value) -> Self {
        let mut whole = json!({
            "completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed",
            "podReplacementPolicy": "TerminatingOrFailed", "suspend": false,
            "selector": { "matchLabels": { "job": "j" } },
            "template": {
                "metadata": { "labels": { "job": "j" } },
                "spec": { "restartPolicy": "Never", "containers": [{ "name": "main" }] },
            },
        });
        merge(&mut whole, spec);
        Self {
            job: json!({
                "metadata": { "name": "j", "namespace": "default", "uid": "job", "generation": 1, "resourceVersion": "1" },
                "spec": whole, "status": status,
            }),
            pods: BTreeMap::new(),
            backoff: Backoff::default(),
            refusal: false,
            now: NOW.parse().unwrap(),
            revision: 1,
        }
    }

    /// `name phase` and more words; times are seconds after midnight.
    pub(super) fn put(&mut self, text: &str) {
        let mut words = text.split(' ');
        let (name, phase) = (words.next().unwrap(), words.next().unwrap());
        let mut pod = self.pod(name);
        pod["status"] = json!({ "phase": phase, "conditions": [] });
        let at = |seconds: &str| {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            (start + std::time::Duration::from_secs(seconds.parse().unwrap())).to_string()
        };
        let mut container = json!({ "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0 });
        let mut terminated = json!({ "exitCode": 0 });
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "index" => pod["metadata"]["annotations"][INDEX] = json!(value),
                "failures" => pod["metadata"]["annotations"][FAILURES] = json!(value),
                "deleted" => pod["metadata"]["deletionTimestamp"] = json!(at(value)),
                "untracked" => pod["metadata"]["finalizers"] = json!([]),
                "orphan" => pod["metadata"]["ownerReferences"] = json!([]),
                "stranger" => pod["metadata"]["labels"] = json!({}),
                "ready" => pod["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]),
                "condition" => pod["status"]["conditions"] = json!([{ "type": value, "status": "True" }]),
                "at" => terminated["finishedAt"] = json!(at(value)),
                "exit" => terminated["exitCode"] = json!(value.parse::<i32>().unwrap()),
                "restarts" => container["restartCount"] = json!(value.parse::<i32>().unwrap()),
                other => panic!("{other}"),
            }
        }
        if matches!(phase, "Failed" | "Succeeded") {
            container["state"] = json!({ "terminated": terminated });
        }
        pod["status"]["containerStatuses"] = json!([container]);
        self.pods.insert(name.to_owned(), pod);
    }

    fn pod(&mut self, name: &str) -> Value {
        self.revision += 1;
        json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name, "resourceVersion": self.revision.to_string(),
                "labels": { "job": "j" }, "finalizers": [TRACKING], "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [
                    { "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true },
                ],
            },
            "spec": { "containers": [] },
        })
    }

    pub(super) fn plan(&mut self) -> Planned {
        let job: Job = serde_json::from_value(self.job.clone()).unwrap();
        let pods: Vec<Pod> = self
            .pods
            .values()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap())
            .collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        self.backoff.observe(job.spec.as_ref().unwrap(), &pods);
        let failure = Failure {
            deletion: false,
            reason: "Forbidden".to_owned(),
            message: "no".to_owned(),
        };
        let snapshot = Snapshot {
            job: &job,
            pods: &pods,
            failure: Some(&failure).filter(|_| self.refusal),
            backoff: &self.backoff,
        };
        Planned(plan(&snapshot, self.now))
    }

    /// Performs one step; true if the server accepted it.
    pub(super) fn perform(&mut self, step: &Step) -> bool {
        self.revision += 1;
        let revision = json!(self.revision.to_string());
        match step {
            Step::Create { body, .. } => {
                let mut pod = (**body).clone();
                let name = format!("{}{}", pod["metadata"]["generateName"].as_str().unwrap(), self.revision);
                let created = json!({
                    "name": name, "uid": name, "resourceVersion": revision, "creationTimestamp": self.now.to_string(),
                });
                merge(&mut pod["metadata"], &created);
                pod["status"] = json!({ "phase": "Pending" });
                self.pods.insert(name, pod);
            }
            Step::Patch { target, kind, body, .. } => {
                let object = match target.resource.kind {
                    "Job" => Some(&mut self.job),
                    _ => self.pods.get_mut(&target.name),
                };
                let Some(object) = object else { return true };
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                    return false;
                }
                if *kind == PatchKind::Strategic {
                    object["metadata"]["finalizers"] = json!([]);
                } else {
                    merge(object, body);
                }
                object["metadata"]["resourceVersion"] = revision;
                self.sweep(&target.name);
            }
            Step::Delete { target, .. } => {
                if let Some(pod) = self.pods.get_mut(&target.name)
                    && pod["metadata"]["deletionTimestamp"].is_null()
                {
                    pod["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
                    pod["metadata"]["resourceVersion"] = revision;
                }
                self.sweep(&target.name);
            }
            Step::Look(_) | Step::Measure(_) | Step::Event(_) => {}
        }
        true
    }

    /// Removes a finished pod that is being deleted and has no finalizers.
    pub(super) fn sweep(&mut self, name: &str) {
        let gone = self.pods.get(name).is_some_and(|pod| {
            let free = pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
            let ended = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
            free && ended && !pod["metadata"]["deletionTimestamp"].is_null()
        });
        if gone {
            self.pods.remove(name);
        }
    }
}

impl Planned {
    /// Prints one line per step with the number of its stage, and the status without absent fields.
    pub(super) fn to_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, stage) in self.0.stages.iter().enumerate() {
            lines.extend(
                stage
                    .iter()
                    .map(|step| format!("{} {step}{}", number + 1, details(step))),
            );
        }
        lines.extend(self.0.again.map(|delay| format!("again in {}s", delay.as_secs())));
        lines
    }
}

fn details(step: &Step) -> String {
    match step {
        Step::Create { body, .. } => {
            let annotations = &body["metadata"]["annotations"];
            if annotations.is_null() {
                String::new()
            } else {
                let host = &body["spec"]["hostname"];
                format!(
                    " {annotations} hostname={host} env={}",
                    body["spec"]["containers"][0]["env"]
                )
            }
        }
        Step::Patch {
            kind: PatchKind::Strategic,
            body,
            ..
        } => {
            let exactly = !body["metadata"]["resourceVersion"].is_null();
            format!(" untracked{}", if exactly { " exactly" } else { "" })
        }
        Step::Patch { body, .. } => {
            let mut status = body["status"].clone();
            let Some(fields) = status.as_object_mut() else {
                let mut metadata = body["metadata"].clone();
                for field in ["uid", "resourceVersion"] {
                    metadata.as_object_mut().unwrap().remove(field);
                }
                return format!(" {metadata}");
            };
            fields.retain(|_, value| !value.is_null());
            let conditions = fields.remove("conditions").unwrap_or_default();
            let conditions = conditions.as_array().cloned().unwrap_or_default();
            let conditions = conditions.iter().map(|one| {
                let text = |field: &str| one[field].as_str().unwrap_or_default();
                format!(
                    "{}={} {}: {}",
                    text("type"),
                    text("status"),
                    text("reason"),
                    text("message")
                )
            });
            let conditions: Vec<String> = conditions.collect();
            let lists = fields
                .get_mut("uncountedTerminatedPods")
                .unwrap()
                .as_object_mut()
                .unwrap();
            lists.retain(|_, value| !value.is_null());
            format!(" {status} [{}]", conditions.join("; "))
        }
        Step::Delete { .. } | Step::Look(_) | Step::Measure(_) | Step::Event(_) => String::new(),
    }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let fields = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
