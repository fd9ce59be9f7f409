//! Objects as JSON, for tests that perform plans.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::step::{Plan, Step};

/// The time of every plan.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// Returns the objects of a kind that a plan creates.
pub(crate) fn created<'a>(plan: &'a Plan, kind: &str) -> Vec<&'a Value> {
    let bodies = plan.stages.iter().flatten().filter_map(|step| {
        let Step::Create { resource, body, .. } = step else {
            return None;
        };
        (resource.kind == kind).then_some(&**body)
    });
    bodies.collect()
}

/// Objects by kind and name.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    objects: BTreeMap<(String, String), Value>,
    serial: u64,
}

impl World {
    /// Stores an object as a server does.
    pub(crate) fn put(&mut self, kind: &str, mut object: Value) {
        self.serial += 1;
        let serial = self.serial;
        let metadata = &mut object["metadata"];
        if let Some(prefix) = metadata["generateName"].as_str() {
            metadata["name"] = format!("{prefix}{serial}").into();
        }
        let name = metadata["name"].as_str().unwrap().to_owned();
        metadata["namespace"] = "default".into();
        metadata["resourceVersion"] = serial.to_string().into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{serial}").into();
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = format!("2026-01-01T00:{:02}:{:02}Z", serial / 60 % 60, serial % 60).into();
        }
        if kind == "Pod" && object["status"]["phase"].is_null() {
            object["status"] = json!({ "phase": "Pending" });
        }
        let before = self.objects.insert((kind.to_owned(), name), object);
        assert_eq!(before, None, "a name is taken once");
    }

    pub(crate) fn all<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let objects = self.objects.iter().filter(|((own, _), _)| own == kind);
        objects
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    pub(crate) fn get(&mut self, kind: &str, name: &str) -> Option<&mut Value> {
        self.objects.get_mut(&(kind.to_owned(), name.to_owned()))
    }

    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let objects = self.objects.keys().filter(|(own, _)| own == kind);
        objects.map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn remove(&mut self, kind: &str, name: &str) {
        self.objects.remove(&(kind.to_owned(), name.to_owned()));
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&mut self, kind: &str, name: &str, patch: &Value) {
        self.serial += 1;
        let serial = self.serial;
        let object = self.get(kind, name).expect("it is there");
        api::patch::merge::apply(object, patch).unwrap();
        object["metadata"]["resourceVersion"] = serial.to_string().into();
    }

    /// Performs a plan. Deleted pods stay until they are removed.
    pub(crate) fn perform(&mut self, plan: &Plan) {
        for step in plan.stages.iter().flatten() {
            match step {
                Step::Create { resource, body, .. } => self.put(resource.kind, (**body).clone()),
                Step::Patch { target, body, .. } => self.patch(target.resource.kind, &target.name, body),
                Step::Delete { target, .. } if target.resource.kind == "Pod" => {
                    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T01:00:00Z" } });
                    self.patch("Pod", &target.name, &going);
                }
                Step::Delete { target, .. } => self.remove(target.resource.kind, &target.name),
                Step::Look(_) | Step::Measure(_) | Step::Event(_) => {}
            }
        }
    }

    /// Sets a pod's phase, and its readiness with `Running`.
    pub(crate) fn phase(&mut self, pod: &str, phase: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let condition = json!({ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:50:00Z" });
        self.patch(
            "Pod",
            pod,
            &json!({ "status": { "phase": phase, "conditions": [condition] } }),
        );
    }
}
