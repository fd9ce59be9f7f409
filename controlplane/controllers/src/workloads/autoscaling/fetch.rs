//! Metrics of an autoscaler, from the APIs that serve them
//! (`pkg/controller/podautoscaler/metrics/client.go`).

use api::quantity::Quantity;
use api::selector::LabelSelector;
use controlplane_plan::workloads::autoscaling::{Measure, Measured, Sample, Samples, Source, Unknown};
use http::Method;
use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier, MetricSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::machinery::driver::Context;
use crate::machinery::request::{self, Error};

/// Group of metrics about objects of the cluster.
const CUSTOM: &str = "custom.metrics.k8s.io";
/// Its known versions
/// (`staging/src/k8s.io/metrics/pkg/client/custom_metrics/converter.go`).
const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// Group of metrics about other systems.
const EXTERNAL: &str = "external.metrics.k8s.io";
/// Window of a custom metric that does not specify one.
const WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// Client of the APIs with the metrics of a target's pods.
pub(super) struct MetricsClient<'a> {
    pub(super) context: &'a Context,
    pub(super) namespace: &'a str,
    /// The selector as text.
    pub(super) selector: &'a str,
}

/// GET as JSON; the error is the server's message.
pub(super) async fn get(context: &Context, path: String) -> Result<Value, String> {
    answer(context, path).await.map_err(told)
}

async fn answer(context: &Context, path: String) -> Result<Value, Error> {
    request::send(&context.client, Method::GET, path, request::JSON, Vec::new()).await
}

fn told(error: Error) -> String {
    match error {
        Error::Refused(status) => status.message,
        unknown @ Error::Unknown(_) => unknown.to_string(),
    }
}

impl MetricsClient<'_> {
    /// Fetches each metric.
    pub(super) async fn measure(&self, metrics: &[MetricSpec]) -> Vec<Measured> {
        let usage = if metrics.iter().any(|metric| Source::of(metric).is_some()) {
            let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods", self.namespace);
            get(self.context, path + &query(&[("labelSelector", self.selector)])).await
        } else {
            Ok(Value::Null)
        };
        let mut measured = Vec::with_capacity(metrics.len());
        for metric in metrics {
            measured.push(match Source::of(metric) {
                Some(source) => resource(&source, &usage),
                None => self.other(metric).await.map_err(Unknown::Fetch),
            });
        }
        measured
    }

    async fn other(&self, metric: &MetricSpec) -> Result<Measure, String> {
        if let Some(source) = &metric.external {
            return self.external(&source.metric).await.map(Measure::Value);
        }
        if let Some(source) = &metric.object {
            let value = self.object(&source.described_object, &source.metric).await?;
            return Ok(Measure::Value(value));
        }
        let Some(source) = &metric.pods else {
            return Ok(Measure::Samples(Samples::new()));
        };
        let items = self.custom("pods/%2A", self.selector, &source.metric).await?;
        if items.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        Ok(Measure::Samples(items.iter().filter_map(of_pod).collect()))
    }

    /// Values of a custom metric of the objects at a path within the namespace.
    async fn custom(&self, objects: &str, selector: &str, metric: &MetricIdentifier) -> Result<Vec<Value>, String> {
        let unable = |error: String| format!("unable to fetch metrics from custom metrics API: {error}");
        let version = self.version().await.map_err(unable)?;
        let of_metric = text(metric)?;
        let path = format!(
            "/apis/{CUSTOM}/{version}/namespaces/{}/{objects}/{}{}",
            self.namespace,
            request::escape(&metric.name),
            query(&[("labelSelector", selector), ("metricLabelSelector", &of_metric)]),
        );
        get(self.context, path).await.map(items).map_err(unable)
    }

    /// Preferred version of the custom metrics API
    /// (`staging/src/k8s.io/metrics/pkg/client/custom_metrics/discovery.go`).
    async fn version(&self) -> Result<&'static str, String> {
        let group = answer(self.context, format!("/apis/{CUSTOM}")).await;
        let group = group.map_err(|error| match error.code() {
            404 => format!("no custom metrics API ({CUSTOM}) registered"),
            _ => told(error),
        })?;
        let listed = group.get("versions").and_then(Value::as_array);
        let preferred = group.get("preferredVersion").into_iter();
        let mut served = preferred
            .chain(listed.into_iter().flatten())
            .filter_map(|version| version.get("version")?.as_str());
        served
            .find_map(|served| VERSIONS.into_iter().find(|known| *known == served))
            .ok_or_else(|| "no known available metric versions found".to_owned())
    }

    async fn object(&self, object: &CrossVersionObjectReference, metric: &MetricIdentifier) -> Result<i64, String> {
        let version = object.api_version.as_deref().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let kind = object.kind.as_str();
        let objects = if (group, kind) == ("", "Namespace") {
            // Only the namespace of the autoscaler itself can be asked about.
            "metrics".to_owned()
        } else {
            let resource = self.context.caches.resource(group, kind).ok_or_else(|| {
                let qualified = [kind, group].into_iter().filter(|part| !part.is_empty());
                let qualified = qualified.collect::<Vec<_>>().join(".");
                format!(
                    "unable to fetch metrics from custom metrics API: unable to map kind {qualified} to resource: {}",
                    unmatched(group, kind)
                )
            })?;
            let resource = match group {
                "" => resource.plural.to_owned(),
                group => format!("{}.{group}", resource.plural),
            };
            format!("{resource}/{}", request::escape(&object.name))
        };
        match self.custom(&objects, "", metric).await?.as_slice() {
            [value] => Ok(value_of(value)),
            several => Err(format!(
                "unable to fetch metrics from custom metrics API: the custom metrics API server returned {} results \
                 when we asked for exactly one",
                several.len()
            )),
        }
    }

    /// Sum of an external metric's values.
    async fn external(&self, metric: &MetricIdentifier) -> Result<i64, String> {
        let selector = text(metric)?;
        let path = format!(
            "/apis/{EXTERNAL}/v1beta1/namespaces/{}/{}{}",
            self.namespace,
            request::escape(&metric.name),
            query(&[("labelSelector", &selector)]),
        );
        let items = answer(self.context, path).await.map(items).map_err(|error| {
            let error = match &error {
                // No API is there to answer: client-go's words for it.
                Error::Refused(status) if status.code == 404 && status.details.is_none() => {
                    format!(
                        "the server could not find the requested resource (get {}.{EXTERNAL})",
                        metric.name
                    )
                }
                Error::Refused(_) | Error::Unknown(_) => told(error),
            };
            format!("unable to fetch metrics from external metrics API: {error}")
        })?;
        if items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(items.iter().map(value_of).fold(0, i64::saturating_add))
    }
}

