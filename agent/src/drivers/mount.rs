//! Mounts of drivers' volumes for pods: `MountDevice` of `pkg/volume/csi/csi_attacher.go` and
//! `SetUpAt` of `csi_mounter.go`, with their messages.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use agent_plan::volume::claims::Place;
use csi::{Capabilities, Driver, PublishRequest, StageRequest, VolumeCapability};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, SecretReference};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, VolumeAttachment};
use kube::Api;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};
use tracing::warn;
use volume::Turns;

use super::spec::{Spec, fs_group};
use super::{files, nodes};
use crate::client::sources::told;
use crate::client::tokens;
use crate::context::Context;

/// Time that an attempt waits for an attachment, and the interval of the looks at it.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(250);
/// Attribute of the pod's tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Mounts a volume for a pod, and returns its place; the error is the message of the pod's event. One
/// that is mounted is mounted again, over itself, if its driver wants that.
pub(crate) async fn set_up(
    context: &Context,
    turns: &Arc<Turns>,
    pod: &Pod,
    spec: &Spec,
    is_mounted: bool,
) -> Result<Option<Place>, String> {
    let _pod = context.drivers.lock(pods::uid(pod)).await;
    let turns = Arc::clone(turns);
    let removed = common::task::spawn_blocking(move || turns.are_removed()).await;
    // Nothing would unpublish it.
    if removed.unwrap_or(true) {
        return Err("the pod's volumes were removed".to_owned());
    }
    let drivers: Api<CSIDriver> = Api::all(context.parts.client.clone());
    let driver = drivers.get_opt(&spec.handle.driver).await;
    let driver = driver.map_err(|error| failed("SetUp", spec, &told(&error)))?;
    let object = driver.map(|driver| driver.spec);
    let again = object.as_ref().and_then(|object| object.requires_republish) == Some(true);
    if is_mounted && (!again || spec.block) {
        return Ok(None);
    }
    let mount = Mount {
        context,
        pod,
        spec,
        object,
    };
    if spec.ephemeral {
        let published = mount.publish(BTreeMap::new(), None).await;
        return published.map(Some).map_err(|why| failed("SetUp", spec, &why));
    }
    let (_volume, attachment) = mount.attached().await?;
    let staged = mount.stage(&attachment).await;
    let staged = staged.map_err(|why| failed("MountDevice", spec, &why))?;
    let published = mount.publish(attachment, staged).await;
    published.map(Some).map_err(|why| failed("SetUp", spec, &why))
}

/// Message of a failed step (`GenerateError`,
/// `pkg/volume/util/operationexecutor/operation_executor.go`).
fn failed(step: &str, spec: &Spec, why: &str) -> String {
    let step = match (step, spec.block) {
        ("SetUp", true) => "MapVolume.MapPodDevice".to_owned(),
        ("MountDevice", true) => "MapVolume.SetUpDevice".to_owned(),
        (step, true) => format!("MapVolume.{step}"),
        (step, false) => format!("MountVolume.{step}"),
    };
    format!("{step} failed for volume {:?} : {why}", spec.name)
}

struct Mount<'a> {
    context: &'a Context,
    pod: &'a Pod,
    spec: &'a Spec,
    /// What the `CSIDriver` says, if there is one.
    object: Option<CSIDriverSpec>,
}

