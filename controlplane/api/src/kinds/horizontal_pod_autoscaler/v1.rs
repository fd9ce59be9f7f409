//! The `autoscaling/v1` form, which supports only CPU utilization. All other fields are kept in
//! annotations, in upstream's form, so that a client of this version loses nothing that one of
//! version 2 set.

use k8s_openapi::api::autoscaling::v1::HorizontalPodAutoscaler;
use k8s_openapi::api::autoscaling::v2;
use serde_json::{Map, Value, json};

use super::{columns, validation};
use crate::kind::{Kind, Representation, Subresource};
use crate::object::written;
use crate::schema::decode::{DecodeError, decode};
use crate::table::Column;
use crate::value::invalid::Invalid;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

impl Kind for HorizontalPodAutoscaler {
    const SHORT_NAMES: &'static [&'static str] = &["hpa"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &columns();
    const STORED_AS: Option<Representation<Self>> = Some(Representation {
        group: "autoscaling",
        version: "v2",
        plural: "horizontalpodautoscalers",
        encode: |scaler| written(&to_v2(scaler)),
        decode: |json| {
            let stored: v2::HorizontalPodAutoscaler = decode(json)?;
            from_v2(&stored)
        },
    });

    fn set_defaults(&mut self) {
        self.spec.min_replicas.get_or_insert(1);
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        Kind::validate(&to_v2(self))
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let status = self.status.clone().unwrap_or_default();
        validation::validate_status(status.current_replicas, status.desired_replicas)
    }
}

/// Converts to the stored form. Malformed annotations are ignored, as upstream does.
pub(super) fn to_v2(scaler: &HorizontalPodAutoscaler) -> v2::HorizontalPodAutoscaler {
    let mut document = serde_json::to_value(scaler).unwrap_or_default();
    renew(&mut document);
    let json = document.to_string();
    let mut stored: v2::HorizontalPodAutoscaler = decode(json.as_bytes()).unwrap_or_default();
    Kind::set_defaults(&mut stored);
    stored
}

fn from_v2(stored: &v2::HorizontalPodAutoscaler) -> Result<HorizontalPodAutoscaler, DecodeError> {
    let mut document = serde_json::to_value(stored).unwrap_or_default();
    age(&mut document);
    decode(document.to_string().as_bytes())
}

fn member<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Map<String, Value>> {
    value.get_mut(name)?.as_object_mut()
}

/// CPU utilization in percent, if the metric is that.
fn load(metric: &Value, place: &str) -> Option<Value> {
    let resource = metric.get("resource").filter(|resource| resource["name"] == "cpu")?;
    let load = resource.get(place)?.get("averageUtilization")?;
    (metric["type"] == "Resource").then(|| load.clone())
}

/// From version 2 to version 1.
fn age(document: &mut Value) {
    let mut noted = Map::new();
    if let Some(spec) = member(document, "spec") {
        let metrics = take_list(spec, "metrics");
        let (own, others) = split(metrics, "target");
        spec.extend(own.map(|load| ("targetCPUUtilizationPercentage".to_owned(), load)));
        note(
            &mut noted,
            METRICS,
            &others.iter().map(|metric| older(metric, false)).collect(),
        );
        if let Some(behavior) = spec.remove("behavior") {
            noted.insert(BEHAVIOR.to_owned(), Value::from(behavior.to_string()));
        }
    }
    if let Some(status) = member(document, "status") {
        let metrics = take_list(status, "currentMetrics");
        // All current metrics are kept: for CPU, too, more than the utilization is reported.
        note(
            &mut noted,
            CURRENT,
            &metrics.iter().map(|metric| older(metric, true)).collect(),
        );
        let (own, _others) = split(metrics, "current");
        status.extend(own.map(|load| ("currentCPUUtilizationPercentage".to_owned(), load)));
        let conditions = take_list(status, "conditions");
        note(&mut noted, CONDITIONS, &conditions);
        status.entry("currentReplicas").or_insert_with(|| json!(0));
    }
    document["apiVersion"] = json!("autoscaling/v1");
    if !noted.is_empty()
        && let Some(metadata) = member(document, "metadata")
        && let Some(annotations) = metadata
            .entry("annotations")
            .or_insert_with(|| json!({}))
            .as_object_mut()
    {
        annotations.extend(noted);
    }
}

