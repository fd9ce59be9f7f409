//! `skiff trace`: how an object became containers, step by step.
//!
//! Sources, the finest first: the audit log in the state directory (when a request came, when it was answered, to the
//! microsecond), the nodes (which remember the steps of the pods that they started last), Events with an `eventTime`, and the
//! times in objects and older Events, which are whole seconds. What no source tells is shown as unknown. Nothing is derived
//! from anything else.

mod audit;
mod steps;
mod waterfall;

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use serde_json::Value;

use crate::api::{Api, text_at, with_query};
use crate::arguments::{Place, TargetOptions};
use crate::resource::Resources;
use crate::terminal;

/// Requests that are made at once.
const TOGETHER: usize = 16;

/// Everything that is known of one object and what came from it.
pub(crate) struct Material {
    pub(crate) target: Value,
    pub(crate) replica_sets: Vec<Value>,
    pub(crate) pods: Vec<Value>,
    pub(crate) events: Vec<Value>,
    /// What the pods' nodes know of the steps that they took, by the pods' uids.
    pub(crate) milestones: BTreeMap<String, Value>,
    /// Audit entries that concern the object, its sets and its pods, oldest first; empty where the log is not here.
    pub(crate) audit: Vec<Value>,
}

pub(crate) async fn run(place: &Place, options: &TargetOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let (resource, name) = resources.one(&options.target)?;
    let namespace = &options.scope.namespace;
    let target = api.get(&resource.object(namespace, &name)?).await?;
    let replica_sets = newest_owned(&api, &resources, namespace, &target).await?;
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
    if pods.is_empty() {
        bail!("{}/{name} has no pods", resource.display());
    }
    let mut events = Vec::new();
    for pod in &pods {
        let field = format!("involvedObject.uid={}", text_at(pod, "/metadata/uid"));
        let path = with_query(
            &format!("/api/v1/namespaces/{namespace}/events"),
            &[("fieldSelector", Some(field.as_str()))],
        );
        events.extend(items(&api.get(&path).await?).cloned());
    }
    let directory = place
        .kubeconfig()
        .parent()
        .context("the kubeconfig's directory")?
        .join("controlplane/audit");
    let audit = audit::read(&directory, namespace, &name);
    if audit.is_empty() {
        terminal::note(format!(
            "no audit log of this object in {}: requests' times are unknown",
            directory.display()
        ));
    }
    let material = Material {
        milestones: milestones(&api, &pods).await,
        target,
        replica_sets,
        pods,
        events,
        audit,
    };
    let steps = steps::of(&material);
    terminal::write(&waterfall::draw(&format!("{}/{name}", resource.display()), &steps))
}

/// Asks the pods' nodes. One that cannot be asked, or that started again since, has nothing to tell.
async fn milestones(api: &Api, pods: &[Value]) -> BTreeMap<String, Value> {
    let questions: Vec<(String, String)> = pods
        .iter()
        .filter(|pod| !text_at(pod, "/spec/nodeName").is_empty())
        .map(|pod| {
            let uid = text_at(pod, "/metadata/uid");
            let path = format!("/api/v1/nodes/{}/proxy/milestones", text_at(pod, "/spec/nodeName"));
            (uid.to_owned(), with_query(&path, &[("uid", Some(uid))]))
        })
        .collect();
    futures::stream::iter(questions)
        .map(|(uid, path)| async move { Some((uid, api.get(&path).await.ok()?)) })
        .buffered(TOGETHER)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// The set of the newest revision that the target owns; none for a kind without sets.
pub(crate) async fn newest_owned(
    api: &Api,
    resources: &Resources,
    namespace: &str,
    target: &Value,
) -> anyhow::Result<Vec<Value>> {
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

pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

pub(crate) fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| text_at(owner, "/uid") == uid)
}
