//! Provisions and deletes volumes for claims of the default class: directories that the node's
//! agent keeps. The agent is reached through the API server's proxy, like logs, so only the API
//! server connects to agents.

use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::objects::{name, target, uid};
use controlplane_plan::step::{CLAIMS, NODES, Note, PatchKind, Severity, Target, VOLUMES};
use controlplane_plan::storage::provision::{self, End, FINALIZER, News, Request};
use controlplane_plan::storage::{SELECTED_NODE, claim_class, volume_of};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::Method;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON};

/// Source component of events.
pub(crate) const COMPONENT: &str = provision::NAME;
/// Source component of events about volumes that other drivers expand.
pub(crate) const EXPANDER: &str = "volume_expand";
/// Number of volumes that are provisioned or deleted at once.
const TOGETHER: usize = 16;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));

/// Work for the provisioner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Provision a volume for a claim.
    Make(Key),
    /// Expand the volume of a claim.
    Grow(Key),
    /// Tell a claim that another driver expands its volume, if it waits for that.
    Tell(Key),
    /// Delete a volume.
    Remove(Key),
}

/// Result of a piece of work.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Retry with backoff.
    Again,
    /// The same, but there may be a directory without a volume.
    AgainAfter(Directory),
}

/// A directory on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Directory {
    node: String,
    volume: String,
}

/// Number of attempts so far.
#[derive(Debug, Default)]
struct Attempts {
    number: u32,
    left: Option<Directory>,
}

/// Wakes claims that need a volume, and volumes to delete.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Work>> {
    let queue = Queue::new("local_path_provisioner");
    let (wake, classes, volumes) = (queue.clone(), caches.storage_classes.clone(), caches.volumes.clone());
    caches.claims.listen(move |change| {
        if let Some(claim) = change.new {
            let volume = volume_of(claim).and_then(|name| volumes.get(&Key::new("", name)));
            if volume.is_some_and(|volume| provision::growth(claim, &volume).is_some()) {
                wake.push(Work::Grow(Key::of(&claim.metadata)));
            }
            if provision::is_enlarged(claim, change.old) {
                wake.push(Work::Tell(Key::of(&claim.metadata)));
            }
            let class = classes.get(&Key::new("", claim_class(claim)));
            if provision::request(claim, class.as_deref()) != Request::Nothing {
                wake.push(Work::Make(Key::of(&claim.metadata)));
            }
        }
    });
    let wake = queue.clone();
    caches.volumes.listen(move |change| {
        if let Some(volume) = change.new.filter(|volume| provision::end(volume) != End::None) {
            wake.push(Work::Remove(Key::of(&volume.metadata)));
        }
    });
    queue
}

/// Runs the provisioner forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Work>>) {
    context.caches.synced().await;
    let mut under_way = FuturesUnordered::new();
    let mut attempts: std::collections::BTreeMap<Work, Attempts> = std::collections::BTreeMap::new();
    loop {
        tokio::select! {
            biased;
            Some((work, outcome)) = under_way.next(), if !under_way.is_empty() => {
                queue.done(&work);
                let left = match outcome {
                    Outcome::Done => {
                        attempts.remove(&work);
                        continue;
                    }
                    Outcome::Again => None,
                    Outcome::AgainAfter(left) => Some(left),
                };
                let tried = attempts.entry(work.clone()).or_default();
                tried.number = tried.number.saturating_add(1);
                tried.left = left;
                let delay = BACKOFF.0.saturating_mul(1 << tried.number.min(9)).min(BACKOFF.1);
                queue.push_after(work, delay);
            }
            work = queue.next(), if under_way.len() < TOGETHER => {
                let first = !attempts.contains_key(&work);
                let left = attempts.get(&work).and_then(|tried| tried.left.clone());
                let context = context.clone();
                under_way.push(async move {
                    let outcome = match &work {
                        Work::Make(key) => Box::pin(make(&context, key, first, left)).await,
                        Work::Grow(key) => finished(Box::pin(grow(&context, key)).await),
                        Work::Tell(key) => {
                            context.recorder.note(EXPANDER, awaited(&context.caches, key));
                            Outcome::Done
                        }
                        Work::Remove(key) => Box::pin(remove(&context, key, first)).await,
                    };
                    (work, outcome)
                });
            }
        }
    }
}

fn tell(context: &Context, note: Note) {
    context.recorder.note(COMPONENT, Some(note));
}

