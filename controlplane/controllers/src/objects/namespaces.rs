//! Namespace controller: deletes the content of a namespace that is being deleted, reports the
//! remaining content, and then finalizes the namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::namespaces::{self, Remains};
use controlplane_plan::objects::{Meta as _, target};
use controlplane_plan::step::{DEFINITIONS, NAMESPACES, PODS, PatchKind, Resource};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::Method;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::elsewhere::{self, Elsewhere};
use crate::machinery::kinds::{Caches, defined, stored_kinds};
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON, escape};

/// Namespaces whose content is deleted at once.
const IN_FLIGHT: usize = 16;
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Page size for counting the objects of a kind.
const PAGE: usize = 500;

#[derive(Deserialize, Default)]
struct Left {
    #[serde(default)]
    metadata: LeftPage,
    #[serde(default)]
    items: Vec<LeftItem>,
}

#[derive(Deserialize, Default)]
struct LeftPage {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct LeftItem {
    #[serde(default)]
    metadata: LeftMetadata,
}

#[derive(Deserialize, Default)]
struct LeftMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    finalizers: Vec<String>,
}

/// Wakes namespaces that are being deleted, also when a pod of theirs is gone.
pub(crate) fn listen(caches: &Caches) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("namespace");
    caches
        .namespaces
        .wake_if(&queue, |new| new.metadata.deletion_timestamp.is_some());
    let wake = queue.clone();
    let namespaces = Arc::downgrade(&caches.namespaces);
    caches.pods.listen(move |change| {
        let (Some(old), None) = (change.old, change.new) else {
            return;
        };
        let key = Key::new("", old.metadata.namespace());
        let namespace = namespaces.upgrade().and_then(|namespaces| namespaces.get(&key));
        if namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            wake.push(key);
        }
    });
    queue
}

/// Runs the controller forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>) {
    context.caches.synced().await;
    let mut attempts: BTreeMap<Key, u32> = BTreeMap::new();
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((key, finished)) = under_way.next(), if !under_way.is_empty() => {
                let key: Key = key;
                queue.done(&key);
                if finished {
                    attempts.remove(&key);
                } else {
                    let count = attempts.entry(key.clone()).or_default();
                    let delay = RETRY.0.saturating_mul(1 << (*count).min(8)).min(RETRY.1);
                    *count = count.saturating_add(1);
                    queue.push_after(key, delay);
                }
            }
            key = queue.next(), if under_way.len() < IN_FLIGHT => {
                let Some(namespace) = context.caches.namespaces.get(&key) else {
                    attempts.remove(&key);
                    queue.done(&key);
                    continue;
                };
                if namespace.metadata.deletion_timestamp.is_none() {
                    queue.done(&key);
                    continue;
                }
                let context = context.clone();
                under_way.push(Box::pin(async move {
                    let finished = empty(&context, &namespace).await;
                    (key, finished)
                }));
            }
        }
    }
}

/// Runs one round of deletion; returns true if the namespace can be finalized.
async fn empty(context: &Context, namespace: &Namespace) -> bool {
    let name = namespace.metadata.name.clone().unwrap_or_default();
    let finalizers = namespace
        .spec
        .as_ref()
        .and_then(|spec| spec.finalizers.clone())
        .unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        return true;
    }
    let (elsewhere, undiscovered) = match elsewhere::kinds(context).await {
        Ok(found) => found,
        Err(error) => {
            debug!(namespace = name, %error, "the groups are not known");
            return false;
        }
    };
    let mut remains = Remains {
        undiscovered,
        ..Remains::default()
    };
    // Pods are deleted first, and nothing else while there are any, since they may need it to the
    // end. Controllers can create no more in this namespace.
    let kinds = stored_kinds().filter(|resource| resource.namespaced && *resource != PODS);
    let defined = match defined_kinds(context).await {
        Ok(defined) => defined,
        Err(error) => {
            debug!(namespace = name, %error, "the defined kinds are not known");
            return false;
        }
    };
    let mut others: Vec<Collection> = kinds.chain(defined).map(|own| Collection::of(&own, &name)).collect();
    let swept = elsewhere
        .iter()
        .filter(|kind| kind.namespaced && kind.supports(&["list", "delete"]));
    others.extend(swept.map(|kind| Collection::elsewhere(kind, &name)));
    sweep_all(context, &name, vec![Collection::of(&PODS, &name)], &mut remains).await;
    if remains.objects.is_empty() && remains.failures.is_empty() {
        sweep_all(context, &name, others, &mut remains).await;
    }
    report(context, namespace, &remains).await;
    if !remains.is_empty() {
        return false;
    }
    match finalize(context, namespace, &name).await {
        Ok(()) => {
            info!(namespace = name, "emptied");
            true
        }
        Err(error) if error.code() == 404 => true,
        Err(error) => {
            debug!(namespace = name, %error, "not finalized");
            false
        }
    }
}

