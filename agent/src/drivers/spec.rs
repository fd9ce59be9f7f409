//! A volume of a driver as the API describes it, for one pod.

use std::collections::BTreeMap;
use std::path::Path;

use agent_plan::pod::pods;
use csi::{Capabilities, VolumeCapability};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, SecretReference, Volume};
use k8s_openapi::api::storage::v1::CSIDriverSpec;

use super::files;
use super::registered::{Handle, hash};

/// Volume of a driver.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Name of the persistent volume, or of the pod's own.
    pub(crate) name: String,
    pub(crate) handle: Handle,
    /// True for a volume that the pod itself describes (inline).
    pub(crate) ephemeral: bool,
    /// True for a block device, which is not mounted.
    pub(crate) block: bool,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) modes: Vec<String>,
    pub(crate) options: Vec<String>,
    pub(crate) stage_secret: Option<SecretReference>,
    pub(crate) publish_secret: Option<SecretReference>,
    pub(crate) expand_secret: Option<SecretReference>,
}

impl Spec {
    /// Persistent volume behind a claim of the pod; `None` if it is not a driver's.
    pub(crate) fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Self> {
        let spec = volume.spec.clone()?;
        let source = spec.csi?;
        Some(Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            handle: Handle {
                driver: source.driver,
                volume: source.volume_handle,
            },
            ephemeral: false,
            block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: source.fs_type.unwrap_or_default(),
            attributes: source.volume_attributes.unwrap_or_default(),
            modes: spec.access_modes.unwrap_or_default(),
            options: spec.mount_options.unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref,
            publish_secret: source.node_publish_secret_ref,
            expand_secret: source.node_expand_secret_ref,
        })
    }

    /// Volume that the pod itself describes; `None` if it is not a driver's.
    pub(crate) fn inline(pod: &Pod, volume: &Volume) -> Option<Self> {
        let source = volume.csi.clone()?;
        let secret = source.node_publish_secret_ref.map(|secret| SecretReference {
            name: Some(secret.name),
            namespace: Some(pods::namespace(pod).to_owned()),
        });
        Some(Self {
            handle: Handle {
                driver: source.driver,
                // `makeVolumeHandle`, `pkg/volume/csi/csi_mounter.go`
                volume: format!("csi-{}", hash(&format!("{}{}", pods::uid(pod), volume.name))),
            },
            name: volume.name.clone(),
            ephemeral: true,
            block: false,
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.unwrap_or_default(),
            attributes: source.volume_attributes.unwrap_or_default(),
            modes: vec!["ReadWriteOnce".to_owned()],
            options: Vec::new(),
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
        })
    }

    /// Use of the volume, as the driver is told.
    pub(super) fn capability(&self, group: Option<i64>, driver: Capabilities) -> VolumeCapability {
        if self.block {
            return VolumeCapability::block(self.mode(), driver);
        }
        let group = group.filter(|_| driver.takes_group);
        VolumeCapability::new(&self.fs_type, &self.options, group, self.mode(), driver)
    }

    /// Place at which it is staged.
    pub(super) fn staging(&self, kubelet: &Path) -> files::Place {
        if self.block {
            files::device_staging(kubelet, &self.name)
        } else {
            files::staging(kubelet, &self.handle)
        }
    }

    /// Place at which it is published for a pod.
    pub(super) fn target(&self, kubelet: &Path, pod: &Pod) -> files::Place {
        let of = if self.block {
            files::device_target
        } else {
            files::target
        };
        of(kubelet, pods::uid(pod), &self.name)
    }

    /// Access mode that the driver is told.
    pub(crate) fn mode(&self) -> &str {
        self.modes.first().map_or("ReadWriteOnce", String::as_str)
    }

    /// `volumeLifecycleMode`
    pub(crate) fn lifecycle(&self) -> &'static str {
        if self.ephemeral { "Ephemeral" } else { "Persistent" }
    }

    /// Fails if the driver has no volumes of this kind (`supportsVolumeLifecycleMode`,
    /// `pkg/volume/csi/csi_mounter.go`).
    pub(crate) fn check_lifecycle(&self, driver: Option<&CSIDriverSpec>) -> Result<(), String> {
        let (mode, name) = (self.lifecycle(), &self.handle.driver);
        let because = match driver {
            None if !self.ephemeral => return Ok(()),
            None => "no CSIDriver object".to_owned(),
            Some(driver) => {
                let modes = driver.volume_lifecycle_modes.as_deref().unwrap_or_default();
                if modes.iter().any(|known| known == mode) {
                    return Ok(());
                }
                let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
                format!("only supports [{}]", modes.join(" "))
            }
        };
        Err(format!(
            "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode {mode:?} not supported \
             by driver {name} ({because})"
        ))
    }

    /// True if the node gives the files to the pod's `fsGroup` (`getFSGroupPolicy` and
    /// `supportsFSGroup`, `pkg/volume/csi/csi_mounter.go`).
    pub(crate) fn is_grouped(&self, pod: &Pod, driver: Option<&CSIDriverSpec>) -> Result<bool, String> {
        let policy = match driver.map(|driver| driver.fs_group_policy.as_deref()) {
            None => "ReadWriteOnceWithFSType",
            Some(Some(policy)) if !policy.is_empty() => policy,
            Some(_) => {
                return Err(
                    "kubernetes.io/csi: mounter.SetupAt failed to check fsGroup policy: kubernetes.io/csi: expected valid \
                     fsGroupPolicy, received nil value or empty string"
                        .to_owned(),
                );
            }
        };
        if fs_group(pod).is_none() || policy == "None" || self.read_only || self.block {
            return Ok(false);
        }
        let mut modes = self.modes.iter();
        let once = modes.any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
        Ok(policy == "File" || !self.fs_type.is_empty() && once)
    }

    /// What a driver with `podInfoOnMount` is told of the pod (`getPodInfoAttrs`,
    /// `pkg/volume/csi/csi_util.go`).
    pub(crate) fn pod_info(&self, pod: &Pod) -> BTreeMap<String, String> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let told = [
            ("pod.name", pods::name(pod).to_owned()),
            ("pod.namespace", pods::namespace(pod).to_owned()),
            ("pod.uid", pods::uid(pod).to_owned()),
            ("serviceAccount.name", account.unwrap_or_default()),
            ("ephemeral", self.ephemeral.to_string()),
        ];
        told.into_iter()
            .map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value))
            .collect()
    }
}

