//! The pod that is meant: by its name, or by something that selects or owns pods.

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

/// An object, and what it owns.
pub(crate) struct Owned {
    pub(crate) target: Value,
    /// The set of the newest revision; none for a kind without sets.
    pub(crate) replica_sets: Vec<Value>,
    /// The pods of the set and of the object itself.
    pub(crate) pods: Vec<Value>,
}

/// Asks for what an object owns.
pub(crate) async fn owned(api: &Api, resources: &Resources, namespace: &str, target: Value) -> anyhow::Result<Owned> {
    let replica_sets = newest_owned(api, resources, namespace, &target).await?;
    let owners: Vec<&str> = replica_sets
        .iter()
        .chain([&target])
        .map(|owner| text_at(owner, "/metadata/uid"))
        .collect();
    let all = api.get(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
    let pods: Vec<Value> = items(&all)
        .filter(|pod| owners.iter().any(|uid| owned_by(pod, uid)))
        .cloned()
        .collect();
    Ok(Owned {
        target,
        replica_sets,
        pods,
    })
}

/// The set of the newest revision that the target owns; none for a kind without sets.
async fn newest_owned(api: &Api, resources: &Resources, namespace: &str, target: &Value) -> anyhow::Result<Vec<Value>> {
    let sets = api
        .get(&resources.find("replicasets.apps")?.collection(Some(namespace)))
        .await?;
    let uid = text_at(target, "/metadata/uid");
    let mut owned: Vec<Value> = items(&sets).filter(|set| owned_by(set, uid)).cloned().collect();
    owned.sort_by_key(|set| {
        let annotations = set.pointer("/metadata/annotations");
        let revision = annotations
            .and_then(|all| all.get("deployment.kubernetes.io/revision"))
            .and_then(Value::as_str);
        revision.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    });
    Ok(owned.pop().into_iter().collect())
}

/// The objects of a list.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| text_at(owner, "/uid") == uid)
}
