//! The pod that is meant: by its name, or by something that selects pods.

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::api::{Api, text_at, with_query};
use crate::resource::Resources;
use crate::terminal;

/// The name of the pod for `POD`, `pod/NAME`, or `TYPE/NAME` of what has pods; of several the first.
pub(crate) async fn one(api: &Api, namespace: &str, target: &str) -> anyhow::Result<String> {
    let Some((kind, name)) = target.split_once('/') else {
        return Ok(target.to_owned());
    };
    let resource = Resources::discover(api).await?.find(kind)?;
    if resource.group.is_empty() && resource.plural == "pods" {
        return Ok(name.to_owned());
    }
    // Whatever selects pods by labels.
    let owner = api.get(&resource.object(namespace, name)?).await?;
    let labels = owner
        .pointer("/spec/selector/matchLabels")
        .or_else(|| owner.pointer("/spec/selector"));
    let labels = labels
        .and_then(Value::as_object)
        .with_context(|| format!("{target} selects no pods"))?;
    let selector: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let pods = list(api, namespace, &selector.join(",")).await?;
    let Some(first) = pods.first() else {
        bail!("no pods found in {namespace} namespace");
    };
    if pods.len() > 1 {
        terminal::note(format!("Found {} pods, using pod/{first}", pods.len()));
    }
    Ok(first.clone())
}

/// The names of the pods with these labels.
pub(crate) async fn list(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<String>> {
    let path = with_query(
        &format!("/api/v1/namespaces/{namespace}/pods"),
        &[("labelSelector", Some(selector))],
    );
    let list = api.get(&path).await?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(items.map(|pod| text_at(pod, "/metadata/name").to_owned()).collect())
}