/// Namespaced kinds of `CustomResourceDefinitions`, each in one served version.
async fn defined_kinds(context: &Context) -> Result<Vec<Resource>, Error> {
    let path = request::path(&DEFINITIONS, "", "", "");
    let list: List<CustomResourceDefinition> =
        request::send(&context.client, Method::GET, path, JSON, Vec::new()).await?;
    let served = list.items.iter().filter_map(defined);
    Ok(served.filter(|resource| resource.namespaced).collect())
}

/// All objects of a kind in one namespace.
struct Collection {
    path: String,
    plural: String,
    group: String,
}

impl Collection {
    fn elsewhere(kind: &Elsewhere, namespace: &str) -> Self {
        Self {
            path: kind.collection(namespace),
            plural: kind.plural.clone(),
            group: kind.group.clone(),
        }
    }

    fn of(resource: &Resource, namespace: &str) -> Self {
        Self {
            path: request::path(resource, namespace, "", ""),
            plural: resource.plural.to_owned(),
            group: resource.group.to_owned(),
        }
    }
}

/// Sweeps collections one after the other; records failures.
async fn sweep_all(context: &Context, namespace: &str, collections: Vec<Collection>, remains: &mut Remains) {
    for collection in collections {
        if let Err(error) = sweep(context, &collection, remains).await {
            debug!(namespace, resource = collection.plural, %error, "not emptied");
            remains.failures.push(format!("{}: {error}", collection.plural));
        }
    }
}

/// Deletes all objects of a kind and counts the remaining ones.
async fn sweep(context: &Context, collection: &Collection, remains: &mut Remains) -> Result<(), Error> {
    let path = &collection.path;
    let list = |token: &str, limit: usize| {
        let path = format!("{path}?limit={limit}&continue={}", escape(token));
        request::send::<Left>(&context.client, Method::GET, path, JSON, Vec::new())
    };
    if list("", 1).await?.items.is_empty() {
        return Ok(());
    }
    let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background" });
    let body = options.to_string().into_bytes();
    match request::send::<Value>(&context.client, Method::DELETE, path.clone(), JSON, body.clone()).await {
        // Aggregated API servers may not support deleting collections.
        Err(error) if error.code() == 405 => {
            for item in list("", PAGE).await?.items {
                let path = format!("{path}/{}", escape(&item.metadata.name));
                let deleted = request::send::<Value>(&context.client, Method::DELETE, path, JSON, body.clone()).await;
                deleted
                    .map(drop)
                    .or_else(|error| if error.code() == 404 { Ok(()) } else { Err(error) })?;
            }
        }
        outcome => drop(outcome?),
    }
    let mut token = String::new();
    loop {
        let left = list(&token, PAGE).await?;
        if !left.items.is_empty() {
            // Upstream writes `pods.` for resources of the core group.
            let spelled = format!("{}.{}", collection.plural, collection.group);
            *remains.objects.entry(spelled).or_default() += left.items.len();
        }
        for finalizer in left.items.into_iter().flat_map(|item| item.metadata.finalizers) {
            *remains.finalizers.entry(finalizer).or_default() += 1;
        }
        token = left.metadata.token;
        if token.is_empty() {
            return Ok(());
        }
    }
}

/// Writes the conditions if they have changed.
async fn report(context: &Context, namespace: &Namespace, remains: &Remains) {
    let old = namespace
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let conditions = namespaces::conditions(&old, remains, (context.clock)());
    if conditions == old || remains.is_empty() {
        return;
    }
    let body = json!({ "status": { "conditions": conditions } });
    let target = target(NAMESPACES, namespace);
    if let Err(error) = request::patch(&context.client, &target, Some("status"), PatchKind::Merge, &body).await {
        debug!(namespace = target.name, %error, "conditions not written");
    }
}

async fn finalize(context: &Context, namespace: &Namespace, name: &str) -> Result<(), Error> {
    // Read again: the conditions may just have been written.
    let mut current: Value = request::get(&context.client, &NAMESPACES, "", name).await?;
    let same = current.pointer("/metadata/uid").and_then(Value::as_str) == namespace.metadata.uid.as_deref();
    if !same {
        return Ok(());
    }
    if let Some(Value::Array(finalizers)) = current.pointer_mut("/spec/finalizers") {
        finalizers.retain(|finalizer| finalizer != "kubernetes");
    }
    let path = request::path(&NAMESPACES, "", name, "finalize");
    request::send::<Value>(
        &context.client,
        Method::PUT,
        path,
        JSON,
        current.to_string().into_bytes(),
    )
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests;
