//! Volumes behind a pod's `PersistentVolumeClaims`.

use api::pod::affinity;
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, LocalVolumeSource, NFSVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod,
};

use crate::pod::pods;

/// Annotation of a volume with a group that may use its files.
const GROUP: &str = "pv.beta.kubernetes.io/gid";
/// Annotation of a volume with mount options, from before there was a field for them.
const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// Finalizer of a claim that pods may use.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A volume of a pod that is a `PersistentVolumeClaim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The volume's name within the pod.
    pub volume: String,
    /// The claim's name.
    pub claim: String,
    /// True if the claim was made for this pod alone (an ephemeral volume).
    pub own: bool,
}

/// The claims among a pod's volumes.
pub fn claim_volumes(pod: &Pod) -> Vec<ClaimVolume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(|volume| {
        let (claim, own) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => (source.claim_name.clone(), false),
            (None, Some(_)) => (format!("{}-{}", pods::name(pod), volume.name), true),
            (None, None) => return None,
        };
        Some(ClaimVolume {
            volume: volume.name.clone(),
            claim,
            own,
        })
    });
    claims.collect()
}

/// Location of the storage.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// A `hostPath` volume.
    HostPath(HostPathVolumeSource),
    /// A `local` volume: an existing path, or the file system of a device; it belongs to the pod's `fsGroup`.
    Local(LocalVolumeSource),
    /// A path of an NFS server.
    Nfs(NFSVolumeSource),
    /// A volume of a CSI driver.
    Published {
        /// Directory at which the driver has mounted it; empty before.
        path: String,
        /// True if its files get the pod's `fsGroup`.
        grouped: bool,
    },
}

/// Volume behind a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Backing {
    /// The name of the persistent volume.
    pub volume: String,
    /// Location of the storage.
    pub place: Place,
    /// True for a block device, which is not mounted.
    pub block: bool,
    /// True if only one pod may use it (`ReadWriteOncePod`).
    pub exclusive: bool,
    /// Group that the containers of the pod get besides their own.
    pub group: Option<u32>,
    /// Options of the mount, which of paths on the node only a `local` volume may have.
    pub options: Vec<String>,
}

impl Backing {
    /// Volume that the pod itself describes.
    pub fn inline(volume: &str, place: Place) -> Self {
        Self {
            volume: volume.to_owned(),
            place,
            block: false,
            exclusive: false,
            group: None,
            options: Vec::new(),
        }
    }
}

/// A claim without a usable volume. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim does not exist.
    #[error("failed to fetch PVC from API server: persistentvolumeclaims {0:?} not found")]
    NoClaim(String),
    /// The claim is being deleted, and nothing keeps it.
    #[error("PVC is being deleted")]
    Deleted,
    /// The claim belongs to another pod.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner {
        /// Namespace of the claim and the pod.
        namespace: String,
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
    },
    /// The claim is not bound to a volume yet.
    #[error("PVC is not bound")]
    NotBound,
    /// The volume does not exist.
    #[error("failed to fetch PV {0} from API server: persistentvolumes {0:?} not found")]
    NoVolume(String),
    /// The volume is bound to no claim.
    #[error("found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim")]
    Unclaimed(String),
    /// The volume is bound to another claim.
    #[error("found PV object {volume} but its pv.Spec.ClaimRef.UID {bound} does not point to claim.UID {claim}")]
    Stolen {
        /// The volume.
        volume: String,
        /// UID of the claim that it is bound to.
        bound: String,
        /// UID of the pod's claim.
        claim: String,
    },
    /// The volume is a block device, which cannot be mounted as a file system.
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    Block(String),
    /// The volume is a file system, which is not used as a block device.
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    Filesystem(String),
    /// The node has no plugin for this kind of storage.
    #[error(
        "no volume plugin matched for persistent volume {0:?}: this node mounts only hostPath, local, NFS and CSI volumes"
    )]
    Unsupported(String),
}

