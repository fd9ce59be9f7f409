//! Pods that are gone: what their nodes remember of failures, and the events that are left.

use std::process::ExitCode;

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::{containers, lines_of, warned, warnings};
use crate::api::{Api, text_at, with_query};
use crate::terminal;

/// Nodes that are asked at once.
const TOGETHER: usize = 16;
/// Lines of output that are shown.
const LINES: usize = 10;

/// Tells what is known of a pod that is not there; nothing when nobody knows anything.
pub(super) async fn run(api: &Api, namespace: &str, name: &str) -> anyhow::Result<Option<ExitCode>> {
    let nodes = api.get("/api/v1/nodes").await?;
    let nodes = nodes.get("items").and_then(Value::as_array).into_iter().flatten();
    let paths = nodes.map(|node| {
        with_query(
            &format!("/api/v1/nodes/{}/proxy/crashes", text_at(node, "/metadata/name")),
            &[("namespace", Some(namespace)), ("pod", Some(name))],
        )
    });
    // A node that cannot be asked has nothing to tell.
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
    if stories.is_empty() && events.is_empty() {
        return Ok(None);
    }
    let events: Vec<&Value> = events.iter().collect();
    terminal::line(terminal::bold(&format!("Pod {namespace}/{name} is gone")))?;
    for story in stories {
        terminal::write(&told(story, &events))?;
    }
    terminal::write(&warned(&events))?;
    Ok(Some(ExitCode::FAILURE))
}

/// What a node remembers of a container, explained as if its pod were still there.
fn told(story: &Value, events: &[&Value]) -> String {
    let ends = story
        .get("ends")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let Some(end) = ends.last() else {
        return String::new();
    };
    let name = text_at(story, "/container");
    let mut limits = json!({});
    if let Some(limits) = limits
        .as_object_mut()
        .filter(|_| !text_at(story, "/memoryLimit").is_empty())
    {
        limits.insert("memory".to_owned(), text_at(story, "/memoryLimit").into());
    }
    let pod = json!({
        "spec": {"nodeName": "gone", "containers": [{"name": name, "resources": {"limits": limits}}]},
        "status": {"phase": "Failed", "containerStatuses": [{
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
        let owner = match text_at(story, "/owner") {
            "" => String::new(),
            owner => format!("The pod was one of {owner}. "),
        };
        let finding = finding
            .fact(format!("{owner}It ran {}.", text_at(story, "/image")))
            .fact(used(end))
            .fact(before(ends));
        text.push_str(&finding.text(&output));
    }
    text
}

/// The most memory that a run had, and its time.
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

/// The failures before the last one.
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
}
