//! Steps of an object's start, with times from the sources.

use std::borrow::Cow;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Material, audit};
use crate::client::api::text_at;

const STATUS: &str = "pod status";
const EVENTS: &str = "events";

/// Step. `times` has one entry for each object that took it: one for a Deployment, three for three
/// pods.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) name: Cow<'static, str>,
    pub(super) times: Vec<Moment>,
    pub(super) source: &'static str,
}

/// Unix time in nanoseconds, and the resolution of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    pub(super) nanoseconds: i128,
    pub(super) whole_second: bool,
}

pub(super) fn parse(text: &str) -> Option<Moment> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Some(Moment {
        nanoseconds: time.unix_timestamp_nanos(),
        whole_second: !text.contains('.'),
    })
}

/// Returns the steps in order.
pub(super) fn of(material: &Material) -> Vec<Step> {
    let target = first_write(material, &[&material.target], "");
    let pods: Vec<&Value> = material.pods.iter().collect();
    let pod = first_write(material, &pods, "");
    let binding = first_write(material, &pods, "binding");
    let mut steps = vec![
        step("request received", material.requests, received(&target)),
        step("stored", material.requests, stored(&target)),
    ];
    if let Some(maker) = material.makers.first() {
        let (kind, made) = (text_at(maker, "/kind"), first_write(material, &[maker], ""));
        let asks = format!("controller asks for the {kind}");
        steps.push(step(asks, material.requests, received(&made)));
        steps.push(step(format!("{kind} stored"), material.requests, stored(&made)));
    }
    steps.extend([
        step("controller asks for the pods", material.requests, received(&pod)),
        step("pods stored", material.requests, stored(&pod)),
        step("scheduled", material.requests, stored(&binding)),
    ]);
    steps.extend(on_nodes(material));
    let ready = first_status(material, &pods, |status| condition(status, "Ready").is_some());
    steps.push(step("ready stored", material.requests, stored(&ready)));
    steps.extend(ends(material, &pods));
    steps
}

/// Returns the steps on the pods' nodes.
fn on_nodes(material: &Material) -> [Step; 8] {
    [
        milestone(material, "agent saw the pod", "/seen", STATUS, || {
            condition_times(material, &["/status/startTime"])
        }),
        milestone(material, "network ready", "/network", STATUS, Vec::new),
        milestone(material, "volumes ready", "/volumes", STATUS, Vec::new),
        milestone(material, "sandbox ready", "/sandbox", STATUS, || {
            conditions(material, "PodReadyToStartContainers")
        }),
        step("image present", EVENTS, event_times(material, &["Pulled"])),
        milestone(material, "container created", "/created", EVENTS, || {
            event_times(material, &["Created"])
        }),
        milestone(material, "container started", "/started", EVENTS, || {
            event_times(material, &["Started"])
        }),
        milestone(material, "ready", "/ready", STATUS, || conditions(material, "Ready")),
    ]
}

/// Returns the completion of a Job's pods, and of the Job.
fn ends(material: &Material, pods: &[&Value]) -> Vec<Step> {
    let job = [&material.target].into_iter().chain(&material.makers);
    let job: Vec<&Value> = job
        .filter(|object| object.pointer("/spec/completions").is_some() || text_at(object, "/kind") == "Job")
        .collect();
    if job.is_empty() {
        return Vec::new();
    }
    let over = |status: Option<&Value>| {
        let phase = status.map_or("", |pod| text_at(pod, "/status/phase"));
        matches!(phase, "Succeeded" | "Failed")
    };
    let finished =
        |status: Option<&Value>| condition(status, "Complete").is_some() || condition(status, "Failed").is_some();
    let mut ended: Vec<Moment> = pods.iter().flat_map(|pod| ended_containers(pod)).collect();
    ended.sort();
    vec![
        step("containers ended", "pod status", ended),
        step(
            "end of pods stored",
            material.requests,
            stored(&first_status(material, pods, over)),
        ),
        step(
            "end of Job stored",
            material.requests,
            stored(&first_status(material, &job, finished)),
        ),
    ]
}

fn ended_containers(pod: &Value) -> impl Iterator<Item = Moment> {
    let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let statuses = statuses.into_iter().flatten();
    statuses.filter_map(|status| parse(text_at(status, "/state/terminated/finishedAt")))
}

fn received(events: &[&Value]) -> Vec<Moment> {
    times(events, "/requestReceivedTimestamp")
}

fn stored(events: &[&Value]) -> Vec<Moment> {
    times(events, "/stageTimestamp")
}

fn step(name: impl Into<Cow<'static, str>>, source: &'static str, mut times: Vec<Moment>) -> Step {
    times.sort();
    Step {
        name: name.into(),
        times,
        source,
    }
}

/// Returns a step from the nodes' milestones, or from another source if they are incomplete.
fn milestone(
    material: &Material,
    name: &'static str,
    pointer: &str,
    other: &'static str,
    else_: impl FnOnce() -> Vec<Moment>,
) -> Step {
    let told: Vec<Moment> = material
        .milestones
        .values()
        .filter_map(|times| parse(text_at(times, pointer)))
        .collect();
    let known = else_();
    if told.is_empty() || told.len() < known.len() {
        step(name, other, known)
    } else {
        step(name, "node", told)
    }
}

