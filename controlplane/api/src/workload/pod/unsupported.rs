//! Features that the node agent does not support yet. A pod that needs one is rejected on creation
//! if leaving it out would weaken isolation or correctness; nothing is dropped silently.

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use super::as_container;
use crate::value::invalid::Invalid;

pub(super) const DETAIL: &str = "is not supported by this version of the node agent";

struct Found(Vec<Invalid>);

impl Found {
    /// Rejects a field that must not be set.
    fn refuse(&mut self, set: bool, field: impl Into<String>) {
        if set {
            self.0.push(Invalid::forbidden(field, DETAIL));
        }
    }

    /// Rejects all but the supported values of a field.
    fn only(&mut self, value: Option<&str>, field: impl Into<String>, supported: &[&str]) {
        if let Some(value) = value.filter(|value| !value.is_empty() && !supported.contains(value)) {
            let known = supported
                .iter()
                .map(|text| format!("{text:?}"))
                .collect::<Vec<_>>()
                .join(", ");
            self.0.push(Invalid::forbidden(
                field,
                format!("{value:?} {DETAIL}; supported: {known}"),
            ));
        }
    }
}

/// Fields of a pod that the node agent does not support.
pub fn unsupported(spec: &PodSpec) -> Vec<Invalid> {
    let mut found = Found(Vec::new());
    found.refuse(
        spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
        "spec.resourceClaims",
    );
    found.refuse(spec.scheduling_group.is_some(), "spec.schedulingGroup");
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        self::volume(&mut found, volume, &format!("spec.volumes[{index}]"));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        self::container(&mut found, container, &format!("spec.containers[{index}]"));
    }
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        self::container(&mut found, container, &format!("spec.initContainers[{index}]"));
    }
    for (index, own) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = format!("spec.ephemeralContainers[{index}]");
        container(&mut found, &as_container(own), &path);
    }
    found.0
}

fn container(found: &mut Found, container: &Container, path: &str) {
    let claims = container
        .resources
        .as_ref()
        .and_then(|resources| resources.claims.as_ref());
    found.refuse(
        claims.is_some_and(|all| !all.is_empty()),
        format!("{path}.resources.claims"),
    );
}

fn volume(found: &mut Found, volume: &Volume, path: &str) {
    let others = [
        (volume.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (volume.azure_disk.is_some(), "azureDisk"),
        (volume.azure_file.is_some(), "azureFile"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.cinder.is_some(), "cinder"),
        (volume.fc.is_some(), "fc"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.flocker.is_some(), "flocker"),
        (volume.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (volume.glusterfs.is_some(), "glusterfs"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (volume.portworx_volume.is_some(), "portworxVolume"),
        (volume.quobyte.is_some(), "quobyte"),
        (volume.rbd.is_some(), "rbd"),
        (volume.scale_io.is_some(), "scaleIO"),
        (volume.storageos.is_some(), "storageos"),
        (volume.vsphere_volume.is_some(), "vsphereVolume"),
    ];
    for (set, name) in others {
        found.refuse(set, format!("{path}.{name}"));
    }
    let medium = volume.empty_dir.as_ref().and_then(|empty| empty.medium.as_deref());
    // Also with a page size as suffix.
    let medium = medium.map(|medium| {
        if medium.starts_with("HugePages-") {
            "HugePages"
        } else {
            medium
        }
    });
    found.only(medium, format!("{path}.emptyDir.medium"), &["HugePages", "Memory"]);
    let sources = volume
        .projected
        .iter()
        .filter_map(|projected| projected.sources.as_ref())
        .flatten();
    for (index, source) in sources.enumerate() {
        let path = format!("{path}.projected.sources[{index}]");
        found.refuse(
            source.cluster_trust_bundle.is_some(),
            format!("{path}.clusterTrustBundle"),
        );
        found.refuse(source.pod_certificate.is_some(), format!("{path}.podCertificate"));
    }
}
