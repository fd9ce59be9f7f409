//! `skiff trace`: the steps from an object to its running containers.
//!
//! Sources, the highest resolution first: the audit log in the state directory (times of requests
//! and responses in microseconds), or without it the server's record of its last writes; the nodes
//! (with milestones of the pods that they started last), Events with an `eventTime`, and the times
//! in objects and older Events, which are whole seconds. A step without a source is shown as
//! unknown. No time is derived from another.

pub(crate) mod audit;
mod steps;
mod waterfall;
mod writes;

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use serde_json::Value;

use crate::arguments::{Place, TraceOptions};
use crate::client::api::{Api, text_at, with_query};
use crate::client::pods::{self, Owned, items};
use crate::client::resource::Resources;
use crate::terminal;

/// Maximum number of concurrent requests.
const TOGETHER: usize = 16;

/// All data about an object and the objects created from it.
pub(crate) struct Material {
    pub(crate) target: Value,
    /// Object between the target and its pods: a ReplicaSet, or a `CronJob`'s Job.
    pub(crate) makers: Vec<Value>,
    pub(crate) pods: Vec<Value>,
    pub(crate) events: Vec<Value>,
    /// Milestones of the pods on their nodes, by the pods' UIDs.
    pub(crate) milestones: BTreeMap<String, Value>,
    /// Audit events of the object, its makers and its pods, oldest first; without an audit log, the
    /// server's records.
    pub(crate) audit: Vec<Value>,
    /// Source of these.
    pub(crate) requests: &'static str,
}

pub(crate) async fn run(place: &Place, options: &TraceOptions) -> anyhow::Result<()> {
    let at = options.at.as_deref();
    let options = &options.target;
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let (resource, name) = resources.one(&options.target)?;
    let namespace = &options.scope.namespace;
    let path = resource.object(namespace, &name)?;
    let target = api.get(&with_query(&path, &[("at", at)])).await?;
    let owned = pods::owned(&api, &resources, namespace, target, at).await?;
    if owned.pods.is_empty() {
        bail!("{}/{name} has no pods", resource.display());
    }
    let mut events = Vec::new();
    for pod in &owned.pods {
        let field = format!("involvedObject.uid={}", text_at(pod, "/metadata/uid"));
        let path = with_query(
            &format!("/api/v1/namespaces/{namespace}/events"),
            &[("fieldSelector", Some(field.as_str())), ("at", at)],
        );
        events.extend(items(&api.get(&path).await?).cloned());
    }
    let directory = place
        .kubeconfig()
        .parent()
        .context("the kubeconfig's directory")?
        .join("controlplane/audit");
    let mut audit = audit::read(&directory, namespace, &name);
    let mut requests = "audit log";
    // The server's record is of the last writes by name, also of a newer object.
    if audit.is_empty() && at.is_none() {
        requests = "API server";
        audit = writes::read(&api, &resources, &path, namespace, &owned).await;
    }
    if audit.is_empty() {
        terminal::note(format!(
            "the API server remembers no writes of this object, and {} has none: requests' times are unknown",
            directory.display()
        ));
    }
    let Owned { target, makers, pods } = owned;
    let material = Material {
        milestones: milestones(&api, &pods).await,
        target,
        makers,
        pods,
        events,
        audit,
        requests,
    };
    let steps = steps::of(&material);
    terminal::write(&waterfall::draw(&format!("{}/{name}", resource.display()), &steps))
}

/// Reads the milestones from the pods' nodes. A node that is not reachable, or was restarted since,
/// has none.
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