/// Returns for each object its first successful creation, or that of its subresource. The log has
/// all writes of this name; those before the object's creation belong to another object.
fn first_write<'a>(material: &'a Material, objects: &[&Value], subresource: &str) -> Vec<&'a Value> {
    let first = |object: &&Value| {
        let (name, uid) = (text_at(object, "/metadata/name"), text_at(object, "/metadata/uid"));
        material.audit.iter().find(|event| {
            let made = text_at(event, "/responseObject/metadata/uid");
            text_at(event, "/verb") == "create"
                && text_at(event, "/objectRef/subresource") == subresource
                && audit::subject(event) == name
                && (!subresource.is_empty() || made == uid)
        })
    };
    objects.iter().filter_map(first).collect()
}

/// Returns for each object the first status update after which a condition is met.
fn first_status<'a>(
    material: &'a Material,
    objects: &[&Value],
    is_so: impl Fn(Option<&Value>) -> bool,
) -> Vec<&'a Value> {
    let first = |object: &&Value| {
        let uid = text_at(object, "/metadata/uid");
        material.audit.iter().find(|event| {
            text_at(event, "/objectRef/subresource") == "status"
                && text_at(event, "/responseObject/metadata/uid") == uid
                && is_so(event.get("responseObject"))
        })
    };
    objects.iter().filter_map(first).collect()
}

fn times(events: &[&Value], pointer: &str) -> Vec<Moment> {
    events
        .iter()
        .filter_map(|event| parse(text_at(event, pointer)))
        .collect()
}

fn condition_times(material: &Material, pointers: &[&str]) -> Vec<Moment> {
    let of_pod = |pod: &Value| pointers.iter().find_map(|pointer| parse(text_at(pod, pointer)));
    material.pods.iter().filter_map(of_pod).collect()
}

/// Returns when this condition became True, for each pod.
fn conditions(material: &Material, kind: &str) -> Vec<Moment> {
    let since = |pod: &Value| parse(text_at(condition(Some(pod), kind)?, "/lastTransitionTime"));
    material.pods.iter().filter_map(since).collect()
}

fn condition<'a>(pod: Option<&'a Value>, kind: &str) -> Option<&'a Value> {
    let conditions = pod?.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| text_at(condition, "/type") == kind && text_at(condition, "/status") == "True")
}

/// Returns the first event with these reasons, for each pod.
fn event_times(material: &Material, reasons: &[&str]) -> Vec<Moment> {
    let of_pod = |pod: &Value| {
        let uid = text_at(pod, "/metadata/uid");
        let matching = material.events.iter().filter(|event| {
            text_at(event, "/involvedObject/uid") == uid && reasons.contains(&text_at(event, "/reason"))
        });
        matching.filter_map(first_time).min()
    };
    material.pods.iter().filter_map(of_pod).collect()
}

/// `eventTime` has a higher resolution than the older fields.
fn first_time(event: &Value) -> Option<Moment> {
    let pointers = ["/eventTime", "/firstTimestamp", "/metadata/creationTimestamp"];
    pointers.into_iter().find_map(|pointer| parse(text_at(event, pointer)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_step_has_the_time_of_its_source_or_none() {
        let pod = json!({"metadata": {"name": "web-1-a", "uid": "p"}, "status": {"startTime": "2026-01-01T00:00:01Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}]}});
        let created = json!({"verb": "create", "objectRef": {"name": "web"}, "responseObject": {"metadata": {"name": "web", "uid": "d"}},
            "requestReceivedTimestamp": "2026-01-01T00:00:00.100000Z", "stageTimestamp": "2026-01-01T00:00:00.102500Z"});
        let earlier = json!({"verb": "create", "objectRef": {"name": "web"}, "responseObject": {"metadata": {"name": "web", "uid": "gone"}},
            "requestReceivedTimestamp": "2025-01-01T00:00:00.1Z", "stageTimestamp": "2025-01-01T00:00:00.1Z"});
        let event =
            json!({"reason": "Started", "involvedObject": {"uid": "p"}, "eventTime": "2026-01-01T00:00:01.500000Z"});
        let material = Material {
            target: json!({"metadata": {"name": "web", "uid": "d"}}),
            makers: Vec::new(),
            pods: vec![pod],
            events: vec![event],
            milestones: BTreeMap::from([("p".to_owned(), json!({"seen": "2026-01-01T00:00:01.000250Z"}))]),
            requests: "audit log",
            audit: vec![earlier, created],
        };
        let steps = of(&material);
        let at = |name: &str| steps.iter().find(|step| step.name == name).unwrap().times.clone();
        let exact = |text: &str| vec![parse(text).unwrap()];
        assert_eq!(at("request received"), exact("2026-01-01T00:00:00.1Z"));
        assert_eq!(at("stored"), exact("2026-01-01T00:00:00.1025Z"));
        assert_eq!(at("container started"), exact("2026-01-01T00:00:01.5Z"));
        assert_eq!(at("agent saw the pod"), exact("2026-01-01T00:00:01.00025Z"));
        assert!(at("ready")[0].whole_second);
        assert!(at("scheduled").is_empty());
        assert!(at("container created").is_empty());
    }
}
