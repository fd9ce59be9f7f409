//! Cached disk usage of pods: files are counted once a minute at most, and by one task at a time,
//! for any number of requests.

use std::sync::Arc;

use agent_plan::node::storage::Parts;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::context::Context;
use crate::node::pressure::storage;

/// Disk usage of a pod, at most a minute old; `None` if it cannot be measured.
pub(in crate::serve) async fn parts(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<Arc<Parts>> {
    let containers = pods::all_containers(pod);
    let places: Vec<_> = containers
        .map(|container| context.place(pod, &container.name))
        .collect();
    let is_known = |uid: &str| context.known_pod(uid).is_some();
    let known = context.looks.join(pods::uid(pod), &places, is_known);
    let mut counted = match known {
        Ok(counted) => counted,
        // Continues even if the request is cancelled.
        Err(counts) => {
            let written = storage::written(context, pod).await;
            let (context, pod, receiver) = (Arc::clone(context), Arc::clone(pod), counts.subscribe());
            common::task::spawn_blocking(move || {
                let parts = storage::measure_now(&context, &pod, &written);
                counts.send_replace(Some((Instant::now(), Arc::new(parts))));
            });
            receiver
        }
    };
    let counted = counted.wait_for(Option::is_some).await.ok()?;
    counted.as_ref().map(|(_, parts)| Arc::clone(parts))
}
