//! Protection controllers: remove the finalizers of claims that no pod uses, of volumes that no claim
//! is bound to, and of classes of attributes that neither has, when they are deleted. Before that, they
//! put back finalizers that somebody removed.

use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, Object};
use controlplane_plan::placement;
use controlplane_plan::pod::{Pod, node_of};
use controlplane_plan::step::{CLAIMS, PODS, Resource, VOLUME_ATTRIBUTES_CLASSES, VOLUMES};
use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as Whole};
use serde::Deserialize;
use serde_json::Value;
use tracing::debug;

use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON};

/// Delay before another look at an object that is in use or could not be read. Events that free it
/// wake it earlier.
const AGAIN: Duration = Duration::from_secs(10);

/// Objects that a controller protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Claims in use by pods.
    Claims,
    /// Volumes bound to claims.
    Volumes,
    /// Classes of attributes that claims or volumes have.
    AttributesClasses,
}

impl Guard {
    const fn resource(self) -> Resource {
        match self {
            Self::Claims => CLAIMS,
            Self::Volumes => VOLUMES,
            Self::AttributesClasses => VOLUME_ATTRIBUTES_CLASSES,
        }
    }

    /// Name of the queue in upstream's metrics.
    const fn measured(self) -> &'static str {
        match self {
            Self::Claims => "pvcprotection",
            Self::Volumes => "pvprotection",
            Self::AttributesClasses => "vacprotection",
        }
    }

    const fn finalizer(self) -> &'static str {
        match self {
            Self::Claims => "kubernetes.io/pvc-protection",
            Self::Volumes => "kubernetes.io/pv-protection",
            Self::AttributesClasses => "kubernetes.io/vac-protection",
        }
    }
}

/// Wakes objects that are being deleted or lack the finalizer, and the claims of a namespace in which a
/// pod is deleted.
pub(crate) fn listen(caches: &Arc<Caches>, guard: Guard) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new(guard.measured());
    match guard {
        Guard::Claims => caches.claims.wake_if(&queue, move |claim| is_due(claim, guard)),
        Guard::Volumes => caches.volumes.wake_if(&queue, move |volume| is_due(volume, guard)),
        Guard::AttributesClasses => caches
            .attributes_classes
            .wake_if(&queue, move |class| is_due(class, guard)),
    }
    if guard == Guard::Claims {
        let (wake, claims) = (queue.clone(), caches.claims.clone());
        caches.pods.listen(move |change| {
            let Some(old) = change
                .old
                .filter(|_| change.new.is_none_or(|new| new.metadata.is_deleting()))
            else {
                return;
            };
            for claim in claims.in_namespace(old.metadata.namespace()) {
                let metadata = claim.meta();
                if metadata.is_deleting() {
                    wake.push(Key::of(metadata));
                }
            }
        });
    }
    queue
}

fn is_due<K: Object>(object: &K, guard: Guard) -> bool {
    let metadata = object.meta();
    metadata.is_deleting() || !metadata.finalizers().iter().any(|own| own == guard.finalizer())
}

/// Runs the controller forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>, guard: Guard) {
    context.caches.synced().await;
    loop {
        let key = queue.next().await;
        let released = release(&context, guard, &key).await;
        queue.done(&key);
        match released {
            Ok(true) => {}
            Ok(false) => queue.push_after(key, AGAIN),
            Err(error) => {
                debug!(object = %key, %error, "not let go");
                queue.push_after(key, AGAIN);
            }
        }
    }
}

/// Removes the finalizer of a deleted object that is not in use, or puts it back; returns true if there is
/// nothing left to do.
async fn release(context: &Context, guard: Guard, key: &Key) -> Result<bool, Error> {
    let resource = guard.resource();
    let mut object: Value = match request::get(&context.client, &resource, &key.namespace, &key.name).await {
        Err(error) if error.code() == 404 => return Ok(true),
        object => object?,
    };
    let Some(is_deleting) = amend(&mut object, guard.finalizer()) else {
        return Ok(true);
    };
    let used = is_deleting
        && match guard {
            Guard::Claims => is_mounted(context, key).await?,
            Guard::Volumes => object.pointer("/status/phase").and_then(Value::as_str) == Some("Bound"),
            Guard::AttributesClasses => is_chosen(context, &key.name),
        };
    if used {
        return Ok(false);
    }
    let path = request::path(&resource, &key.namespace, &key.name, "");
    request::send::<Value>(
        &context.client,
        Method::PUT,
        path,
        JSON,
        object.to_string().into_bytes(),
    )
    .await?;
    Ok(true)
}

/// Takes the finalizer off an object that is being deleted (`true`), or gives it to one that is not and
/// lacks it (`NeedToAddFinalizer`, `pkg/controller/util/protectionutil/utils.go`).
fn amend(object: &mut Value, finalizer: &str) -> Option<bool> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let is_deleting = metadata.get("deletionTimestamp").is_some_and(Value::is_string);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    let finalizers = finalizers.as_array_mut()?;
    match finalizers.iter().position(|own| own == finalizer) {
        Some(index) if is_deleting => drop(finalizers.remove(index)),
        None if !is_deleting => finalizers.push(finalizer.into()),
        Some(_) | None => return None,
    }
    Some(is_deleting)
}

