//! Workloads: how many of their pods are well, their own warnings, and what is wrong with the first
//! pod that is not.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::Value;

use super::{about, explain, tell, warned, warnings};
use crate::{
    api::{Api, text_at},
    resource::Resources,
    terminal,
    trace::{items, newest_owned, owned_by},
};

/// Exit code 1 when something is wrong with one of the pods.
pub(super) async fn run(api: &Api, resources: &Resources, namespace: &str, path: &str) -> anyhow::Result<ExitCode> {
    let object = api.get(path).await?;
    let sets = newest_owned(api, resources, namespace, &object).await?;
    let owners = sets.iter().chain([&object]);
    let owners: Vec<&str> = owners.map(|owner| text_at(owner, "/metadata/uid")).collect();
    let all = api.get(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
    let pods: Vec<&Value> = items(&all)
        .filter(|pod| owners.iter().any(|uid| owned_by(pod, uid)))
        .collect();
    let (kind, name) = (text_at(&object, "/kind"), text_at(&object, "/metadata/name"));
    let told = warnings(api, namespace, &about(&object)).await?;
    if pods.is_empty() && told.is_empty() && object.pointer("/spec/template").is_none() {
        bail!("{kind} {namespace}/{name} is no pod and has none: skiff why pod/NAME");
    }
    let troubled: Vec<&Value> = pods.iter().copied().filter(|pod| is_troubled(pod)).collect();
    let well = pods.len().saturating_sub(troubled.len());
    terminal::line(terminal::bold(&format!(
        "{kind} {namespace}/{name}: {well} of its {} pods are well",
        pods.len()
    )))?;
    let told: Vec<&Value> = told.iter().collect();
    terminal::write(&warned(&told))?;
    match troubled.first() {
        Some(pod) => {
            terminal::line("")?;
            tell(api, namespace, pod).await
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

fn is_troubled(pod: &Value) -> bool {
    explain(pod, &[]).iter().any(|finding| finding.trouble)
}
