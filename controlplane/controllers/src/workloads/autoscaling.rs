//! Controller of horizontal pod autoscalers: syncs each every 15 seconds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{kinds, quantity::Quantity, selector::LabelSelector};
use controlplane_plan::objects::{Meta as _, target};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{AUTOSCALERS, PatchKind, Target};
use controlplane_plan::workloads::autoscaling::{
    self, Measured, Memory, Next, Round, Sample, Samples, Scale, Source, Unknown,
};
use http::Method;
use k8s_openapi::{
    api::autoscaling::v2::{HorizontalPodAutoscaler, MetricSpec},
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Value, json};
use tracing::debug;

use crate::machinery::{
    cache::Key,
    driver::Context,
    kinds::{Caches, resource_of},
    queue::Queue,
    request::{self, Error},
};

/// Interval between two syncs of an autoscaler (`--horizontal-pod-autoscaler-sync-period`).
const SYNC_PERIOD: Duration = Duration::from_secs(15);
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
    let mut memories: BTreeMap<Key, (String, Memory)> = BTreeMap::new();
    loop {
        let key = queue.next().await;
        let known = memories.remove(&key);
        if let Some(autoscaler) = context.caches.autoscalers.get(&key) {
            let uid = autoscaler.metadata.uid().to_owned();
            let known = known.filter(|(of, _)| *of == uid);
            let mut memory = known.map(|(_, memory)| memory).unwrap_or_default();
            scale(&context, &autoscaler, &mut memory).await;
            memories.insert(key.clone(), (uid, memory));
            queue.done(&key);
            queue.push_after(key, SYNC_PERIOD);
        } else {
            queue.done(&key);
        }
    }
}

/// Target of an autoscaler.
struct Scaled {
    target: Target,
    version: Value,
    sizes: Scale,
    selector: String,
}

async fn scale(context: &Context, autoscaler: &HorizontalPodAutoscaler, memory: &mut Memory) {
    let now = (context.clock)();
    let found = find(context, autoscaler).await;
    let sizes = found.as_ref().map(|found| found.sizes).map_err(String::as_str);
    let round = match (autoscaling::begin(autoscaler, sizes, memory, now), &found) {
        (Next::Measure(round), Ok(found)) => measure(context, autoscaler, round, found, memory).await,
        (Next::Measure(round) | Next::Decided(round), _) => round,
    };
    let mut round = round;
    if let (Some((replicas, _)), Ok(found)) = (&round.rescale, &found) {
        let body = json!({ "metadata": { "resourceVersion": found.version }, "spec": { "replicas": replicas } });
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
    let api_version = reference.api_version.as_deref().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let row = kinds::find_kind(group, version, &reference.kind);
    let row = row.ok_or_else(|| format!("no matches for kind {:?} in group {group:?}", reference.kind))?;
    let resource = resource_of(row);
    let namespace = autoscaler.metadata.namespace();
    let path = request::path(&resource, namespace, &reference.name, "scale");
    let scale: Value = fetch(context, path).await?;
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
        version: scale.pointer("/metadata/resourceVersion").cloned().unwrap_or_default(),
        sizes: Scale {
            wanted: number("/spec/replicas"),
        },
        selector: scale
            .pointer("/status/selector")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
    })
}

async fn fetch(context: &Context, path: String) -> Result<Value, String> {
    let answer = request::send(&context.client, Method::GET, path, request::JSON, Vec::new()).await;
    answer.map_err(|error: Error| match error {
        Error::Refused(status) => status.message,
        unknown @ Error::Unknown(_) => unknown.to_string(),
    })
}

async fn measure<'a>(
    context: &Context,
    autoscaler: &'a HorizontalPodAutoscaler,
    round: Round<'a>,
    found: &Scaled,
    memory: &mut Memory,
) -> Round<'a> {
    let selector = Some(&found.selector).filter(|selector| !selector.is_empty());
    let Some(selector) = selector.and_then(|selector| LabelSelector::parse(selector).ok()) else {
        return round.unselected();
    };
    let namespace = autoscaler.metadata.namespace();
    let pods = context.caches.pods.in_namespace(namespace);
    let pods: Vec<&Pod> = pods
        .iter()
        .map(Arc::as_ref)
        .filter(|pod| selector.matches_option(pod.metadata.labels()))
        .collect();
    let metrics = autoscaler.spec.metrics.as_deref().unwrap_or_default();
    let usage = if metrics.iter().any(|metric| Source::of(metric).is_some()) {
        let query = request::escape(&found.selector);
        let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={query}");
        fetch(context, path).await
    } else {
        Ok(Value::Null)
    };
    let measured: Vec<Measured> = metrics.iter().map(|metric| samples(metric, &usage)).collect();
    round.measured(measured, &pods, memory)
}

/// Samples of the pods' usage of a metric's resource
/// (`pkg/controller/podautoscaler/metrics/client.go`).
fn samples(metric: &MetricSpec, usage: &Result<Value, String>) -> Measured {
    let Some(source) = Source::of(metric) else {
        return Ok(Samples::new());
    };
    let list = usage
        .as_ref()
        .map_err(|error| Unknown::Fetch(format!("unable to fetch metrics from resource metrics API: {error}")))?;
    let items = list
        .get("items")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    if items.is_empty() {
        return Err(Unknown::Fetch(
            "no metrics returned from resource metrics API".to_owned(),
        ));
    }
    Ok(items.iter().filter_map(|item| sample(item, &source)).collect())
}

fn sample(item: &Value, source: &Source<'_>) -> Option<(String, Sample)> {
    let text = |pointer| item.pointer(pointer).and_then(Value::as_str);
    let containers = item.get("containers").and_then(Value::as_array)?;
    let mut counted = containers.iter().filter(|one| {
        let name = one.get("name").and_then(Value::as_str);
        source.container.is_none_or(|wanted| name == Some(wanted))
    });
    let milli = |one: &Value| {
        let amount = one.get("usage")?.get(source.resource)?.as_str()?;
        Some(Quantity::parse(amount).ok()?.milli())
    };
    let first = milli(counted.next()?)?;
    let sum = counted.try_fold(first, |sum, one| Some(sum.saturating_add(milli(one)?)))?;
    let at: Timestamp = text("/timestamp")?.parse().ok()?;
    let window: SignedDuration = text("/window")
        .and_then(|window| window.parse().ok())
        .unwrap_or_default();
    Some((text("/metadata/name")?.to_owned(), Sample { milli: sum, at, window }))
}