/// Provisions a claim's volume. The claim is read from the server, since the cache may not show yet
/// that it has one. `left` is the directory that an earlier attempt may have left.
async fn make(context: &Context, key: &Key, first: bool, left: Option<Directory>) -> Outcome {
    let read = request::get::<PersistentVolumeClaim>(&context.client, &CLAIMS, &key.namespace, &key.name);
    let claim = match read.await {
        Ok(claim) => claim,
        Err(error) if error.code() == 404 => return clear_away(context, left).await,
        Err(_) => return again(left),
    };
    let class = context.caches.storage_classes.get(&Key::new("", claim_class(&claim)));
    let fail = |why: &str| tell(context, provision::note(&claim, News::Failed(why)));
    let node = match provision::request(&claim, class.as_deref()) {
        Request::Nothing => return clear_away(context, left).await,
        Request::Unsupported(why) => {
            fail(why);
            return clear_away(context, left).await;
        }
        Request::Directory(node) => node,
    };
    let wanted = Directory {
        node: node.to_owned(),
        volume: provision::volume_name(&claim),
    };
    if left.as_ref().is_some_and(|left| *left != wanted) {
        // Its node may be away for long, which must not delay the other one.
        let place = left.clone();
        if clear_away(context, left).await != Outcome::Done {
            warn!(claim = %key, ?place, "the directory of no volume may stay behind");
        }
    }
    if first {
        tell(context, provision::note(&claim, News::Begun));
    }
    let node = context.caches.nodes.get(&Key::new("", node));
    let (Some(class), Some(node)) = (class, node) else {
        fail("the selected node does not exist");
        return unselect(context, &claim).await;
    };
    match directory_and_volume(context, &claim, &class, &node).await {
        Ok(volume) => {
            info!(claim = %key, volume, node = name(&*node), "volume made");
            tell(context, provision::note(&claim, News::Made(&volume)));
            Outcome::Done
        }
        Err(error) => {
            warn!(claim = %key, %error, "no volume made");
            if first || error.code() != 0 {
                fail(&error.to_string());
            }
            Outcome::AgainAfter(wanted)
        }
    }
}

/// Path of a directory that an agent created.
#[derive(Deserialize)]
struct Made {
    path: String,
}

fn again(left: Option<Directory>) -> Outcome {
    left.map_or(Outcome::Again, Outcome::AgainAfter)
}

/// Deletes the directory that an attempt left, unless a volume refers to it after all: then that
/// volume's state decides.
async fn clear_away(context: &Context, left: Option<Directory>) -> Outcome {
    let Some(left) = left else { return Outcome::Done };
    match request::get::<Value>(&context.client, &VOLUMES, "", &left.volume).await {
        Ok(_) => return Outcome::Done,
        Err(error) if error.code() == 404 => {}
        Err(_) => return Outcome::AgainAfter(left),
    }
    match delete_directory(context, &left.node, &left.volume).await {
        Ok(()) => {
            info!(volume = left.volume, node = left.node, "directory of no volume removed");
            Outcome::Done
        }
        Err(error) => {
            warn!(volume = left.volume, node = left.node, %error, "a directory of no volume was not removed");
            Outcome::AgainAfter(left)
        }
    }
}

