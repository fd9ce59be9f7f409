//! One binding. Binding to the same node again is harmless, so an unanswered request is simply repeated.

use std::{sync::Arc, time::Duration};

use controlplane_plan::{
    objects::{name, node_of, uid},
    step::PODS,
};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{
    cache::Key,
    driver::Context,
    request::{self, Error},
};

const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);

/// A pod and what became of its binding.
pub(super) struct Bound {
    pub(super) key: Key,
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    /// Why it is not bound to that node.
    pub(super) result: Result<(), String>,
}

/// Binds a pod to a node.
pub(super) async fn bind(context: Context, key: Key, pod: Arc<Pod>, node: String) -> Option<Bound> {
    let result = settle(&context, &key, &pod, &node).await;
    Some(Bound { key, pod, node, result })
}

async fn settle(context: &Context, key: &Key, pod: &Pod, node: &str) -> Result<(), String> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": name(pod), "namespace": key.namespace, "uid": uid(pod) },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let path = request::path(&PODS, &key.namespace, &key.name, "binding");
    let bytes = body.to_string().into_bytes();
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        let sent = request::send::<request::Reply>(
            &context.client,
            Method::POST,
            path.clone(),
            request::JSON,
            bytes.clone(),
        );
        match sent.await {
            Ok(_) => return Ok(()),
            // Perhaps an earlier request of ours did it.
            Err(Error::Refused(status)) if status.code == 409 => match read(context, key).await {
                Ok(found) if uid(&found) == uid(pod) && node_of(&found) == Some(node) => return Ok(()),
                _ => return Err(status.message),
            },
            Err(Error::Refused(status)) => return Err(status.message),
            Err(error) => {
                last = error.to_string();
                tokio::time::sleep(PAUSE.saturating_mul(1 << attempt)).await;
            }
        }
    }
    Err(last)
}

async fn read(context: &Context, key: &Key) -> Result<Pod, Error> {
    let mut last = Error::Unknown(None);
    for attempt in 0..ATTEMPTS {
        match request::get(&context.client, &PODS, &key.namespace, &key.name).await {
            Err(error) if error.code() == 0 => last = error,
            answer => return answer,
        }
        tokio::time::sleep(PAUSE.saturating_mul(1 << attempt)).await;
    }
    Err(last)
}
