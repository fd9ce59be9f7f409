//! Binding of a pod: first of its claims, then of the pod. Binding to the same node again is
//! harmless, so an unanswered request is simply repeated.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, annotation, name, target, uid};
use controlplane_plan::placement::Bond;
use controlplane_plan::pod::{Pod, node_of};
use controlplane_plan::step::{CLAIMS, PODS, PatchKind, Target, VOLUMES};
use controlplane_plan::storage::claims::claim_reference;
use controlplane_plan::storage::{SELECTED_NODE, is_bound};
use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::queue::Attempts;
use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::request::{self, Error};

const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);
/// Timeout of binding a pod's claims, as in upstream's scheduler.
const TIMEOUT: Duration = Duration::from_mins(10);

/// A pod and the result of its binding.
pub(super) struct Bound {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    pub(super) result: Result<(), NotBound>,
    /// Attempts so far, if they are known.
    pub(super) attempts: Option<Attempts>,
}

/// Reason why a pod was not bound to the node.
pub(super) enum NotBound {
    /// Its claims were not bound.
    Claims(String),
    /// It was preempted while it waited for them.
    Preempted,
    /// The server refused the binding.
    Pod(String),
}

impl fmt::Display for NotBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claims(reason) | Self::Pod(reason) => f.write_str(reason),
            Self::Preempted => f.write_str("preempted by DefaultPreemption"),
        }
    }
}

/// Binds a pod to a node. `changed` signals changes of claims; `preempted` is kept while the pod
/// waits for its claims, and can end that wait.
pub(super) async fn bind(
    context: Context,
    pod: Arc<Pod>,
    node: String,
    bonds: Vec<Bond>,
    changed: watch::Receiver<u64>,
    preempted: Arc<CancellationToken>,
) -> Option<Bound> {
    let claims = tokio::select! {
        biased;
        () = preempted.cancelled() => Err(NotBound::Preempted),
        result = bind_claims(&context, &pod, &node, &bonds, changed) => result.map_err(NotBound::Claims),
    };
    drop(preempted);
    let result = match claims {
        Ok(()) => settle(&context, &Key::of(&pod.metadata), &pod, &node)
            .await
            .map_err(NotBound::Pod),
        Err(reason) => Err(reason),
    };
    Some(Bound {
        pod,
        node,
        result,
        attempts: None,
    })
}

/// Assigns volumes or a node for provisioning to the claims, and waits until they are bound.
async fn bind_claims(
    context: &Context,
    pod: &Pod,
    node: &str,
    bonds: &[Bond],
    mut changed: watch::Receiver<u64>,
) -> Result<(), String> {
    for bond in bonds {
        match bond {
            Bond::Take(claim, volume) => {
                if assigned(volume) != Some(uid(&**claim)) {
                    change(context, &target(VOLUMES, &**volume), &claim_reference(volume, claim)).await?;
                }
            }
            Bond::Make(claim) => {
                if annotation(&claim.metadata, SELECTED_NODE) != Some(node) {
                    change(context, &target(CLAIMS, &**claim), &selection(claim, node)).await?;
                }
            }
        }
    }
    if bonds.is_empty() {
        return Ok(());
    }
    let waiting = async {
        loop {
            changed.mark_unchanged();
            if are_bound(context, pod, node, bonds)? {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                return Err("the scheduler ends".to_owned());
            }
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, waiting).await;
    waited.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()))
}

fn selection(claim: &PersistentVolumeClaim, node: &str) -> Value {
    json!({ "metadata": {
        "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
        "annotations": { SELECTED_NODE: node },
    }})
}

async fn change(context: &Context, target: &Target, body: &Value) -> Result<(), String> {
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        match request::patch(&context.client, target, None, PatchKind::Merge, body).await {
            Ok(_) => return Ok(()),
            Err(Error::Refused(status)) => return Err(status.message),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(PAUSE.saturating_mul(1 << attempt)).await;
    }
    Err(last)
}

/// True if all claims are bound; the error says why they never will be.
fn are_bound(context: &Context, pod: &Pod, node: &str, bonds: &[Bond]) -> Result<bool, String> {
    let still = context.caches.pods.get(&Key::of(&pod.metadata));
    if still.is_none_or(|still| uid(&*still) != uid(pod) || still.metadata.is_deleting()) {
        return Err(format!("pod {:?} is gone", name(pod)));
    }
    let mut all = true;
    for bond in bonds {
        let (Bond::Take(claim, _) | Bond::Make(claim)) = bond;
        let now = context.caches.claims.get(&Key::of(&claim.metadata));
        let Some(now) = now.filter(|now| uid(&**now) == uid(&**claim)) else {
            return Err(format!("persistentvolumeclaim {:?} is gone", name(&**claim)));
        };
        if is_bound(&now) {
            continue;
        }
        all = false;
        if let Bond::Take(_, volume) = bond
            && let Some(reason) = lost(context, claim, volume)
        {
            return Err(reason);
        }
        let seen = now.metadata.resource_version != claim.metadata.resource_version;
        let selected = annotation(&now.metadata, SELECTED_NODE) == Some(node);
        if matches!(bond, Bond::Make(_)) && seen && !selected {
            return Err(format!("provisioning failed for PVC {:?}", name(&**claim)));
        }
    }
    Ok(all)
}

/// Reason why a volume that was assigned to a claim will not be bound to it.
fn lost(context: &Context, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<String> {
    let now = context.caches.volumes.get(&Key::new("", name(volume)));
    let Some(now) = now.filter(|now| uid(&**now) == uid(volume)) else {
        return Some(format!("persistentvolume {:?} is gone", name(volume)));
    };
    // The assignment may not have been seen yet.
    let is_newer = now.metadata.resource_version != volume.metadata.resource_version;
    let is_reset = is_newer && assigned(&now) != Some(uid(claim));
    is_reset.then(|| format!("ClaimRef got reset for pv {:?}", name(volume)))
}

/// Uid of the claim that a volume is assigned to.
fn assigned(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

async fn settle(context: &Context, key: &Key, pod: &Pod, node: &str) -> Result<(), String> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": name(pod), "namespace": key.namespace, "uid": uid(pod) },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let path = request::path(&PODS, &key.namespace, &key.name, "binding");
    let bytes = body.to_string().into_bytes();
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        let sent = request::send::<request::Reply>(
            &context.client,
            Method::POST,
            path.clone(),
            request::JSON,
            bytes.clone(),
        );
        match sent.await {
            Ok(_) => return Ok(()),
            // An earlier request of this scheduler may have succeeded.
            Err(Error::Refused(status)) if status.code == 409 => match read(context, key).await {
                Ok(found) if uid(&found) == uid(pod) && node_of(&found) == Some(node) => return Ok(()),
                _ => return Err(status.message),
            },
            Err(Error::Refused(status)) => return Err(status.message),
            Err(error) => {
                last = error.to_string();
                tokio::time::sleep(PAUSE.saturating_mul(1 << attempt)).await;
            }
        }
    }
    Err(last)
}

async fn read(context: &Context, key: &Key) -> Result<Pod, Error> {
    let mut last = Error::Unknown(None);
    for attempt in 0..ATTEMPTS {
        match request::get(&context.client, &PODS, &key.namespace, &key.name).await {
            Err(error) if error.code() == 0 => last = error,
            answer => return answer,
        }
        tokio::time::sleep(PAUSE.saturating_mul(1 << attempt)).await;
    }
    Err(last)
}