/// Deletes a directory from its node. If the node is gone, so is the directory.
async fn delete_directory(context: &Context, node: &str, volume: &str) -> Result<(), Error> {
    if context.caches.nodes.get(&Key::new("", node)).is_none() {
        return Ok(());
    }
    let path = directory(node, volume);
    match request::send::<Value>(&context.client, Method::DELETE, path, JSON, Vec::new()).await {
        Err(error) if error.code() != 404 => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn directory(node: &str, volume: &str) -> String {
    format!("{}/local-path/{volume}", request::path(&NODES, "", node, "proxy"))
}

async fn directory_and_volume(
    context: &Context,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
) -> Result<String, Error> {
    let volume = provision::volume_name(claim);
    let path = directory(name(node), &volume);
    let made: Made = request::send(&context.client, Method::PUT, path, JSON, Vec::new()).await?;
    let body = provision::volume(claim, class, node, &made.path);
    match request::create(&context.client, &VOLUMES, "", &body).await {
        Ok(_) => Ok(volume),
        // The answer to an earlier attempt was lost.
        Err(Error::Refused(status)) if status.reason == "AlreadyExists" => Ok(volume),
        Err(error) => Err(error),
    }
}

/// Sets the capacity that a claim requests, on the volume first.
async fn grow(context: &Context, key: &Key) -> Result<(), Error> {
    let claim: PersistentVolumeClaim = request::get(&context.client, &CLAIMS, &key.namespace, &key.name).await?;
    let name = volume_of(&claim).unwrap_or_default();
    let volume: PersistentVolume = request::get(&context.client, &VOLUMES, "", name).await?;
    let Some(size) = provision::growth(&claim, &volume) else {
        return Ok(());
    };
    let capacity = json!({ "storage": size });
    let body = json!({ "metadata": { "uid": volume.metadata.uid }, "spec": { "capacity": capacity } });
    let of = target(VOLUMES, &volume);
    request::patch(&context.client, &of, None, PatchKind::Merge, &body).await?;
    let body = json!({ "metadata": { "uid": claim.metadata.uid }, "status": { "capacity": capacity } });
    let of = target(CLAIMS, &claim);
    request::patch(&context.client, &of, Some("status"), PatchKind::Merge, &body).await?;
    info!(claim = %key, size = size.0, "volume grown");
    tell(context, provision::note(&claim, News::Grown));
    Ok(())
}

/// Event about a claim whose volume another driver is to expand.
fn awaited(caches: &Caches, key: &Key) -> Option<Note> {
    let claim = caches.claims.get(key)?;
    let volume = caches.volumes.get(&Key::new("", volume_of(&claim)?))?;
    provision::awaits_driver(&claim, &volume).then(|| provision::note(&claim, News::Awaited))
}

/// Removes the selected node, so that the scheduler chooses another one.
async fn unselect(context: &Context, claim: &PersistentVolumeClaim) -> Outcome {
    let body = json!({ "metadata": {
        "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
        "annotations": { SELECTED_NODE: null },
    }});
    let target = target(CLAIMS, claim);
    let patched = request::patch(&context.client, &target, None, PatchKind::Merge, &body).await;
    finished(patched.map(drop))
}

fn finished(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) if matches!(error.code(), 404 | 409) || error.is_recreated() => Outcome::Done,
        Err(error) => {
            debug!(%error, "tried again");
            Outcome::Again
        }
    }
}

/// Deletes a volume: its directory, the object, and the finalizer.
async fn remove(context: &Context, key: &Key, first: bool) -> Outcome {
    let volume = match request::get::<PersistentVolume>(&context.client, &VOLUMES, "", &key.name).await {
        Ok(volume) => volume,
        Err(error) if error.code() == 404 => return Outcome::Done,
        Err(_) => return Outcome::Again,
    };
    let end = provision::end(&volume);
    if end == End::None {
        return Outcome::Done;
    }
    if end == End::Remove
        && let Err(error) = remove_directory(context, &volume).await
    {
        warn!(volume = %key, %error, "a volume's directory was not removed");
        if first {
            let mut about = target(VOLUMES, &volume).reference();
            about.resource_version.clone_from(&volume.metadata.resource_version);
            tell(
                context,
                Note {
                    about,
                    severity: Severity::Warning,
                    reason: "VolumeFailedDelete",
                    message: error.to_string(),
                },
            );
        }
        return Outcome::Again;
    }
    info!(volume = %key, ?end, "volume removed");
    finished(release(context, &volume).await)
}

/// Deletes the directory of a volume.
async fn remove_directory(context: &Context, volume: &PersistentVolume) -> Result<(), Error> {
    match provision::node_of(volume) {
        Some(node) => delete_directory(context, node, name(volume)).await,
        None => Ok(()),
    }
}

async fn release(context: &Context, volume: &PersistentVolume) -> Result<(), Error> {
    let target: Target = target(VOLUMES, volume);
    if volume.metadata.deletion_timestamp.is_none() {
        request::delete(&context.client, &target, None, None, None).await?;
    }
    let current: PersistentVolume = request::get(&context.client, &VOLUMES, "", &target.name).await?;
    if uid(&current) != target.uid {
        return Ok(());
    }
    let metadata: &ObjectMeta = current.metadata();
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|own| own != FINALIZER);
    let body = json!({ "metadata": {
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
    }});
    let patched = request::patch(&context.client, &target, None, PatchKind::Merge, &body);
    patched.await.map(drop)
}

#[cfg(test)]
mod tests;
