//! Selection of a pod: by its name, or by an object that selects or owns pods.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::api::{Api, text_at, with_query};
use super::resource::Resources;
use crate::terminal;

/// Returns the name of the pod for `POD`, `pod/NAME`, or `TYPE/NAME` of a workload; of several pods
/// the first.
pub(crate) async fn one(api: &Api, namespace: &str, target: &str) -> anyhow::Result<String> {
    let Some((kind, name)) = target.split_once('/') else {
        return Ok(target.to_owned());
    };
    let resource = Resources::discover(api).await?.find(kind)?;
    if resource.group.is_empty() && resource.plural == "pods" {
        return Ok(name.to_owned());
    }
    // Objects that select pods by labels.
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

/// Returns the names of the pods with these labels.
pub(crate) async fn list(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<String>> {
    let path = with_query(
        &format!("/api/v1/namespaces/{namespace}/pods"),
        &[("labelSelector", Some(selector))],
    );
    let list = api.get(&path).await?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(items.map(|pod| text_at(pod, "/metadata/name").to_owned()).collect())
}

/// Object with the objects that it owns.
pub(crate) struct Owned {
    pub(crate) target: Value,
    /// ReplicaSet of a Deployment's newest revision, or the newest Job of a `CronJob`.
    pub(crate) makers: Vec<Value>,
    /// Pods of these and of the object itself.
    pub(crate) pods: Vec<Value>,
}

/// Reads the objects that an object owns, or owned at a point of the past.
pub(crate) async fn owned(
    api: &Api,
    resources: &Resources,
    namespace: &str,
    target: Value,
    at: Option<&str>,
) -> anyhow::Result<Owned> {
    let makers = makers(api, resources, namespace, &target, at).await?;
    let owners: Vec<&str> = makers
        .iter()
        .chain([&target])
        .map(|owner| text_at(owner, "/metadata/uid"))
        .collect();
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let all = api.get(&with_query(&path, &[("at", at)])).await?;
    let pods: Vec<Value> = items(&all)
        .filter(|pod| owners.iter().any(|uid| owned_by(pod, uid)))
        .cloned()
        .collect();
    Ok(Owned { target, makers, pods })
}

/// Returns the newest owned object that creates the target's pods; `None` for a kind that creates
/// them itself.
async fn makers(
    api: &Api,
    resources: &Resources,
    namespace: &str,
    target: &Value,
    at: Option<&str>,
) -> anyhow::Result<Vec<Value>> {
    let kind = if target.pointer("/spec/jobTemplate").is_some() {
        "jobs.batch"
    } else {
        "replicasets.apps"
    };
    let path = resources.find(kind)?.collection(Some(namespace));
    let all = api.get(&with_query(&path, &[("at", at)])).await?;
    let uid = text_at(target, "/metadata/uid");
    let mut owned: Vec<Value> = items(&all).filter(|maker| owned_by(maker, uid)).cloned().collect();
    owned.sort_by_key(|maker| {
        let annotations = maker.pointer("/metadata/annotations");
        let revision = annotations
            .and_then(|all| all.get("deployment.kubernetes.io/revision"))
            .and_then(Value::as_str);
        let revision = revision.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        (revision, text_at(maker, "/metadata/creationTimestamp").to_owned())
    });
    // Items of lists lack these fields.
    let maker = owned.pop().map(|mut maker| {
        if let Some(maker) = maker.as_object_mut() {
            let kind = if kind == "jobs.batch" { "Job" } else { "ReplicaSet" };
            maker.insert("kind".to_owned(), kind.into());
        }
        maker
    });
    Ok(maker.into_iter().collect())
}

/// Returns the items of a list.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| text_at(owner, "/uid") == uid)
}