impl Mount<'_> {
    /// Waits until the volume is attached, and keeps it locked: what the Node says is in use is not
    /// detached, so this is said before each look.
    async fn attached(&self) -> Result<(OwnedMutexGuard<()>, BTreeMap<String, String>), String> {
        let (handle, drivers) = (&self.spec.handle, &self.context.drivers);
        let attaches = self.object.as_ref().and_then(|object| object.attach_required) != Some(false);
        let until = Instant::now() + ATTACH_TIMEOUT;
        loop {
            let lock = drivers.lock(&handle.unique_name()).await;
            if self.spec.mode() == "ReadWriteOncePod" && drivers.is_others(handle, pods::uid(self.pod)) {
                let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
                let step = if self.spec.block { "MountDevice" } else { "SetUp" };
                return Err(failed(step, self.spec, why));
            }
            let is_new = drivers.take(handle, Some(pods::uid(self.pod)), attaches);
            if !attaches {
                return Ok((lock, BTreeMap::new()));
            }
            if is_new && let Err(why) = nodes::report_in_use(self.context).await {
                drivers.release(handle);
                // The next attempt reports it again.
                return Err(failed("WaitForAttach", self.spec, &why));
            }
            match self.attachment().await {
                Ok(metadata) => return Ok((lock, metadata)),
                Err(why) if Instant::now() >= until => return Err(failed("WaitForAttach", self.spec, &why)),
                Err(_) => {}
            }
            drop(lock);
            sleep(LOOK).await;
        }
    }

    /// Returns the metadata of the attachment (`WaitForAttach`, `pkg/volume/csi/csi_attacher.go`).
    async fn attachment(&self) -> Result<BTreeMap<String, String>, String> {
        let (handle, volume) = (&self.spec.handle, &self.spec.handle.volume);
        let id = handle.attachment(&self.context.config.node_name);
        let api: Api<VolumeAttachment> = Api::all(self.context.parts.client.clone());
        let found = api.get(&id).await.map_err(|error| {
            let why = told(&error);
            format!("volume {volume} has GET error for volume attachment {id}: {why}")
        })?;
        if found.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned());
        }
        let status = found.status.unwrap_or_default();
        // Taken out of the Node's list first, a volume is then detached in any case
        // (`VerifyControllerAttachedVolume`, `pkg/volume/util/operationexecutor/operation_generator.go`).
        if status.attached && !self.is_listed().await? {
            return Err("Volume not attached according to node status".to_owned());
        }
        if status.attached {
            return Ok(status.attachment_metadata.unwrap_or_default());
        }
        let refused = status.attach_error.and_then(|error| error.message);
        Err(refused.unwrap_or_else(|| format!("volume {volume} is not attached for volume attachment {id}")))
    }

    /// True if the Node's status lists the volume as attached.
    async fn is_listed(&self) -> Result<bool, String> {
        let nodes: Api<Node> = Api::all(self.context.parts.client.clone());
        let node = nodes
            .get(&self.context.config.node_name)
            .await
            .map_err(|error| told(&error))?;
        let attached = node
            .status
            .and_then(|status| status.volumes_attached)
            .unwrap_or_default();
        let own = self.spec.handle.unique_name();
        Ok(attached.iter().any(|volume| volume.name == own))
    }

    /// Stages the volume on the node, once, if its driver does so; returns where.
    async fn stage(&self, attachment: &BTreeMap<String, String>) -> Result<Option<PathBuf>, String> {
        let (spec, handle) = (self.spec, &self.spec.handle);
        let driver = self.context.drivers.get(&handle.driver).map_err(|why| {
            format!("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: {why}")
        })?;
        let abilities = driver.capabilities().await.map_err(|error| error.to_string())?;
        if !abilities.stages {
            return Ok(None);
        }
        let place = spec.staging(&self.context.config.kubelet_directory);
        let target = &place.target;
        if self.context.drivers.is_staged(handle) {
            return Ok(Some(place.target));
        }
        let secrets = secret(self.context, "NodeStageSecretRef", spec.stage_secret.as_ref()).await?;
        let data = [
            ("volumeHandle", handle.volume.as_str()),
            ("driverName", handle.driver.as_str()),
        ];
        // What is mounted already may hang.
        let point = || match volume::is_mounted(target) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => files::make(target),
        };
        let is_known = place.is_known();
        let made = files::write(&place, &data.into()).and_then(|()| point());
        made.map_err(|error| {
            let target = target.display().to_string();
            format!("kubernetes.io/csi: attacher.MountDevice failed to create dir {target:?}:  {error}")
        })?;
        let request = StageRequest {
            volume_id: handle.volume.clone(),
            publish_context: attachment.clone(),
            staging_target_path: target.display().to_string(),
            volume_capability: Some(self.capability(abilities)),
            secrets,
            volume_context: spec.attributes.clone(),
        };
        let staged = driver.stage(request).await;
        staged.map_err(|error| clear_after(&place, is_known, &error))?;
        self.context.drivers.note_staged(handle);
        Ok(Some(place.target))
    }

    async fn publish(
        &self,
        publish_context: BTreeMap<String, String>,
        staged: Option<PathBuf>,
    ) -> Result<Place, String> {
        let (spec, object) = (self.spec, self.object.as_ref());
        let driver = self.context.drivers.get(&spec.handle.driver);
        let driver: Driver =
            driver.map_err(|why| format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {why}"))?;
        spec.check_lifecycle(object)?;
        let grouped = spec.is_grouped(self.pod, object)?;
        let mut secrets = secret(self.context, "NodePublishSecretRef", spec.publish_secret.as_ref()).await?;
        let mut attributes = spec.attributes.clone();
        if object.and_then(|object| object.pod_info_on_mount) == Some(true) {
            attributes.extend(spec.pod_info(self.pod));
        }
        let in_secrets = object.and_then(|object| object.service_account_token_in_secrets) == Some(true);
        let tokens = self.tokens().await?.map(|tokens| (TOKENS.to_owned(), tokens));
        if in_secrets {
            secrets.extend(tokens);
        } else {
            attributes.extend(tokens);
        }
        let abilities = driver.capabilities().await.map_err(|error| {
            let what = "failed to determine if the node service has VOLUME_MOUNT_GROUP capability";
            format!("kubernetes.io/csi: mounter.SetUpAt {what}: {error}")
        })?;
        let place = spec.target(&self.context.config.kubelet_directory, self.pod);
        let attachment = spec.handle.attachment(&self.context.config.node_name);
        let is_known = place.is_known();
        let mut written = files::write(&place, &self.data(&attachment));
        if let Some(directory) = place.target.parent().filter(|_| spec.block) {
            written = written.and_then(|()| files::make(directory));
        }
        written.map_err(|error| format!("kubernetes.io/csi: failed to save volume data file: {error}"))?;
        let request = PublishRequest {
            volume_id: spec.handle.volume.clone(),
            publish_context,
            staging_target_path: staged.map(|path| path.display().to_string()).unwrap_or_default(),
            target_path: place.target.display().to_string(),
            volume_capability: Some(self.capability(abilities)),
            readonly: spec.read_only,
            secrets,
            volume_context: attributes,
        };
        let published = driver.publish(request).await;
        published.map_err(|error| clear_after(&place, is_known, &error))?;
        Ok(Place::Published {
            path: place.target.display().to_string(),
            grouped: grouped && !abilities.takes_group,
        })
    }

    fn data<'a>(&'a self, attachment: &'a str) -> BTreeMap<&'static str, &'a str> {
        let spec = self.spec;
        BTreeMap::from([
            ("specVolID", spec.name.as_str()),
            ("volumeHandle", spec.handle.volume.as_str()),
            ("driverName", spec.handle.driver.as_str()),
            ("nodeName", self.context.config.node_name.as_str()),
            ("volumeLifecycleMode", spec.lifecycle()),
            ("attachmentID", attachment),
        ])
    }

    fn capability(&self, abilities: Capabilities) -> VolumeCapability {
        self.spec.capability(fs_group(self.pod), abilities)
    }

    /// Returns the tokens that the driver wants, by audience (`podServiceAccountTokenAttrs`,
    /// `pkg/volume/csi/csi_mounter.go`).
    async fn tokens(&self) -> Result<Option<String>, String> {
        let wanted = self.object.as_ref().and_then(|object| object.token_requests.as_deref());
        let mut tokens = BTreeMap::new();
        for wanted in wanted.unwrap_or_default() {
            let (client, seconds) = (&self.context.parts.client, wanted.expiration_seconds);
            let token = tokens::request(client, self.pod, &wanted.audience, seconds).await;
            let token = token.map_err(|error| {
                let what = "failed to get service accoount token attributes";
                format!("kubernetes.io/csi: mounter.SetUpAt {what}: {}", told(&error))
            })?;
            tokens.insert(wanted.audience.as_str(), token);
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        serde_json::to_string(&tokens)
            .map(Some)
            .map_err(|error| error.to_string())
    }
}

/// Returns the contents of a secret that a volume refers to.
pub(super) async fn secret(
    context: &Context,
    field: &str,
    reference: Option<&SecretReference>,
) -> Result<BTreeMap<String, String>, String> {
    let Some(reference) = reference else {
        return Ok(BTreeMap::new());
    };
    let name = reference.name.as_deref().unwrap_or_default();
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(context.parts.client.clone(), namespace);
    let secret = api.get(name).await.map_err(|error| {
        let why = told(&error);
        format!(
            "fetching {field} {namespace}/{name} failed: kubernetes.io/csi: failed to find the secret {name} in the \
             namespace {namespace} with error: {why}"
        )
    })?;
    let data = secret.data.unwrap_or_default().into_iter();
    let texts = data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()));
    Ok(texts.collect())
}

/// Removes a mount point if the failed operation on it is over, unless it was there before, and
/// maybe mounted; returns the failure's text.
fn clear_after(place: &files::Place, is_known: bool, error: &csi::Error) -> String {
    if !is_known
        && error.is_final()
        && let Err(why) = files::remove(place)
    {
        warn!(why, "a mount point could not be removed after a failure");
    }
    error.to_string()
}
