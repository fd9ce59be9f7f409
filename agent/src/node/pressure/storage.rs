//! Disk usage of pods. Only pods with limits are measured, and less often the longer a measurement
//! takes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::storage::{self, DiskUse, Parts, Used};
use agent_plan::pod::pods;
use common::task::JoinSet;
use k8s_openapi::api::core::v1::Pod;
use runtime::Written;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::context::Context;

/// Maximum number of concurrent measurements.
const AT_ONCE: usize = 4;
/// Longest time that the eviction manager waits for measurements; later results are used in the
/// next round.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Measurements of pods, whose duration depends on the pods.
#[derive(Default)]
pub(super) struct Storage {
    /// Time of the next measurement, by UID.
    due: BTreeMap<String, Instant>,
    under_way: BTreeMap<String, AbortHandle>,
    looks: JoinSet<Look>,
}

/// Result of a measurement.
struct Look {
    uid: String,
    took: Duration,
    used: Option<DiskUse>,
}

impl Storage {
    /// Returns pods that exceed their limits, with signals and messages.
    pub(super) async fn exceeding(&mut self, context: &Arc<Context>) -> Vec<(Arc<Pod>, &'static str, String)> {
        let mut limited = context.known_pods();
        limited.retain(|pod| pods::terminal_phase(pod).is_none() && storage::is_limited(pod));
        let number = i64::try_from(limited.len()).unwrap_or(i64::MAX);
        let now = Instant::now();
        let known = |uid: &str| limited.iter().find(|pod| pods::uid(pod) == uid);
        self.due.retain(|uid, _| known(uid).is_some());
        self.under_way.retain(|_, look| !look.is_finished());
        let is_due = |pod: &&Arc<Pod>| {
            let uid = pods::uid(pod);
            !self.under_way.contains_key(uid) && self.due.get(uid).is_none_or(|due| *due <= now)
        };
        let mut waiting: Vec<&Arc<Pod>> = limited.iter().filter(is_due).collect();
        let mut exceeding = Vec::new();
        loop {
            while self.looks.len() < AT_ONCE
                && let Some(pod) = waiting.pop()
            {
                let look = self.looks.spawn(look(Arc::clone(context), Arc::clone(pod)));
                self.under_way.insert(pods::uid(pod).to_owned(), look);
            }
            let Ok(Some(found)) = timeout_at(now + TIMEOUT, self.looks.join_next()).await else {
                return exceeding;
            };
            // A failed measurement is repeated in the next round.
            let Ok(Look { uid, took, used }) = found else { continue };
            let Some(pod) = known(&uid) else { continue };
            let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
            let wait = u64::try_from(storage::next_look(took, number)).unwrap_or(0);
            // The rounds do not begin earlier either.
            let wait = Duration::from_millis(wait).saturating_sub(Duration::from_secs(1));
            self.due.insert(uid, now + wait);
            if let Some((signal, message)) = used.and_then(|used| storage::exceeded(pod, &used)) {
                exceeding.push((Arc::clone(pod), signal, message));
            }
        }
    }
}

async fn look(context: Arc<Context>, pod: Arc<Pod>) -> Look {
    let began = Instant::now();
    let used = measure(&context, &pod).await;
    Look {
        uid: pods::uid(&pod).to_owned(),
        took: began.elapsed(),
        used,
    }
}

/// Disk usage of a pod; `None` if it cannot be measured.
pub(super) async fn measure(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<DiskUse> {
    parts(context, pod).await.map(Parts::together)
}

/// Disk usage by part.
async fn parts(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<Parts> {
    let written = written(context, pod).await;
    let (context, pod) = (Arc::clone(context), Arc::clone(pod));
    common::task::spawn_blocking(move || measure_now(&context, &pod, &written))
        .await
        .ok()
}

/// Returns the usage of the writable layers of a pod's containers, from the runtime.
pub(crate) async fn written(context: &Context, pod: &Pod) -> BTreeMap<String, Written> {
    let mut written = BTreeMap::new();
    for container in pods::all_containers(pod) {
        if let Some(place) = context.place(pod, &container.name) {
            let layer = context.parts.runtime.written(&place.sandbox, &place.instance).await;
            written.extend(layer.map(|layer| (container.name.clone(), layer)));
        }
    }
    written
}

/// Counts files, which may take long.
pub(crate) fn measure_now(context: &Context, pod: &Pod, written: &BTreeMap<String, Written>) -> Parts {
    let size = |path: PathBuf| match volume::measure(&path) {
        Ok(used) => used,
        Err(error) => {
            warn!(path = %path.display(), %error, "what lies there could not be counted");
            Used::default()
        }
    };
    let volumes = context.volumes.on_disk(pod).unwrap_or_default();
    let directory = context.config.logs.of(pod);
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
        own: ["etc", "containers"]
            .into_iter()
            .map(|own| size(context.pod_directory(pods::uid(pod)).join(own)))
            .fold(Used::default(), Used::plus),
    }
}