/// From version 1 to version 2.
fn renew(document: &mut Value) {
    let mut noted = Map::new();
    if let Some(metadata) = member(document, "metadata")
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
    {
        for name in [METRICS, CURRENT, CONDITIONS, BEHAVIOR] {
            let text = annotations.remove(name);
            let value = text.and_then(|text| serde_json::from_str::<Value>(text.as_str()?).ok());
            noted.extend(value.map(|value| (name.to_owned(), value)));
        }
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    let listed = |noted: &mut Map<String, Value>, name: &str| match noted.remove(name) {
        Some(Value::Array(items)) => items,
        Some(_) | None => Vec::new(),
    };
    if let Some(spec) = member(document, "spec") {
        let own = spec.remove("targetCPUUtilizationPercentage");
        let mut metrics: Vec<Value> = own
            .map(|load| json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": load}}))
            .map(|resource| json!({"type": "Resource", "resource": resource}))
            .into_iter()
            .collect();
        metrics.extend(listed(&mut noted, METRICS).iter().map(|metric| newer(metric, false)));
        spec.insert("metrics".to_owned(), Value::Array(metrics));
        spec.extend(noted.remove(BEHAVIOR).map(|behavior| ("behavior".to_owned(), behavior)));
    }
    if let Some(status) = member(document, "status") {
        let own = status.remove("currentCPUUtilizationPercentage");
        let known = listed(&mut noted, CURRENT);
        let mut metrics: Vec<Value> = known.iter().map(|metric| newer(metric, true)).collect();
        if let (Some(load), true) = (own, metrics.is_empty()) {
            let resource = json!({"name": "cpu", "current": {"averageUtilization": load}});
            metrics.push(json!({"type": "Resource", "resource": resource}));
        }
        for (name, list) in [
            ("currentMetrics", metrics),
            ("conditions", listed(&mut noted, CONDITIONS)),
        ] {
            if !list.is_empty() {
                status.insert(name.to_owned(), Value::Array(list));
            }
        }
    }
    document["apiVersion"] = json!("autoscaling/v2");
}

fn take_list(members: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match members.remove(name) {
        Some(Value::Array(items)) => items,
        Some(_) | None => Vec::new(),
    }
}

/// Splits off the first CPU utilization metric.
fn split(metrics: Vec<Value>, place: &str) -> (Option<Value>, Vec<Value>) {
    let mut own = None;
    let mut others = Vec::new();
    for metric in metrics {
        match load(&metric, place) {
            Some(load) if own.is_none() => own = Some(load),
            Some(_) | None => others.push(metric),
        }
    }
    (own, others)
}

fn note(noted: &mut Map<String, Value>, name: &str, list: &Vec<Value>) {
    if !list.is_empty() {
        noted.insert(name.to_owned(), Value::from(json!(list).to_string()));
    }
}

/// Paths of a metric's fields in version 2, and their names in version 1.
const PARTS: [(&str, &[&str], &str); 19] = [
    ("resource", &["name"], "name"),
    (
        "resource",
        &["target", "averageUtilization"],
        "targetAverageUtilization",
    ),
    ("resource", &["target", "averageValue"], "targetAverageValue"),
    ("containerResource", &["name"], "name"),
    ("containerResource", &["container"], "container"),
    (
        "containerResource",
        &["target", "averageUtilization"],
        "targetAverageUtilization",
    ),
    ("containerResource", &["target", "averageValue"], "targetAverageValue"),
    ("pods", &["metric", "name"], "metricName"),
    ("pods", &["metric", "selector"], "selector"),
    ("pods", &["target", "averageValue"], "targetAverageValue"),
    ("object", &["describedObject"], "target"),
    ("object", &["metric", "name"], "metricName"),
    ("object", &["metric", "selector"], "selector"),
    ("object", &["target", "value"], "targetValue"),
    ("object", &["target", "averageValue"], "averageValue"),
    ("external", &["metric", "name"], "metricName"),
    ("external", &["metric", "selector"], "metricSelector"),
    ("external", &["target", "value"], "targetValue"),
    ("external", &["target", "averageValue"], "targetAverageValue"),
];

/// Path and name of a part; a metric's `target` is `current` in a status.
fn part(place: &[&'static str], name: &str, measured: bool) -> (Vec<&'static str>, String) {
    let wanted = place.first() == Some(&"target");
    if !measured || !wanted {
        return (place.to_vec(), name.to_owned());
    }
    let place = place
        .iter()
        .map(|step| if *step == "target" { "current" } else { step });
    (place.collect(), name.replacen("target", "current", 1))
}

/// Sets a value at a path, creating missing objects.
fn put(at: &mut Value, path: &[&str], value: Value) {
    match path {
        [] => *at = value,
        [first, rest @ ..] => {
            if at.is_null() {
                *at = json!({});
            }
            if let Some(members) = at.as_object_mut() {
                put(members.entry(*first).or_insert(Value::Null), rest, value);
            }
        }
    }
}

fn older(metric: &Value, measured: bool) -> Value {
    let mut old = json!({"type": metric["type"]});
    for (kind, place, name) in PARTS {
        let Some(source) = metric.get(kind) else { continue };
        let (place, name) = part(place, name, measured);
        let value = place.iter().try_fold(source, |value, step| value.get(step));
        if let Some(value) = value {
            put(&mut old, &[kind, &name], value.clone());
        }
    }
    old
}

fn newer(metric: &Value, measured: bool) -> Value {
    let mut new = json!({"type": metric["type"]});
    for (kind, place, name) in PARTS {
        let Some(source) = metric.get(kind) else { continue };
        let (place, name) = part(place, name, measured);
        let Some(value) = source.get(&name) else { continue };
        // Upstream's version 1 cannot leave this value out
        // (`Convert_v1_ObjectMetricSource_To_autoscaling_ObjectMetricSource`).
        if name == "targetValue" && *value == "0" && source.get("averageValue").is_some() {
            continue;
        }
        let sort = match place.last() {
            Some(&"averageUtilization") => Some("Utilization"),
            Some(&"averageValue") => Some("AverageValue"),
            Some(&"value") => Some("Value"),
            Some(_) | None => None,
        };
        if let (Some(sort), false) = (sort, measured) {
            put(&mut new, &[kind, "target", "type"], json!(sort));
        }
        let path: Vec<&str> = std::iter::once(kind).chain(place).collect();
        put(&mut new, &path, value.clone());
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_on_the_way_through_version_1() {
        let json = r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},
            "spec":{"maxReplicas":5,"minReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"web"},
              "behavior":{"scaleDown":{"stabilizationWindowSeconds":60}},
              "metrics":[
                {"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":60}}},
                {"type":"Pods","pods":{"metric":{"name":"requests"},"target":{"type":"AverageValue","averageValue":"100"}}},
                {"type":"Object","object":{"describedObject":{"kind":"Ingress","name":"i"},"metric":{"name":"hits"},"target":{"type":"Value","value":"2k"}}},
                {"type":"External","external":{"metric":{"name":"queue","selector":{"matchLabels":{"q":"a"}}},"target":{"type":"AverageValue","averageValue":"30"}}}]},
            "status":{"currentReplicas":3,"desiredReplicas":4,
              "conditions":[{"type":"AbleToScale","status":"True"}],
              "currentMetrics":[{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":70,"averageValue":"7m"}}},
                {"type":"Pods","pods":{"metric":{"name":"requests"},"current":{"averageValue":"90"}}}]}}"#;
        let mut stored: v2::HorizontalPodAutoscaler = serde_json::from_str(json).unwrap();
        Kind::set_defaults(&mut stored);
        let old = from_v2(&stored).unwrap();
        assert_eq!(old.spec.target_cpu_utilization_percentage, Some(60));
        assert_eq!(
            old.status.as_ref().unwrap().current_cpu_utilization_percentage,
            Some(70)
        );
        let noted = &old.metadata.annotations.as_ref().unwrap()[METRICS];
        assert!(noted.starts_with(r#"[{"pods":{"metricName":"requests","targetAverageValue":"100"},"type":"Pods"}"#));
        assert_eq!(to_v2(&old), stored);
        let noted = r#"[{"type":"Object","object":{"target":{"kind":"Ingress","name":"i"},"metricName":"hits",
            "targetValue":"0","averageValue":"3"}}]"#;
        let mut upstreams = old;
        upstreams.metadata.annotations = Some([(METRICS.to_owned(), noted.to_owned())].into());
        upstreams.spec.target_cpu_utilization_percentage = None;
        let metrics = to_v2(&upstreams).spec.metrics.unwrap();
        let target = &metrics[0].object.as_ref().unwrap().target;
        assert_eq!((target.type_.as_str(), &target.value), ("AverageValue", &None));
    }
}