/// The error for a kind that is not served.
pub(super) fn unmatched(group: &str, kind: &str) -> String {
    format!("no matches for kind {kind:?} in group {group:?}")
}

/// Query of the parameters that are not empty.
fn query(parameters: &[(&str, &str)]) -> String {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let given: Vec<String> = given
        .map(|(name, value)| format!("{name}={}", request::escape(value)))
        .collect();
    if given.is_empty() {
        return String::new();
    }
    format!("?{}", given.join("&"))
}

/// The selector of a metric's series as text.
fn text(metric: &MetricIdentifier) -> Result<String, String> {
    let selector = metric
        .selector
        .as_ref()
        .map(|selector| LabelSelector::of(Some(selector)));
    let selector = selector.transpose().map_err(|error| error.to_string())?;
    Ok(selector.map(|selector| selector.to_string()).unwrap_or_default())
}

fn items(mut list: Value) -> Vec<Value> {
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        Some(_) | None => Vec::new(),
    }
}

fn value_of(item: &Value) -> i64 {
    let amount = item.get("value").and_then(Value::as_str);
    let amount = amount.and_then(|amount| Quantity::parse(amount).ok());
    amount.map_or(0, Quantity::milli)
}

fn time(item: &Value) -> Option<Timestamp> {
    item.get("timestamp")?.as_str()?.parse().ok()
}

/// A custom metric of a pod.
fn of_pod(item: &Value) -> Option<(String, Sample)> {
    let name = item.pointer("/describedObject/name")?.as_str()?.to_owned();
    let window = item.get("windowSeconds").and_then(Value::as_i64);
    let sample = Sample {
        milli: value_of(item),
        at: time(item).unwrap_or_default(),
        window: window.map_or(WINDOW, SignedDuration::from_secs),
    };
    Some((name, sample))
}

/// Samples of the pods' usage of a metric's resource.
fn resource(source: &Source<'_>, usage: &Result<Value, String>) -> Measured {
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
    Ok(Measure::Samples(
        items.iter().filter_map(|item| of_usage(item, source)).collect(),
    ))
}

fn of_usage(item: &Value, source: &Source<'_>) -> Option<(String, Sample)> {
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
    let window: SignedDuration = text("/window")
        .and_then(|window| window.parse().ok())
        .unwrap_or_default();
    let at = time(item)?;
    Some((text("/metadata/name")?.to_owned(), Sample { milli: sum, at, window }))
}
