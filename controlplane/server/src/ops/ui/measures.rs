//! Usage of nodes and pods over time: `/ui/measures/` and a path of `metrics.k8s.io` shows that of one
//! of them since its creation, to users that may get its current usage.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::kinds::metrics::{NodeMetrics, PodMetrics};
use api::quantity::Quantity;
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::{BackendError, Key, Measures};
use tower::ServiceExt as _;

use crate::authn::identity::{MASTERS, User, assume};
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::server::shared::Shared;
use crate::transport::respond::{self, Response};

const GROUP: &str = "metrics.k8s.io";
/// Maximum size of the usage of all pods, in bytes.
const MAX_USAGE: usize = 32 << 20;
/// Time limit for the body of an answer with usage.
const USAGE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct List<K> {
    items: Vec<K>,
}

#[derive(Deserialize)]
struct Created {
    metadata: ObjectMeta,
}

/// Records the usage of all nodes and pods once a minute, for as long as it is polled.
pub(crate) async fn run(shared: Arc<Shared>, router: Router) -> Infallible {
    let Some(measures) = shared.options.measures.clone() else {
        return std::future::pending().await;
    };
    let seconds = u64::try_from(Measures::interval()).unwrap_or(60);
    let mut rounds = tokio::time::interval(Duration::from_secs(seconds));
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let now = (shared.options.clock)().as_second();
        let mut round =
            usage::<NodeMetrics>(&router, "nodes", |node| (node.metadata.clone(), amounts([&node.usage]))).await;
        let pods = usage::<PodMetrics>(&router, "pods", |pod| {
            (
                pod.metadata.clone(),
                amounts(pod.containers.iter().map(|own| &own.usage)),
            )
        });
        round.extend(pods.await);
        let measures = Arc::clone(&measures);
        if let Err(error) = blocking(move || measures.add(now, &round)).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "record measures");
        }
    }
}

/// Current usage of all nodes or pods, by the server's own API.
async fn usage<K: DeserializeOwned>(
    router: &Router,
    plural: &str,
    read: impl Fn(&K) -> (ObjectMeta, (i64, i64)),
) -> Vec<(String, i64, i64)> {
    let user = User::new("system:apiserver", [MASTERS]);
    let client = assume(
        user,
        concat!("kube-apiserver/v", env!("CARGO_PKG_VERSION")),
        router.clone(),
    );
    let Ok(request) = Request::get(format!("/apis/{GROUP}/v1beta1/{plural}")).body(Body::empty()) else {
        return Vec::new();
    };
    let Ok(answer) = client.oneshot(request).await;
    // Another server may answer it.
    let body = Limited::new(answer.into_body(), MAX_USAGE).collect();
    let body = tokio::time::timeout(USAGE_TIMEOUT, body).await;
    let list = body
        .ok()
        .and_then(Result::ok)
        .and_then(|body| serde_json::from_slice::<List<K>>(&body.to_bytes()).ok());
    let items = list.map(|list| list.items).unwrap_or_default();
    let row = |item: &K| {
        let (metadata, (cpu, memory)) = read(item);
        let namespace = metadata.namespace.unwrap_or_default();
        (
            series(plural, &namespace, &metadata.name.unwrap_or_default()),
            cpu,
            memory,
        )
    };
    items.iter().map(row).collect()
}

/// Thousandths of a core, and bytes.
fn amounts<'a>(usages: impl IntoIterator<Item = &'a BTreeMap<String, Text>>) -> (i64, i64) {
    let amount = |usage: &BTreeMap<String, Text>, name: &str| usage.get(name).map(Quantity::of);
    usages.into_iter().fold((0_i64, 0_i64), |(cpu, memory), usage| {
        let more = (amount(usage, "cpu"), amount(usage, "memory"));
        (
            cpu.saturating_add(more.0.map_or(0, Quantity::milli)),
            memory.saturating_add(more.1.map_or(0, Quantity::value)),
        )
    })
}

fn series(plural: &str, namespace: &str, name: &str) -> String {
    format!("{plural}/{namespace}/{name}")
}

async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, BackendError> + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(run).await;
    done.unwrap_or_else(|join| Err(BackendError::Io(join.into())))
}

/// Answers with the samples of one node or pod: seconds since 1970, thousandths of a core, bytes.
pub(crate) async fn answer(shared: &Shared, info: &RequestInfo) -> Result<Response, Failure> {
    let is_known = info.group == GROUP && matches!(info.resource.as_str(), "nodes" | "pods");
    let (Some(measures), true) = (shared.options.measures.clone(), is_known) else {
        return Err(Failure::NoSuchPath);
    };
    if info.verb != "get" || !info.subresource.is_empty() {
        return Err(Failure::MethodNotAllowed);
    }
    let key = Key::new("", &info.resource, &info.namespace, &info.name).ok();
    let stored = key.and_then(|key| shared.store.get(&key)).ok_or(Failure::NoSuchPath)?;
    let created: Created = serde_json::from_slice(&stored.bytes).map_err(Failure::internal)?;
    // A former object of the name may have been another user's.
    let since = created.metadata.creation_timestamp.map_or(0, |time| time.0.as_second());
    let name = series(&info.resource, &info.namespace, &info.name);
    let samples = blocking(move || measures.of(&name, since))
        .await
        .map_err(Failure::internal)?;
    let samples = samples.iter().map(|sample| (sample.time, sample.cpu, sample.memory));
    let told = serde_json::json!({ "samples": samples.collect::<Vec<_>>() });
    Ok(respond::json(StatusCode::OK, respond::encode(&told)))
}
