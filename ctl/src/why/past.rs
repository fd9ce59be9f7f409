//! Findings for pods that are gone: from their nodes' records of failures, and remaining events.

use std::process::ExitCode;

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::finding::Finding;
use super::{containers, lines_of, warned, warnings};
use crate::client::api::{Api, text_at, with_query};
use crate::objects::describe::time_of;
use crate::terminal;

/// Maximum number of concurrent requests to nodes.
const TOGETHER: usize = 16;
/// Maximum number of lines of output.
const LINES: usize = 10;

/// Explains the records of a pod that is gone; `None` if there are none.
pub(super) async fn run(api: &Api, namespace: &str, name: &str) -> anyhow::Result<Option<ExitCode>> {
    let nodes = api.get("/api/v1/nodes").await?;
    let nodes = nodes.get("items").and_then(Value::as_array).into_iter().flatten();
    let paths = nodes.map(|node| {
        with_query(
            &format!("/api/v1/nodes/{}/proxy/crashes", text_at(node, "/metadata/name")),
            &[("namespace", Some(namespace)), ("pod", Some(name))],
        )
    });
    // A node that is not reachable has no records.
    let answers = futures::stream::iter(paths.collect::<Vec<_>>())
        .map(|path| async move { api.get(&path).await.ok() })
        .buffered(TOGETHER)
        .collect::<Vec<_>>()
        .await;
    let stories: Vec<&Value> = answers
        .iter()
        .flatten()
        .filter_map(|answer| answer.get("items")?.as_array())
        .flatten()
        .collect();
    let events = warnings(
        api,
        namespace,
        &format!("involvedObject.kind=Pod,involvedObject.name={name}"),
    )
    .await?;
    let events: Vec<&Value> = events.iter().collect();
    let (stories, events) = newest(stories, events);
    if stories.is_empty() && events.is_empty() {
        return Ok(None);
    }
    terminal::line(terminal::bold(&format!("Pod {namespace}/{name} is gone")))?;
    for story in stories {
        terminal::write(&told(story, &events))?;
    }
    terminal::write(&warned(&events))?;
    Ok(Some(ExitCode::FAILURE))
}

/// Selects the records of the newest of the pods with this name.
fn newest<'a>(stories: Vec<&'a Value>, events: Vec<&'a Value>) -> (Vec<&'a Value>, Vec<&'a Value>) {
    let of_story = |story: &&'a Value| {
        let end = story.get("ends").and_then(Value::as_array).and_then(|ends| ends.last());
        (
            end.map_or("", |end| text_at(end, "/finishedAt")),
            text_at(story, "/uid"),
        )
    };
    let of_event = |event: &&'a Value| (time_of(event), text_at(event, "/involvedObject/uid"));
    let all = stories.iter().map(of_story).chain(events.iter().map(of_event));
    // Without its final letter, a time sorts before those with more digits.
    let last = all.max_by_key(|(time, _)| time.trim_end_matches('Z'));
    let (_, uid) = last.unwrap_or_default();
    (
        stories.into_iter().filter(|story| of_story(story).1 == uid).collect(),
        events.into_iter().filter(|event| of_event(event).1 == uid).collect(),
    )
}

/// Explains why a node rejected a pod.
fn refused(story: &Value, end: &Value) -> String {
    let reason = text_at(end, "/reason");
    let finding = Finding::trouble(format!("The node refused the pod: {reason}."));
    let finding = finding.fact(text_at(end, "/message")).fact(owner(story));
    let finding = if reason.starts_with("OutOf") {
        finding.advise(
            "free the node (`kubectl describe nodes` shows what is requested), or name none in spec.nodeName: the scheduler \
             finds one with room",
        )
    } else {
        finding.advise("create it anew once the cause is mended")
    };
    finding.text(&[])
}

fn owner(story: &Value) -> String {
    match text_at(story, "/owner") {
        "" => String::new(),
        owner => format!("The pod was one of {owner}."),
    }
}

/// Explains a node's records of a container as if its pod still existed.
fn told(story: &Value, events: &[&Value]) -> String {
    let ends = story
        .get("ends")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let Some(end) = ends.last() else {
        return String::new();
    };
    let name = text_at(story, "/container");
    if name.is_empty() {
        return refused(story, end);
    }
    let mut limits = json!({});
    if let Some(limits) = limits
        .as_object_mut()
        .filter(|_| !text_at(story, "/memoryLimit").is_empty())
    {
        limits.insert("memory".to_owned(), text_at(story, "/memoryLimit").into());
    }
    let pod = json!({
        "spec": {"nodeName": "gone", "containers": [{"name": name, "resources": {"limits": limits}}]},
        "status": {"phase": containers::GONE, "containerStatuses": [{
            "name": name, "image": text_at(story, "/image"), "restartCount": end.get("attempt"),
            "state": {"terminated": {
                "exitCode": end.get("exitCode"), "reason": end.get("reason"), "message": end.get("message"),
                "startedAt": end.get("startedAt"), "finishedAt": end.get("finishedAt"),
            }},
        }]},
    });
    let mut output = lines_of(text_at(end, "/output"));
    output.drain(..output.len().saturating_sub(LINES));
    let mut text = String::new();
    for finding in containers::explain(&pod, events) {
        let ran = format!("{} It ran {}.", owner(story), text_at(story, "/image"));
        let finding = finding.fact(ran.trim_start()).fact(used(end)).fact(before(ends));
        text.push_str(&finding.text(&output));
    }
    text
}

