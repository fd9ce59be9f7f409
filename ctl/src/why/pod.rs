//! Findings for an existing pod.

use serde_json::Value;

use super::finding::{Finding, Log};
use super::{containers, lines_of, node, placement, verdict, warned, warnings};
use crate::client::api::{Api, text_at, with_query};
use crate::terminal;

/// Maximum number of lines of a container's log.
const LINES: &str = "10";
/// Maximum number of requested bytes of them.
const BYTES: &str = "4096";

/// Returns whether there is a problem.
pub(super) async fn tell(api: &Api, pod: &Value) -> anyhow::Result<bool> {
    let (namespace, name) = (text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"));
    let selector = format!(
        "involvedObject.name={name},involvedObject.uid={}",
        text_at(pod, "/metadata/uid")
    );
    let warnings = warnings(api, namespace, &selector).await?;
    let warnings: Vec<&Value> = warnings.iter().collect();
    let mut findings = explain(pod, &warnings);
    let on = text_at(pod, "/spec/nodeName");
    let own_network = pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) != Some(true);
    // Without permission to read nodes, this finding is omitted.
    if own_network
        && !on.is_empty()
        && let Ok(found) = api.get(&format!("/api/v1/nodes/{on}")).await
    {
        findings.extend(node::firewall(&found));
    }
    terminal::line(terminal::bold(&headline(pod, &findings)))?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    for finding in &findings {
        let log = match &finding.log {
            Some(log) => output(api, &path, log).await,
            None => Vec::new(),
        };
        terminal::write(&finding.text(&log))?;
    }
    terminal::write(&warned(&warnings))?;
    Ok(findings.iter().any(|finding| finding.trouble))
}

/// Returns all findings, causes before their consequences.
pub(super) fn explain(pod: &Value, warnings: &[&Value]) -> Vec<Finding> {
    let mut found = placement::explain(pod);
    found.extend(containers::explain(pod, warnings));
    if found.iter().all(|finding| !finding.trouble) {
        found.extend(placement::readiness(pod));
    }
    found
}

pub(super) fn headline(pod: &Value, findings: &[Finding]) -> String {
    let (namespace, name) = (text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"));
    let phase = match text_at(pod, "/status/phase") {
        "" => "no status yet",
        phase => phase,
    };
    let on = match text_at(pod, "/spec/nodeName") {
        "" => "on no node".to_owned(),
        node => format!("on node {node}"),
    };
    let trouble = findings.iter().any(|finding| finding.trouble);
    format!("Pod {namespace}/{name} ({phase}, {on}): {}", verdict(trouble))
}

/// Returns the last lines of a container's log; a missing log is not an error.
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
