//! Controller of horizontal pod autoscalers: syncs each every 15 seconds.

mod fetch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::selector::LabelSelector;
use controlplane_plan::objects::{Meta as _, target};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{AUTOSCALERS, PatchKind, Target};
use controlplane_plan::workloads::autoscaling::{self, Memory, Next, Round, Scale, Unfit};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde_json::{Value, json};
use tracing::debug;

use self::fetch::MetricsClient;
use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;
use crate::machinery::request;

/// Interval between two syncs of an autoscaler (`--horizontal-pod-autoscaler-sync-period`).
const SYNC_PERIOD: Duration = Duration::from_secs(15);
/// Autoscalers that are synced at a time, since servers of metrics may be slow
/// (`--concurrent-horizontal-pod-autoscaler-syncs`).
const SYNCS: usize = 5;
const COMPONENT: &str = "horizontal-pod-autoscaler";

/// Wakes new autoscalers and those whose spec has changed.
pub(crate) fn listen(caches: &Caches) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("horizontalpodautoscaler");
    let wake = queue.clone();
    caches.autoscalers.listen(move |change| {
        if let Some(autoscaler) = change.new
            && change.old.is_none_or(|old| old.spec != autoscaler.spec)
        {
            wake.push(Key::of(&autoscaler.metadata));
        }
    });
    queue
}

/// Runs the controller forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>) {
    context.caches.synced().await;
    let mut memories: BTreeMap<Key, Remembered> = BTreeMap::new();
    let selectors = Mutex::new(Selectors::default());
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((key, remembered)) = under_way.next(), if !under_way.is_empty() => {
                let (key, remembered): (Key, Option<Remembered>) = (key, remembered);
                queue.done(&key);
                if let Some(remembered) = remembered {
                    memories.insert(key.clone(), remembered);
                    queue.push_after(key, SYNC_PERIOD);
                }
            }
            key = queue.next(), if under_way.len() < SYNCS => {
                let remembered = memories.remove(&key);
                under_way.push(sync(&context, key, remembered, &selectors));
            }
        }
    }
}

/// Uid of an autoscaler, and what is remembered of its past.
type Remembered = (String, Memory);

async fn sync(
    context: &Context,
    key: Key,
    remembered: Option<Remembered>,
    selectors: &Mutex<Selectors>,
) -> (Key, Option<Remembered>) {
    let Some(autoscaler) = context.caches.autoscalers.get(&key) else {
        return (key, None);
    };
    let uid = autoscaler.metadata.uid().to_owned();
    let known = remembered.filter(|(of, _)| *of == uid);
    let mut memory = known.map(|(_, memory)| memory).unwrap_or_default();
    scale(context, &autoscaler, &mut memory, selectors).await;
    (key, Some((uid, memory)))
}

/// Selectors of the autoscalers' targets, as of their last syncs.
#[derive(Default)]
struct Selectors(BTreeMap<Key, LabelSelector>);

impl Selectors {
    /// Records a selector. Returns all autoscalers that control any of the pods it selects, if
    /// there are several.
    fn rivals(&mut self, caches: &Caches, key: Key, selector: LabelSelector, pods: &[&Pod]) -> Vec<String> {
        let namespace = key.namespace.clone();
        self.0.insert(key, selector);
        self.0.retain(|key, _| caches.autoscalers.get(key).is_some());
        let same = self.0.iter().filter(|(other, _)| other.namespace == namespace);
        let rivals = same.filter(|(_, selector)| {
            let mut labels = pods.iter().map(|pod| pod.metadata.labels());
            labels.any(|labels| selector.matches_option(labels))
        });
        let rivals: Vec<String> = rivals.map(|(key, _)| key.to_string()).collect();
        if rivals.len() > 1 { rivals } else { Vec::new() }
    }
}

/// Target of an autoscaler.
struct Scaled {
    target: Target,
    sizes: Scale,
    selector: String,
}

