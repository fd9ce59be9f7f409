//! `skiff why`: explains problems of a pod, a workload, a Service or a node, and why a pod does not
//! reach another one, with advice, by the public API.

mod containers;
mod finding;
mod node;
mod owner;
mod past;
mod placement;
mod pod;
mod policies;
mod reach;
mod service;
#[cfg(test)]
mod tests;
mod workload;

use std::process::ExitCode;

use anyhow::bail;
use serde_json::Value;

use crate::arguments::Place;
use crate::arguments::past::WhyOptions;
use crate::client::api::{Api, is_not_found, text_at, with_query};
use crate::client::pods;
use crate::client::resource::Resources;
use crate::objects::describe::time_of;
use crate::terminal;
use finding::Finding;

/// Maximum number of warnings, the latest ones.
const WARNINGS: usize = 5;

/// Runs the command. Exit code 1 if there is a problem.
pub(crate) async fn run(place: &Place, options: &WhyOptions) -> anyhow::Result<ExitCode> {
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let (resource, name) = resources.one(&options.target.target)?;
    let namespace = options.target.scope.namespace.as_str();
    let target = api.get(&resource.object(namespace, &name)?).await;
    let kind = (resource.group.as_str(), resource.plural.as_str());
    if let Some(to) = &options.reach {
        if kind != ("", "pods") {
            bail!("connections come from pods: skiff why pod/NAME --reach {to}");
        }
        let there = options.reach_namespace.as_deref().unwrap_or(namespace);
        let trouble = reach::run(&api, &resources, &target?, to, there).await?;
        return Ok(if trouble { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let trouble = match kind {
        ("", "pods") => match target {
            Err(error) if is_not_found(&error) => {
                let told = past::run(&api, namespace, &name).await?;
                return told.ok_or(error);
            }
            found => pod::tell(&api, &found?).await?,
        },
        ("", "nodes") => node::run(&api, &target?).await?,
        ("", "services") => service::run(&api, target?).await?,
        _ => {
            let owned = pods::owned(&api, &resources, namespace, target?, None).await?;
            let tells = workload::makes_pods(&owned.target) || owned.target.pointer("/status/conditions").is_some();
            if owned.pods.is_empty() && !tells {
                bail!("{}/{name} has no pods", resource.display());
            }
            owner::run(&api, &resource, namespace, &owned).await?
        }
    };
    Ok(if trouble { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn verdict(trouble: bool) -> &'static str {
    if trouble {
        "something is wrong"
    } else {
        "nothing is wrong"
    }
}

/// Prints the findings, and the latest warnings.
fn told(findings: &[Finding], warnings: &[&Value]) -> anyhow::Result<()> {
    for finding in findings {
        terminal::write(&finding.text(&[]))?;
    }
    terminal::write(&warned(warnings))
}

/// Returns events, the latest last.
async fn events(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<Value>> {
    let events = with_query(
        &format!("/api/v1/namespaces/{namespace}/events"),
        &[("fieldSelector", Some(selector))],
    );
    let mut events = api.get(&events).await?;
    let items = events
        .get_mut("items")
        .and_then(Value::as_array_mut)
        .map(std::mem::take);
    let mut events = items.unwrap_or_default();
    events.sort_by_key(|event| time_of(event).to_owned());
    Ok(events)
}

/// Returns the events that are warnings, the latest last.
async fn warnings(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<Value>> {
    let mut warnings = events(api, namespace, selector).await?;
    warnings.retain(is_warning);
    Ok(warnings)
}

fn is_warning(event: &Value) -> bool {
    text_at(event, "/type") == "Warning"
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(printable).collect()
}

/// Replaces control characters in a container's output, which could control the terminal.
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