/// The volume that a pod's claim names, if the pod may use it.
pub fn volume_of(
    pod: &Pod,
    claimed: &ClaimVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Result<String, ClaimError> {
    let claim = claim.ok_or_else(|| ClaimError::NoClaim(claimed.claim.clone()))?;
    let owners = claim.metadata.owner_references.iter().flatten();
    if claimed.own
        && !owners
            .map(|owner| owner.uid.as_str())
            .any(|owner| owner == pods::uid(pod))
    {
        return Err(ClaimError::NotOwner {
            namespace: pods::namespace(pod).to_owned(),
            claim: claimed.claim.clone(),
            pod: pods::name(pod).to_owned(),
        });
    }
    let mut finalizers = claim.metadata.finalizers.iter().flatten();
    // A protected claim is kept for a pod that starts again after a restart of its node (`getPVCExtractPV`,
    // `pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go`).
    if claim.metadata.deletion_timestamp.is_some() && !finalizers.any(|own| own == PROTECTION) {
        return Err(ClaimError::Deleted);
    }
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    volume
        .filter(|name| bound && !name.is_empty())
        .ok_or(ClaimError::NotBound)
}

/// Returns the volume behind the claim that this volume of a pod names.
pub fn backing(
    pod: &Pod,
    claimed: &ClaimVolume,
    claim: &PersistentVolumeClaim,
    name: &str,
    volume: Option<&PersistentVolume>,
) -> Result<Backing, ClaimError> {
    let spec = volume.and_then(|volume| volume.spec.as_ref());
    let spec = spec.ok_or_else(|| ClaimError::NoVolume(name.to_owned()))?;
    let Some(reference) = &spec.claim_ref else {
        return Err(ClaimError::Unclaimed(name.to_owned()));
    };
    let bound = reference.uid.as_deref().unwrap_or_default();
    let own = claim.metadata.uid.as_deref().unwrap_or_default();
    if bound.is_empty() || bound != own {
        return Err(ClaimError::Stolen {
            volume: name.to_owned(),
            bound: bound.to_owned(),
            claim: own.to_owned(),
        });
    }
    let block = spec.volume_mode.as_deref() == Some("Block");
    let (mounted, mapped) = uses(pod, &claimed.volume);
    if block && mounted {
        return Err(ClaimError::Block(claimed.volume.clone()));
    }
    if !block && mapped {
        return Err(ClaimError::Filesystem(claimed.volume.clone()));
    }
    let place = match (&spec.host_path, &spec.local, &spec.nfs) {
        (Some(source), _, _) if !block => Place::HostPath(source.clone()),
        (None, Some(source), _) => Place::Local(source.clone()),
        (None, None, Some(source)) if !block => Place::Nfs(source.clone()),
        (None, None, None) if spec.csi.is_some() => Place::Published {
            path: String::new(),
            grouped: false,
        },
        (_, _, _) => return Err(ClaimError::Unsupported(name.to_owned())),
    };
    // A driver mounts with the options itself.
    let options = volume.filter(|_| spec.csi.is_none()).map(options);
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    Ok(Backing {
        volume: name.to_owned(),
        place,
        block,
        exclusive: modes.unwrap_or_default().iter().any(|mode| mode == "ReadWriteOncePod"),
        group: volume.and_then(group),
        options: options.unwrap_or_default(),
    })
}

/// Returns whether containers of the pod mount a volume, and whether they use it as a block device.
fn uses(pod: &Pod, volume: &str) -> (bool, bool) {
    let mut uses = (false, false);
    for container in pods::all_containers(pod) {
        let (mounts, devices) = (&container.volume_mounts, &container.volume_devices);
        uses.0 |= mounts.iter().flatten().any(|mount| mount.name == volume);
        uses.1 |= devices.iter().flatten().any(|device| device.name == volume);
    }
    uses
}

/// True if a volume can be used on a node: pods that name their node were not scheduled
/// (`CheckNodeAffinity`, `pkg/volume/util/util.go`).
pub fn is_on(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| affinity::selects(required, node))
}