async fn scale(
    context: &Context,
    autoscaler: &HorizontalPodAutoscaler,
    memory: &mut Memory,
    selectors: &Mutex<Selectors>,
) {
    let now = (context.clock)();
    let found = find(context, autoscaler).await;
    let sizes = found.as_ref().map(|found| found.sizes).map_err(String::as_str);
    let round = match (autoscaling::begin(autoscaler, sizes, memory, now), &found) {
        (Next::Measure(round), Ok(found)) => measure(context, autoscaler, round, found, memory, selectors).await,
        (Next::Measure(round) | Next::Decided(round), _) => round,
    };
    let mut round = round;
    if let (Some((replicas, _)), Ok(found)) = (&round.rescale, &found) {
        // No precondition: upstream tries again with the newest scale after a conflict.
        let body = json!({ "spec": { "replicas": replicas } });
        let answer = request::patch(&context.client, &found.target, Some("scale"), PatchKind::Merge, &body).await;
        let error = answer.err().map(|error| error.to_string());
        round.rescaled(error.as_deref().map_or(Ok(()), Err), memory);
    }
    for note in std::mem::take(&mut round.notes) {
        context.recorder.note(COMPONENT, Some(note));
    }
    let status = round.end();
    if autoscaler.status.as_ref() == Some(&status) {
        return;
    }
    let mut body = json!({ "status": status });
    if let Some(members) = body.pointer_mut("/status").and_then(Value::as_object_mut) {
        members.entry("currentMetrics").or_insert(Value::Null);
    }
    let about = target(AUTOSCALERS, autoscaler);
    let written = request::patch(&context.client, &about, Some("status"), PatchKind::Merge, &body).await;
    if let Err(error) = written {
        debug!(name = about.name, %error, "status not written");
    }
}

/// Reads the scale of the target; the error is a message for events.
async fn find(context: &Context, autoscaler: &HorizontalPodAutoscaler) -> Result<Scaled, String> {
    let reference = &autoscaler.spec.scale_target_ref;
    // The version does not matter: all of them have the same scale.
    let api_version = reference.api_version.as_deref().unwrap_or_default();
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let resource = context.caches.resource(group, &reference.kind);
    let resource = resource.ok_or_else(|| fetch::unmatched(group, &reference.kind))?;
    let namespace = autoscaler.metadata.namespace();
    let path = request::path(&resource, namespace, &reference.name, "scale");
    let scale: Value = fetch::get(context, path).await?;
    let number = |pointer| {
        let number = scale.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        i32::try_from(number).unwrap_or(i32::MAX)
    };
    Ok(Scaled {
        target: Target {
            resource,
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            uid: String::new(),
        },
        sizes: Scale {
            wanted: number("/spec/replicas"),
            existing: number("/status/replicas"),
        },
        selector: scale
            .pointer("/status/selector")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
    })
}

async fn measure<'a>(
    context: &Context,
    autoscaler: &'a HorizontalPodAutoscaler,
    round: Round<'a>,
    found: &Scaled,
    memory: &mut Memory,
    selectors: &Mutex<Selectors>,
) -> Round<'a> {
    if found.selector.is_empty() {
        return round.unselected(&Unfit::Missing);
    }
    let selector = match LabelSelector::parse(&found.selector) {
        Ok(selector) => selector,
        Err(error) => return round.unselected(&Unfit::Invalid(error.to_string())),
    };
    let namespace = autoscaler.metadata.namespace();
    let pods = context.caches.pods.in_namespace(namespace);
    let pods: Vec<&Pod> = pods
        .iter()
        .map(Arc::as_ref)
        .filter(|pod| selector.matches_option(pod.metadata.labels()))
        .collect();
    let key = Key::of(&autoscaler.metadata);
    let rivals = {
        let mut selectors = selectors.lock().unwrap_or_else(PoisonError::into_inner);
        selectors.rivals(&context.caches, key, selector, &pods)
    };
    if !rivals.is_empty() {
        return round.unselected(&Unfit::Ambiguous(&found.selector, rivals));
    }
    let client = MetricsClient {
        context,
        namespace,
        selector: &found.selector,
    };
    let metrics = autoscaler.spec.metrics.as_deref().unwrap_or_default();
    let measured = client.measure(metrics).await;
    round.measured(measured, &pods, memory)
}
