//! The best volume for a claim: the smallest that is large enough, as upstream chooses.

use api::pod::affinity::selects;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};

use super::{
    affinity, allows, attributes_agree, capacity, claim_class, is_for, modes_agree, phase, requested, volume_class,
};
use crate::objects::{matches, name};

/// Requirements for a volume.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Node from which the volume must be accessible.
    pub node: Option<&'a Node>,
    /// Consider only volumes that refer to the claim: for others the claim waits for a node.
    pub named_only: bool,
    /// Names of volumes already chosen for other claims of the same pod.
    pub taken: &'a [&'a str],
}

/// Returns the best matching volume. Without a node, those with the fewest access modes go first, and a
/// volume that refers to the claim needs those of the claim, too (`findByClaim`,
/// `pkg/controller/volume/persistentvolume/index.go`).
pub fn best<'a>(
    wanted: &Wanted<'_>,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
) -> Option<&'a PersistentVolume> {
    let size = requested(wanted.claim);
    let mut best: Option<&PersistentVolume> = None;
    for volume in volumes {
        let reached = wanted
            .node
            .is_none_or(|node| affinity(volume).is_none_or(|wanted| selects(wanted, node)));
        let fits = modes_agree(volume, wanted.claim)
            && attributes_agree(volume, wanted.claim)
            && (wanted.node.is_some() || allows(volume, wanted.claim))
            && volume.metadata.deletion_timestamp.is_none()
            && !wanted.taken.contains(&name(volume))
            && capacity(volume) >= size;
        if !fits {
            continue;
        }
        if is_for(volume, wanted.claim) {
            // The volume is reserved for this claim. If it is not accessible, no other one fits.
            return reached.then_some(volume);
        }
        if wanted.named_only || !reached || !is_free(volume, wanted.claim) {
            continue;
        }
        let order = |volume: &PersistentVolume| {
            let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
            let modes = modes.filter(|_| wanted.node.is_none()).map_or(0, Vec::len);
            (modes, capacity(volume), name(volume).to_owned())
        };
        if best.is_none_or(|best| order(volume) < order(best)) {
            best = Some(volume);
        }
    }
    best
}

/// True if the volume is unclaimed and meets the claim's requirements.
fn is_free(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    let own = volume.spec.as_ref();
    own.is_some_and(|own| own.claim_ref.is_none())
        && phase(volume) == "Available"
        && selector.is_none_or(|selector| matches(selector, volume.metadata.labels.as_ref()))
        && volume_class(volume) == claim_class(claim)
        && allows(volume, claim)
}
