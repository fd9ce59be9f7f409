//! `skiff why`: what is wrong with a pod, or with the pods of a workload, and what to do about it,
//! from what the public API tells.

mod containers;
mod finding;
mod past;
mod placement;
#[cfg(test)]
mod tests;
mod workload;

use std::process::ExitCode;

use serde_json::Value;

use crate::api::{Api, Refused, text_at, with_query};
use crate::arguments::{Place, TargetOptions};
use crate::describe::time_of;
use crate::resource::Resources;
use crate::terminal;
use finding::{Finding, Log};

/// Lines of a container's output that are shown.
const LINES: &str = "10";
/// Bytes of them that are asked for.
const BYTES: &str = "4096";
/// Warnings that are shown, the newest.
const WARNINGS: usize = 5;

/// Exit code 1 when something is wrong with the pod, or with one of the workload's.
pub(crate) async fn run(place: &Place, options: &TargetOptions) -> anyhow::Result<ExitCode> {
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let (resource, name) = resources.one(&options.target)?;
    let namespace = &options.scope.namespace;
    let path = resource.object(namespace, &name)?;
    if !resource.group.is_empty() || resource.plural != "pods" {
        return workload::run(&api, &resources, namespace, &path).await;
    }
    let pod = match api.get(&path).await {
        Err(error)
            if error
                .downcast_ref::<Refused>()
                .is_some_and(|refused| refused.code == 404) =>
        {
            let told = past::run(&api, namespace, &name).await?;
            return told.ok_or(error);
        }
        pod => pod?,
    };
    tell(&api, namespace, &pod).await
}

/// Tells of one pod.
async fn tell(api: &Api, namespace: &str, pod: &Value) -> anyhow::Result<ExitCode> {
    let warnings = warnings(api, namespace, &about(pod)).await?;
    let warnings: Vec<&Value> = warnings.iter().collect();
    let findings = explain(pod, &warnings);
    terminal::line(terminal::bold(&headline(pod, &findings)))?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}", text_at(pod, "/metadata/name"));
    for finding in &findings {
        let log = match &finding.log {
            Some(log) => output(api, &path, log).await,
            None => Vec::new(),
        };
        terminal::write(&finding.text(&log))?;
    }
    terminal::write(&warned(&warnings))?;
    let trouble = findings.iter().any(|finding| finding.trouble);
    Ok(if trouble { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The selector of an object's events.
fn about(object: &Value) -> String {
    let (name, uid) = (text_at(object, "/metadata/name"), text_at(object, "/metadata/uid"));
    format!("involvedObject.name={name},involvedObject.uid={uid}")
}

/// The warnings among the events, the newest at the end.
async fn warnings(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<Value>> {
    let events = with_query(
        &format!("/api/v1/namespaces/{namespace}/events"),
        &[("fieldSelector", Some(selector))],
    );
    let mut events = api.get(&events).await?;
    let items = events
        .get_mut("items")
        .and_then(Value::as_array_mut)
        .map(std::mem::take);
    let mut warnings = items.unwrap_or_default();
    warnings.retain(|event| text_at(event, "/type") == "Warning");
    warnings.sort_by_key(|event| time_of(event).to_owned());
    Ok(warnings)
}

/// Everything that can be said, the cause before what follows from it.
fn explain(pod: &Value, warnings: &[&Value]) -> Vec<Finding> {
    let mut found = placement::explain(pod);
    found.extend(containers::explain(pod, warnings));
    if found.iter().all(|finding| !finding.trouble) {
        found.extend(placement::readiness(pod));
    }
    found
}

fn headline(pod: &Value, findings: &[Finding]) -> String {
    let (namespace, name) = (text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"));
    let phase = match text_at(pod, "/status/phase") {
        "" => "no status yet",
        phase => phase,
    };
    let on = match text_at(pod, "/spec/nodeName") {
        "" => "on no node".to_owned(),
        node => format!("on node {node}"),
    };
    let verdict = if findings.iter().any(|finding| finding.trouble) {
        "something is wrong"
    } else {
        "nothing is wrong"
    };
    format!("Pod {namespace}/{name} ({phase}, {on}): {verdict}")
}

/// The last lines of a container's output. That there are none is no failure.
async fn output(api: &Api, pod: &str, log: &Log) -> Vec<String> {
    let path = with_query(
        &format!("{pod}/log"),
        &[
            ("container", Some(log.container.as_str())),
            ("previous", log.previous.then_some("true")),
            ("tailLines", Some(LINES)),
            ("limitBytes", Some(BYTES)),
        ],
    );
    lines_of(&api.text(&path).await.unwrap_or_default())
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(printable).collect()
}

/// What a container prints must not steer the terminal of who reads it here.
fn printable(line: &str) -> String {
    line.chars()
        .map(|character| {
            if character.is_control() && character != '\t' {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect()
}

fn warned(warnings: &[&Value]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let line = |event: &&Value| {
        let times = match event.get("count").and_then(Value::as_i64) {
            Some(count) if count > 1 => format!(" ({count} times)"),
            Some(_) | None => String::new(),
        };
        let message = printable(text_at(event, "/message").trim());
        format!("  {} {}{times}: {message}\n", time_of(event), text_at(event, "/reason"))
    };
    let newest = warnings.iter().skip(warnings.len().saturating_sub(WARNINGS));
    format!("\nLast warnings:\n{}", newest.map(line).collect::<String>())
}
