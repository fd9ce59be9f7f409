//! Metrics of a `HorizontalPodAutoscaler` as text.

use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const UNKNOWN: &str = "<unknown>";

/// `cpu: 12%/80%, 3/10 (avg)`: two metrics, and the number of further ones.
pub(super) fn shown(scaler: &HorizontalPodAutoscaler) -> String {
    let metrics = scaler.spec.metrics.as_deref().unwrap_or_default();
    let status = scaler.status.as_ref();
    let measured = status.and_then(|status| status.current_metrics.as_deref());
    let measured = measured.unwrap_or_default();
    let texts = metrics
        .iter()
        .enumerate()
        .map(|(index, metric)| one(metric, measured.get(index)));
    let mut texts: Vec<String> = texts.collect();
    let more = texts.len().saturating_sub(2);
    texts.truncate(2);
    match (texts.is_empty(), more) {
        (true, _) => "<none>".to_owned(),
        (false, 0) => texts.join(", "),
        (false, more) => format!("{} + {more} more...", texts.join(", ")),
    }
}

fn one(metric: &MetricSpec, measured: Option<&MetricStatus>) -> String {
    match metric.type_.as_str() {
        "External" => {
            let current = measured.and_then(|status| status.external.as_ref());
            let target = metric.external.as_ref().map(|source| &source.target);
            of_object(target, current.map(|status| &status.current))
        }
        "Object" => {
            let current = measured.and_then(|status| status.object.as_ref());
            let target = metric.object.as_ref().map(|source| &source.target);
            of_object(target, current.map(|status| &status.current))
        }
        "Pods" => {
            let current = measured.and_then(|status| status.pods.as_ref());
            let current = current.and_then(|status| status.current.average_value.as_ref());
            let target = metric.pods.as_ref();
            let target = target.and_then(|source| source.target.average_value.as_ref());
            format!("{}/{}", amount(current), amount(target))
        }
        "Resource" => {
            let current = measured.and_then(|status| status.resource.as_ref());
            let source = metric.resource.as_ref();
            of_resource(
                source.map(|source| source.name.as_str()),
                source.map(|source| &source.target),
                current.map(|status| &status.current),
            )
        }
        "ContainerResource" => {
            let current = measured.and_then(|status| status.container_resource.as_ref());
            let source = metric.container_resource.as_ref();
            of_resource(
                source.map(|source| source.name.as_str()),
                source.map(|source| &source.target),
                current.map(|status| &status.current),
            )
        }
        _ => "<unknown type>".to_owned(),
    }
}

fn amount(amount: Option<&Quantity>) -> &str {
    amount.map_or(UNKNOWN, |amount| &amount.0)
}

fn of_object(target: Option<&MetricTarget>, current: Option<&MetricValueStatus>) -> String {
    let average = target.and_then(|target| target.average_value.as_ref());
    if average.is_some() {
        let current = current.and_then(|current| current.average_value.as_ref());
        return format!("{}/{} (avg)", amount(current), amount(average));
    }
    let current = current.and_then(|current| current.value.as_ref());
    let target = target.and_then(|target| target.value.as_ref());
    format!("{}/{}", amount(current), amount(target))
}

fn of_resource(name: Option<&str>, target: Option<&MetricTarget>, current: Option<&MetricValueStatus>) -> String {
    let name = name.unwrap_or_default();
    let average = target.and_then(|target| target.average_value.as_ref());
    if average.is_some() {
        let current = current.and_then(|current| current.average_value.as_ref());
        return format!("{name}: {}/{}", amount(current), amount(average));
    }
    let percent =
        |number: Option<i32>, absent: &str| number.map_or_else(|| absent.to_owned(), |number| format!("{number}%"));
    let current = percent(current.and_then(|current| current.average_utilization), UNKNOWN);
    let target = percent(target.and_then(|target| target.average_utilization), "<auto>");
    format!("{name}: {current}/{target}")
}