/// Returns the peak memory and the CPU time of an instance.
fn used(end: &Value) -> String {
    let number = |key: &str| end.get(key).and_then(Value::as_u64);
    let memory = number("memoryPeak").map(|bytes| format!("{} MiB of memory at most", bytes.div_ceil(1 << 20)));
    let cpu = number("cpuMilliseconds").map(|time| format!("{time} ms of CPU time"));
    let used: Vec<String> = memory.into_iter().chain(cpu).collect();
    if used.is_empty() {
        String::new()
    } else {
        format!("It used {}.", used.join(" and "))
    }
}

/// Returns the failures before the last one.
fn before(ends: &[Value]) -> String {
    let earlier = ends.split_last().map_or(&[][..], |(_, earlier)| earlier);
    let ends: Vec<String> = earlier
        .iter()
        .map(|end| {
            let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
            format!("exit code {code} at {}", text_at(end, "/finishedAt"))
        })
        .collect();
    if ends.is_empty() {
        String::new()
    } else {
        format!("Before: {}.", ends.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_its_peak_its_output_and_what_to_do() {
        let story = json!({
            "namespace": "default", "pod": "web-1", "container": "main", "image": "web:1", "owner": "ReplicaSet/web",
            "memoryLimit": "16Mi",
            "ends": [
                {"attempt": 0, "exitCode": 1, "reason": "Error", "message": "", "finishedAt": "2026-01-01T00:00:00Z", "output": ""},
                {"attempt": 1, "exitCode": 137, "reason": "OOMKilled", "message": "", "startedAt": "2026-01-01T00:00:10Z",
                 "finishedAt": "2026-01-01T00:00:11Z", "memoryPeak": 16_777_216, "cpuMilliseconds": 120, "output": "filling\n\u{1b}[2J\n"},
            ],
        });
        let text = told(&story, &[]);
        for wanted in [
            "* Container main has ended with a failure.",
            "exit code 137: the kernel killed it, because it used more memory than it may.",
            "The pod was one of ReplicaSet/web. It ran web:1.",
            "It used 16 MiB of memory at most and 120 ms of CPU time.",
            "Before: exit code 1 at 2026-01-01T00:00:00Z.",
            "    | filling",
            "-> raise resources.limits.memory (now 16Mi), or make the program use less",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "the terminal is not steered");
    }

    #[test]
    fn an_end_without_a_failure_is_told_where_there_should_have_been_none() {
        let text = told(
            &json!({"container": "main", "ends": [{"attempt": 7, "exitCode": 0, "reason": "Completed", "output": "bye\n"}]}),
            &[],
        );
        for wanted in [
            "* Container main was to run on, but ended.",
            "exit code 0: it finished without a failure.",
            "-> it ends of its own accord",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn a_pod_that_the_node_refused_is_told_of_and_not_the_one_before_it() {
        let ended = |uid: &str, container: &str, reason: &str, at: &str| {
            json!({"uid": uid, "container": container, "image": "web:1", "owner": "ReplicaSet/web", "memoryLimit": "",
                "ends": [{"attempt": 0, "exitCode": 1, "reason": reason, "finishedAt": at, "output": "",
                    "message": "Node didn't have enough resource: cpu"}]})
        };
        let earlier = ended("a", "main", "Error", "2026-01-01T00:00:00Z");
        let refused = ended("b", "", "OutOfcpu", "2026-01-01T00:00:00.5Z");
        let event = |uid: &str| json!({"involvedObject": {"uid": uid}, "reason": "BackOff", "lastTimestamp": "2025-12-31T00:00:00Z"});
        let (before, own) = (event("a"), event("b"));
        let (stories, events) = newest(vec![&refused, &earlier], vec![&before, &own]);
        assert_eq!((&stories, &events), (&vec![&refused], &vec![&own]));
        let text = told(&refused, &[]);
        for wanted in [
            "* The node refused the pod: OutOfcpu.",
            "Node didn't have enough resource: cpu",
            "The pod was one of ReplicaSet/web.",
            "the scheduler finds one with room",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert_eq!(newest(Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    }
}
