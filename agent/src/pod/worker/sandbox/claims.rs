//! Reads the volumes of a pod's claims, and has drivers mount theirs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use agent_plan::volume::claims::{Backing, ClaimError, ClaimVolume, Place, backing, claim_volumes, is_on, volume_of};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use volume::Turns;

use crate::client::events;
use crate::context::Context;
use crate::drivers::expand::expand;
use crate::drivers::spec::Spec;
use crate::drivers::{files, mount};
use crate::pod::pending::read_node;

/// Number of reads of an unbound claim, and the time between.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the volumes of claims that are not mounted yet, and those that the pod itself wants of
/// drivers; the error is the message of the pod's event.
pub(in crate::pod::worker) async fn fetch(
    context: &Context,
    pod: &Pod,
    turns: &Arc<Turns>,
) -> Result<BTreeMap<String, Backing>, String> {
    let mut found = BTreeMap::new();
    let mut problems: Vec<String> = Vec::new();
    let mut failed: Vec<String> = Vec::new();
    let driven = has_mounted(context, pods::uid(pod));
    for claimed in claim_volumes(pod) {
        let mounted = context.volumes.is_mounted(pods::uid(pod), &claimed.volume);
        let mounted = mounted.map_err(|error| image::chain(&error))?;
        if mounted && !driven {
            continue;
        }
        match look(context, pod, &claimed).await {
            Ok((claim, volume, _)) if mounted => {
                if let Some(spec) = spec_of(pod, &claimed, &volume) {
                    keep(context, turns, pod, &spec, Some((&claim, &volume))).await;
                }
            }
            Err(_) if mounted => {}
            Ok((claim, volume, mut backing)) => {
                let is_here = || context.node().is_none_or(|node| is_on(&volume, &node));
                if !is_here() {
                    // A driver or an administrator may have labelled it meanwhile.
                    read_node(context).await;
                }
                if !is_here() {
                    let name = &backing.volume;
                    return Err(format!(
                        "MountVolume.NodeAffinity check failed for volume {name:?} : no matching NodeSelectorTerms"
                    ));
                }
                if let Some(spec) = spec_of(pod, &claimed, &volume) {
                    let place = mount::set_up(context, turns, pod, &spec, false).await?;
                    backing.place = place.unwrap_or(backing.place);
                    expand(context, pod, &spec, &claim, &volume).await?;
                }
                found.insert(claimed.volume, backing);
            }
            Err(problem) => {
                let claim = format!("{}/{}", pods::namespace(pod), claimed.claim);
                problems.push(format!("error processing PVC {claim}: {problem}"));
                failed.push(claimed.volume);
            }
        }
    }
    found.append(&mut inline(context, pod, turns).await?);
    if problems.is_empty() {
        return Ok(found);
    }
    let failed = failed.join(" ");
    let problems = problems.join(", ");
    Err(format!(
        "Unable to attach or mount volumes: unmounted volumes=[{failed}], unattached volumes=[], failed to process \
         volumes=[{failed}]: {problems}"
    ))
}

/// Returns the volumes that the pod itself wants of drivers and NFS servers and that are not mounted
/// yet.
async fn inline(context: &Context, pod: &Pod, turns: &Arc<Turns>) -> Result<BTreeMap<String, Backing>, String> {
    let mut found = BTreeMap::new();
    let volumes = pods::volumes(pod).iter();
    for volume in volumes.filter(|volume| volume.csi.is_some() || volume.nfs.is_some()) {
        let mounted = context.volumes.is_mounted(pods::uid(pod), &volume.name);
        let mounted = mounted.map_err(|error| image::chain(&error))?;
        let place = match (Spec::inline(pod, volume), &volume.nfs) {
            (Some(spec), _) if mounted => {
                keep(context, turns, pod, &spec, None).await;
                None
            }
            (Some(spec), _) => mount::set_up(context, turns, pod, &spec, false).await?,
            (None, Some(source)) if !mounted => Some(Place::Nfs(source.clone())),
            (None, _) => None,
        };
        let backing = place.map(|place| Backing::inline(&volume.name, place));
        found.extend(backing.map(|backing| (volume.name.clone(), backing)));
    }
    Ok(found)
}

/// True if drivers have mounted volumes for the pod.
pub(super) fn has_mounted(context: &Context, uid: &str) -> bool {
    !files::of_pod(&context.config.kubelet_directory, uid).is_empty()
}

/// What a driver is asked for; `None` if the volume is not a driver's.
fn spec_of(pod: &Pod, claimed: &ClaimVolume, volume: &PersistentVolume) -> Option<Spec> {
    let read_only = pods::volumes(pod).iter().any(|volume| {
        let claim = volume.persistent_volume_claim.as_ref();
        volume.name == claimed.volume && claim.is_some_and(|claim| claim.read_only == Some(true))
    });
    Spec::persistent(volume, read_only)
}

/// Keeps a mounted volume up to date: it is mounted again for a driver that wants that, and expanded.
async fn keep(
    context: &Context,
    turns: &Arc<Turns>,
    pod: &Pod,
    spec: &Spec,
    claim: Option<(&PersistentVolumeClaim, &PersistentVolume)>,
) {
    // The pod goes on with the volume as it is.
    let fail = |reason, why| context.recorder.pod(pod, None, events::Kind::Warning, reason, why);
    if let Err(why) = mount::set_up(context, turns, pod, spec, true).await {
        fail("FailedMount", why);
    }
    let Some((claim, volume)) = claim else { return };
    if let Err(why) = expand(context, pod, spec, claim, volume).await {
        fail("VolumeResizeFailed", why);
    }
}

type Found = (PersistentVolumeClaim, PersistentVolume, Backing);

async fn look(context: &Context, pod: &Pod, claimed: &ClaimVolume) -> Result<Found, String> {
    let client = &context.parts.client;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), pods::namespace(pod));
    let mut looks = 0;
    let (claim, name) = loop {
        let claim = claims
            .get_opt(&claimed.claim)
            .await
            .map_err(|error| image::chain(&error))?;
        match volume_of(pod, claimed, claim.as_ref()) {
            Ok(name) => break (claim, name),
            // Pods are scheduled when their claims have volumes; the claim's phase is updated
            // shortly after.
            Err(ClaimError::NotBound) if looks < LOOKS => looks += 1,
            Err(error) => return Err(error.to_string()),
        }
        tokio::time::sleep(PAUSE).await;
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(&name).await.map_err(|error| image::chain(&error))?;
    let claim = claim.unwrap_or_default();
    let backing = backing(pod, claimed, &claim, &name, volume.as_ref()).map_err(|error| error.to_string())?;
    Ok((claim, volume.unwrap_or_default(), backing))
}