#[derive(Deserialize)]
struct Pods {
    items: Vec<Whole>,
}

/// True if a pod that is bound to a node uses a claim. Where the cache knows of none the server is
/// asked, since the cache may lag.
async fn is_mounted(context: &Context, claim: &Key) -> Result<bool, Error> {
    let known = context.caches.pods.in_namespace(&claim.namespace);
    if known
        .iter()
        .any(|pod| keeps(pod, &claim.name, pod.metadata.is_deleting()))
    {
        return Ok(true);
    }
    let path = request::path(&PODS, &claim.namespace, "", "");
    let pods: Pods = request::send(&context.client, Method::GET, path, JSON, Vec::new()).await?;
    Ok(pods.items.into_iter().any(|pod| uses(pod, &claim.name)))
}

/// True if a pod keeps a claim: one that has finished does, too. An ephemeral claim is kept until
/// the node is done with the pod, which may itself wait for the claim
/// (`podUsesPVCForDeletion`, `pkg/controller/volume/pvcprotection/pvc_protection_controller.go`).
fn uses(pod: Whole, claim: &str) -> bool {
    let metadata = &pod.metadata;
    let is_shut_down = metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds == Some(0);
    keeps(&Pod::from(pod), claim, is_shut_down)
}

fn keeps(pod: &Pod, claim: &str, is_shut_down: bool) -> bool {
    let mut claims = placement::claims::names(pod).into_iter();
    node_of(pod).is_some() && claims.any(|(own, is_ephemeral)| own == claim && !(is_ephemeral && is_shut_down))
}

/// True if a claim or a volume has a class of attributes (`isBeingUsed` of
/// `pkg/controller/volume/vacprotection/vac_protection_controller.go`, which asks caches alone, too).
fn is_chosen(context: &Context, class: &str) -> bool {
    let volumes = context.caches.volumes.all();
    let mut specs = volumes.iter().filter_map(|volume| volume.spec.as_ref());
    specs.any(|spec| spec.volume_attributes_class_name.as_deref() == Some(class))
        || context.caches.claims.all().iter().any(|claim| has(claim, class))
}

/// True if a claim asks for a class of attributes, has it, or is being moved to it.
fn has(claim: &PersistentVolumeClaim, class: &str) -> bool {
    let status = claim.status.as_ref();
    let asked = claim.spec.as_ref().map(|spec| &spec.volume_attributes_class_name);
    let current = status.map(|status| &status.current_volume_attributes_class_name);
    let coming = status.and_then(|status| status.modify_volume_status.as_ref());
    let coming = coming.map(|coming| &coming.target_volume_attributes_class_name);
    let mut names = [asked, current, coming].into_iter().flatten().flatten();
    names.any(|name| name == class)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn who_lost_the_finalizer_gets_it_back_until_it_is_deleted() {
        let own = Guard::Claims.finalizer();
        for (deleted, before, after) in [
            (None, json!({}), Some((false, json!([own])))),
            (None, json!({"finalizers": ["x"]}), Some((false, json!(["x", own])))),
            (None, json!({"finalizers": [own]}), None),
            (
                Some("2026-01-01T00:00:00Z"),
                json!({"finalizers": [own, "x"]}),
                Some((true, json!(["x"]))),
            ),
            (Some("2026-01-01T00:00:00Z"), json!({"finalizers": ["x"]}), None),
        ] {
            let mut object = json!({ "metadata": before });
            object["metadata"]["deletionTimestamp"] = json!(deleted);
            let amended = amend(&mut object, own);
            let shown = amended.map(|is_deleting| (is_deleting, object["metadata"]["finalizers"].clone()));
            assert_eq!(shown, after, "{object}");
        }
    }

    #[test]
    fn a_finished_pod_keeps_its_claims() {
        for (grace, node, named, ephemeral) in [
            (None, "n1", true, true),
            (Some(30), "n1", true, true),
            (Some(0), "n1", true, false),
            (None, "", false, false),
        ] {
            let pod = json!({
                "metadata": {
                    "name": "a", "deletionGracePeriodSeconds": grace,
                    "deletionTimestamp": grace.map(|_| "2026-01-01T00:00:00Z"),
                },
                "spec": { "nodeName": node, "containers": [], "volumes": [
                    { "name": "v", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "own", "ephemeral": {} },
                ] },
                "status": { "phase": "Succeeded" },
            });
            let pod: Whole = from_value(pod).unwrap();
            let found = ["data", "a-own", "other"].map(|claim| uses(pod.clone(), claim));
            assert_eq!(found, [named, ephemeral, false], "{grace:?} {node:?}");
        }
    }

    #[test]
    fn a_claim_keeps_the_classes_that_it_asks_for_has_and_gets() {
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": { "volumeAttributesClassName": "asked" },
            "status": {
                "currentVolumeAttributesClassName": "current",
                "modifyVolumeStatus": { "status": "InProgress", "targetVolumeAttributesClassName": "coming" },
            },
        });
        let claim: PersistentVolumeClaim = from_value(claim).unwrap();
        let found = ["asked", "current", "coming", "other"].map(|class| has(&claim, class));
        assert_eq!(found, [true, true, true, false]);
    }
}