/// The pod's `fsGroup`.
pub(crate) fn fs_group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn volume(csi: &Value, modes: &[&str]) -> PersistentVolume {
        from_value(json!({"metadata": {"name": "pv"}, "spec": {"csi": csi, "accessModes": modes}})).unwrap()
    }

    #[test]
    fn the_group_gets_files_as_the_driver_says() {
        let pod: Pod = from_value(
            json!({"metadata": {"uid": "u"}, "spec": {"containers": [], "securityContext": {"fsGroup": 7}}}),
        )
        .unwrap();
        let plain = json!({"driver": "d", "volumeHandle": "h"});
        let typed = json!({"driver": "d", "volumeHandle": "h", "fsType": "ext4"});
        let grouped = |csi: &Value, mode: &str, read_only, policy: Option<&str>| {
            let spec = Spec::persistent(&volume(csi, &[mode]), read_only).unwrap();
            let driver = policy.map(|policy| from_value(json!({"fsGroupPolicy": policy})).unwrap());
            spec.is_grouped(&pod, driver.as_ref()).unwrap()
        };
        assert!(grouped(&typed, "ReadWriteOnce", false, None));
        assert!(grouped(
            &typed,
            "ReadWriteOncePod",
            false,
            Some("ReadWriteOnceWithFSType")
        ));
        assert!(!grouped(&typed, "ReadWriteMany", false, None));
        assert!(!grouped(&plain, "ReadWriteOnce", false, None));
        assert!(grouped(&plain, "ReadWriteMany", false, Some("File")));
        assert!(!grouped(&plain, "ReadWriteMany", true, Some("File")));
        assert!(!grouped(&typed, "ReadWriteOnce", false, Some("None")));
        let spec = Spec::persistent(&volume(&typed, &["ReadWriteOnce"]), false).unwrap();
        spec.is_grouped(&pod, Some(&CSIDriverSpec::default())).unwrap_err();
    }

    #[test]
    fn an_inline_volume_needs_a_driver_that_has_such() {
        let pod: Pod = from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "s", "volumes": [
                {"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "secret"}}},
            ]},
        }))
        .unwrap();
        let spec = Spec::inline(&pod, &pods::volumes(&pod)[0]).unwrap();
        assert_eq!(spec.handle.volume, format!("csi-{}", hash("uv")));
        assert_eq!(spec.publish_secret.as_ref().unwrap().namespace.as_deref(), Some("n"));
        let told = spec.pod_info(&pod);
        assert_eq!(told["csi.storage.k8s.io/serviceAccount.name"], "s");
        assert_eq!(told["csi.storage.k8s.io/ephemeral"], "true");
        let check = |modes: Option<Value>| {
            let driver = modes.map(|modes| from_value(json!({"volumeLifecycleModes": modes})).unwrap());
            spec.check_lifecycle(driver.as_ref())
        };
        let prefix = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" \
                      not supported by driver d";
        assert_eq!(check(None), Err(format!("{prefix} (no CSIDriver object)")));
        let persistent = check(Some(json!(["Persistent"])));
        assert_eq!(persistent, Err(format!("{prefix} (only supports [\"Persistent\"])")));
        assert_eq!(check(Some(json!(["Persistent", "Ephemeral"]))), Ok(()));
    }
}
