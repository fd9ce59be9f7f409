//! What pods have on the node's disk. Only those that are limited are looked at, and the longer a look takes the seldomer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pods;
use agent_plan::storage::{self, DiskUse, Used};
use k8s_openapi::api::core::v1::Pod;
use runtime::Written;
use tokio::time::Instant;
use tracing::warn;

use crate::context::Context;

/// When pods are looked at again, by uid.
#[derive(Default)]
pub(super) struct Storage(BTreeMap<String, Instant>);

impl Storage {
    /// The pods that use more than they may, with what they are told.
    pub(super) async fn exceeding(&mut self, context: &Arc<Context>) -> Vec<(Arc<Pod>, String)> {
        let mut limited = context.known_pods();
        limited.retain(|pod| pods::terminal_phase(pod).is_none() && storage::is_limited(pod));
        let number = i64::try_from(limited.len()).unwrap_or(i64::MAX);
        let now = Instant::now();
        self.0.retain(|uid, _| limited.iter().any(|pod| pods::uid(pod) == uid));
        let mut exceeding = Vec::new();
        for pod in limited {
            let uid = pods::uid(&pod).to_owned();
            if self.0.get(&uid).is_some_and(|due| now < *due) {
                continue;
            }
            let began = Instant::now();
            let used = measure(context, &pod).await;
            let took = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
            let wait = u64::try_from(storage::next_look(took, number)).unwrap_or(0);
            // The rounds themselves are not earlier either.
            let wait = Duration::from_millis(wait).saturating_sub(Duration::from_secs(1));
            self.0.insert(uid, now + wait);
            if let Some(message) = used.and_then(|used| storage::exceeded(&pod, &used)) {
                exceeding.push((pod, message));
            }
        }
        exceeding
    }
}

/// What a pod has on the disk, one by one.
pub(crate) struct Parts {
    /// What its containers wrote to their root file systems.
    pub(crate) layers: BTreeMap<String, Used>,
    /// Their logs.
    pub(crate) logs: BTreeMap<String, Used>,
    /// Its volumes that take their space from the node's disk.
    pub(crate) volumes: BTreeMap<String, Used>,
}

impl Parts {
    /// Containers with their logs, as limits count them.
    pub(crate) fn together(self) -> DiskUse {
        let logs = &self.logs;
        let with_log = |(name, layer): (String, Used)| {
            let log = logs.get(&name).copied().unwrap_or_default();
            (name, layer.plus(log))
        };
        DiskUse {
            containers: self.layers.into_iter().map(with_log).collect(),
            volumes: self.volumes,
        }
    }
}

/// What a pod has on the disk; nothing where it cannot be seen.
pub(super) async fn measure(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<DiskUse> {
    parts(context, pod).await.map(Parts::together)
}

/// The same, one by one.
pub(crate) async fn parts(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<Parts> {
    let mut written = BTreeMap::new();
    for container in pods::all_containers(pod) {
        if let Some(place) = context.place(pod, &container.name) {
            let layer = context.parts.runtime.written(&place.sandbox, &place.instance).await;
            written.extend(layer.map(|layer| (container.name.clone(), layer)));
        }
    }
    let (context, pod) = (Arc::clone(context), Arc::clone(pod));
    tokio::task::spawn_blocking(move || measure_now(&context, &pod, &written))
        .await
        .ok()
}

fn measure_now(context: &Context, pod: &Pod, written: &BTreeMap<String, Written>) -> Parts {
    let size = |path: PathBuf| match volume::measure(&path) {
        Ok(used) => used,
        Err(error) => {
            warn!(path = %path.display(), %error, "what lies there could not be counted");
            Used::default()
        }
    };
    let volumes = context.volumes.on_disk(pod).unwrap_or_default();
    let directory = context.log_directory(pod);
    let names = || pods::all_containers(pod).map(|container| container.name.clone());
    let layer = |name: &String| match written.get(name) {
        Some(Written::In(directory)) => size(directory.clone()),
        Some(Written::Counted { bytes, inodes }) => Used {
            bytes: *bytes,
            inodes: *inodes,
        },
        None => Used::default(),
    };
    Parts {
        layers: names().map(|name| (name.clone(), layer(&name))).collect(),
        logs: names().map(|name| (name.clone(), size(directory.join(name)))).collect(),
        volumes: volumes.into_iter().map(|(name, path)| (name, size(path))).collect(),
    }
}