/// Group in a volume's annotation; one that is no number is ignored
/// (`getExtraSupplementalGid`, `pkg/kubelet/volumemanager/volume_manager.go`).
fn group(volume: &PersistentVolume) -> Option<u32> {
    let group = volume.metadata.annotations.as_ref()?.get(GROUP)?.parse::<i32>();
    u32::try_from(group.ok()?).ok()
}

/// Mount options of a volume (`MountOptionFromSpec`, `pkg/volume/util/util.go`).
fn options(volume: &PersistentVolume) -> Vec<String> {
    let old = volume.metadata.annotations.as_ref().and_then(|all| all.get(OPTIONS));
    let mut options = match old {
        Some(old) => old.split(',').map(str::to_owned).collect(),
        None => volume
            .spec
            .as_ref()
            .and_then(|spec| spec.mount_options.clone())
            .unwrap_or_default(),
    };
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    #[test]
    fn a_volume_of_another_node_is_not_on_this_one() {
        let node: Node = from_value(serde_json::json!({"metadata": {"name": "n", "labels": {"zone": "z"}}})).unwrap();
        let at = |term: serde_json::Value| {
            let affinity = serde_json::json!({"required": {"nodeSelectorTerms": [term]}});
            let volume: PersistentVolume = from_value(serde_json::json!({"spec": {"nodeAffinity": affinity}})).unwrap();
            is_on(&volume, &node)
        };
        let values = |key: &str, value: &str| serde_json::json!([{"key": key, "operator": "In", "values": [value]}]);
        assert!(at(serde_json::json!({"matchExpressions": values("zone", "z")})));
        assert!(!at(serde_json::json!({"matchExpressions": values("zone", "y")})));
        assert!(at(serde_json::json!({"matchFields": values("metadata.name", "n")})));
        assert!(!at(serde_json::json!({"matchFields": values("metadata.name", "m")})));
        assert!(is_on(&PersistentVolume::default(), &node));
    }

    #[test]
    fn only_a_bound_claim_of_the_pod_leads_to_a_volume() {
        let pod: Pod = from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "ephemeral": {}},
                {"name": "e", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        let claim_volumes = claim_volumes(&pod);
        let names: Vec<_> = claim_volumes.iter().map(|claimed| claimed.claim.as_str()).collect();
        assert_eq!(names, ["c", "p-b"]);
        let claim = |status: &str, more: serde_json::Value| -> PersistentVolumeClaim {
            let mut claim = serde_json::json!({
                "metadata": {"name": "c", "uid": "claim"}, "spec": {"volumeName": "v"}, "status": {"phase": status},
            });
            if let Some(metadata) = claim["metadata"].as_object_mut() {
                metadata.extend(more.as_object().cloned().unwrap_or_default());
            }
            from_value(claim).unwrap()
        };
        let volume = |index: usize, claim: Option<&PersistentVolumeClaim>| {
            volume_of(&pod, &claim_volumes[index], claim).map_err(|error| error.to_string())
        };
        let bound = claim("Bound", serde_json::json!({}));
        let deleted = claim(
            "Bound",
            serde_json::json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        );
        assert_eq!(volume(0, Some(&bound)), Ok("v".to_owned()));
        assert_eq!(
            volume(0, Some(&claim("Pending", serde_json::json!({})))),
            Err("PVC is not bound".to_owned())
        );
        assert_eq!(volume(0, Some(&deleted)), Err("PVC is being deleted".to_owned()));
        let mut kept = deleted;
        kept.metadata.finalizers = Some(vec![PROTECTION.to_owned()]);
        assert_eq!(volume(0, Some(&kept)), Ok("v".to_owned()), "it is kept for its pods");
        assert!(
            volume(0, None).is_err() && volume(1, Some(&bound)).is_err(),
            "another's claim"
        );

        let persistent = |uid: &str| -> PersistentVolume {
            from_value(serde_json::json!({
                "metadata": {"name": "v"}, "spec": {"local": {"path": "/d"}, "claimRef": {"uid": uid}},
            }))
            .unwrap()
        };
        let place = |volume: Option<&PersistentVolume>| {
            backing(&pod, &claim_volumes[0], &bound, "v", volume).map(|found| found.place)
        };
        let local = from_value(serde_json::json!({"path": "/d"})).unwrap();
        assert_eq!(place(Some(&persistent("claim"))), Ok(Place::Local(local)));
        let stolen = place(Some(&persistent("other"))).map_err(|error| error.to_string());
        let told = "found PV object v but its pv.Spec.ClaimRef.UID other does not point to claim.UID claim";
        assert_eq!(stolen, Err(told.to_owned()));
        assert_eq!(place(None), Err(ClaimError::NoVolume("v".to_owned())));
        let mut driven = persistent("claim");
        let spec = driven.spec.as_mut().unwrap();
        spec.local = None;
        spec.csi = from_value(serde_json::json!({"driver": "d.example.com", "volumeHandle": "h"})).unwrap();
        spec.mount_options = Some(vec!["noatime".to_owned()]);
        let found = backing(&pod, &claim_volumes[0], &bound, "v", Some(&driven)).unwrap();
        assert!(matches!(found.place, Place::Published { .. }) && found.options.is_empty());
        for (text, expected) in [("1234", Some(1234)), ("-1", None), ("staff", None)] {
            let mut volume = persistent("claim");
            volume.metadata.annotations = Some([(GROUP.to_owned(), text.to_owned())].into());
            let found = backing(&pod, &claim_volumes[0], &bound, "v", Some(&volume)).unwrap();
            assert_eq!(found.group, expected, "{text}");
        }
    }

    #[test]
    fn a_block_device_is_not_mounted_and_a_file_system_is_no_device() {
        let pod = |how: &str| -> Pod {
            from_value(serde_json::json!({"metadata": {"uid": "u"}, "spec": {
                "containers": [{"name": "c", how: [{"name": "a", "devicePath": "/dev/a", "mountPath": "/a"}]}],
                "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}],
            }}))
            .unwrap()
        };
        let claim: PersistentVolumeClaim = from_value(serde_json::json!({"metadata": {"uid": "claim"}})).unwrap();
        let found = |how: &str, mode: &str, source: &str| {
            let volume: PersistentVolume = from_value(serde_json::json!({"spec": {
                source: {"path": "/dev/sda"}, "volumeMode": mode, "claimRef": {"uid": "claim"},
            }}))
            .unwrap();
            let pod = pod(how);
            let found = backing(&pod, &claim_volumes(&pod)[0], &claim, "v", Some(&volume));
            found.map(|found| found.block).map_err(|error| error.to_string())
        };
        assert_eq!(found("volumeDevices", "Block", "local"), Ok(true));
        assert_eq!(found("volumeMounts", "Filesystem", "local"), Ok(false));
        let told = "volume a has volumeMode Block, but is specified in volumeMounts";
        assert_eq!(found("volumeMounts", "Block", "local"), Err(told.to_owned()));
        let told = "volume a has volumeMode Filesystem, but is specified in volumeDevices";
        assert_eq!(found("volumeDevices", "Filesystem", "local"), Err(told.to_owned()));
        found("volumeDevices", "Block", "hostPath").unwrap_err();
    }

    #[test]
    fn a_volume_has_the_options_of_its_annotation_or_of_its_spec() {
        let mut volume: PersistentVolume =
            from_value(serde_json::json!({"metadata": {}, "spec": {"mountOptions": ["ro", ""]}})).unwrap();
        assert_eq!(options(&volume), ["ro"]);
        volume.metadata.annotations = Some([(OPTIONS.to_owned(), "noexec,nodev".to_owned())].into());
        assert_eq!(options(&volume), ["noexec", "nodev"]);
    }
}
