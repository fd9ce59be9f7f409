//! `/runningpods/`: pods of the runtime, and `/pods`: pods of the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::pod::pods;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::context::Context;

fn list(items: &[Value]) -> Json<Value> {
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

pub(super) async fn wanted(State(context): State<Arc<Context>>) -> Json<Value> {
    let known = context.known_pods();
    list(&known.iter().map(|pod| json!(**pod)).collect::<Vec<_>>())
}

pub(super) async fn running(State(context): State<Arc<Context>>) -> Json<Value> {
    let mut containers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in context.running.borrow().keys() {
        let of_pod = containers.entry(run.pod.clone()).or_default();
        of_pod.push(run.container.clone());
    }
    let item = |(uid, names): (&String, &Vec<String>)| {
        let pod = context.known_pod(uid)?;
        let of = |name: &String| {
            let image = pods::container(&pod, name).and_then(|wanted| wanted.image.clone());
            json!({"name": name, "image": image.unwrap_or_default(), "resources": {}})
        };
        let metadata = json!({"name": pods::name(&pod), "namespace": pods::namespace(&pod), "uid": uid});
        let all: Vec<Value> = names.iter().map(of).collect();
        Some(json!({"metadata": metadata, "spec": {"containers": all}, "status": {}}))
    };
    list(&containers.iter().filter_map(item).collect::<Vec<_>>())
}
