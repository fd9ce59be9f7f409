//! Content of the caches by kind: only the fields that plans read.

mod caches;
pub(crate) mod contents;

use api::intern;
use api::kinds::custom_resource_definition::names::is_true;
use controlplane_plan::network::endpoints;
use controlplane_plan::objects::{Meta, Object, controller_of};
use controlplane_plan::placement::claims::names;
use controlplane_plan::pod::node_of;
use controlplane_plan::pod::{Metadata, Pod, Pool};
use controlplane_plan::step::Resource;
use controlplane_plan::storage::{attach, claim_class, claim_of, csi_name, volume_class, volume_of};
use controlplane_plan::workloads::replicas::ReplicationController;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

pub(crate) use self::caches::{AnyCache, Caches, Listener, resource_of, stored_kinds};
use crate::machinery::cache::{Cached, Key};

/// Index entry of objects that a controller owns.
pub(crate) fn owned_by(uid: &str) -> String {
    format!("owner/{uid}")
}

/// Index entry of a namespace's objects without a controller.
pub(crate) fn unmanaged(namespace: &str) -> String {
    format!("unmanaged/{namespace}")
}

/// Index entry of a node's pods and attachments.
pub(crate) fn on_node(node: &str) -> String {
    format!("node/{node}")
}

/// The Service of a slice.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let service = slice.metadata.labels.as_ref()?.get(endpoints::SERVICE_NAME)?;
    Some(Key::new(
        slice.metadata.namespace.as_deref().unwrap_or_default(),
        service,
    ))
}

/// Index entry of a Service's slices.
pub(crate) fn of_service(service: &Key) -> String {
    format!("service/{service}")
}

fn owner_entry(metadata: &impl Meta) -> String {
    controller_of(metadata).map_or_else(|| unmanaged(metadata.namespace()), |owner| owned_by(&owner.uid))
}

/// Vectors grow to at least four items while they are deserialized: most hold one or two.
fn tighten<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
}

fn trim_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    tighten(&mut metadata.owner_references);
    tighten(&mut metadata.finalizers);
    if let Some(annotations) = metadata.annotations.as_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Keeps all annotations, since revisions copy them.
fn trim_revised(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    tighten(&mut metadata.owner_references);
}

/// Keeps only the fields for garbage collection.
fn trim_all(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        uid: metadata.uid.take(),
        resource_version: metadata.resource_version.take(),
        owner_references: metadata.owner_references.take(),
        finalizers: metadata.finalizers.take(),
        deletion_timestamp: metadata.deletion_timestamp.take(),
        ..ObjectMeta::default()
    };
}

impl Cached for Pod {
    type Pool = Pool;

    fn share(&mut self, pool: &mut Pool) {
        Self::share(self, pool);
    }

    fn index(&self) -> Vec<String> {
        let mut entries = vec![owner_entry(&self.metadata)];
        entries.extend(node_of(self).map(on_node));
        let namespace = self.metadata.namespace();
        entries.extend(names(self).iter().map(|(claim, _)| for_claim(namespace, claim)));
        entries
    }
}

/// Kinds that are found by index entries, and whose metadata alone is trimmed.
macro_rules! indexed {
    ($($kind:ty: |$own:ident| $entries:expr;)*) => {
        $(impl Cached for $kind {
            type Pool = ();

            fn trim(&mut self) {
                trim_metadata(&mut self.metadata);
            }

            fn index(&self) -> Vec<String> {
                let $own = self;
                $entries
            }
        })*
    };
}

indexed! {
    ReplicaSet: |set| vec![owner_entry(&set.metadata)];
    Job: |job| vec![owner_entry(&job.metadata)];
    EndpointSlice: |slice| service_of(slice).as_ref().map(of_service).into_iter().collect();
    PersistentVolumeClaim: |claim| vec![volume_of(claim).map_or_else(|| in_class(claim_class(claim)), on_volume)];
    VolumeAttachment: |attachment| {
        let volume = attachment.spec.source.persistent_volume_name.as_deref().map(on_volume);
        volume.into_iter().chain([on_node(&attachment.spec.node_name)]).collect()
    };
    PersistentVolume: |volume| {
        let claim = claim_of(volume).map(|(namespace, name)| for_claim(namespace, name));
        let driver = csi_name(volume).map(|name| of_driver(&name));
        claim.into_iter().chain([in_class(volume_class(volume))]).chain(driver).collect()
    };
}

impl Cached for StatefulSet {
    type Pool = ();

    fn trim(&mut self) {
        trim_revised(&mut self.metadata);
    }
}

impl Cached for DaemonSet {
    type Pool = ();

    fn trim(&mut self) {
        trim_revised(&mut self.metadata);
    }
}

impl Cached for ReplicationController {
    type Pool = ();

    fn trim(&mut self) {
        trim_metadata(&mut self.0.metadata);
    }
}

/// Index entry of unbound claims of a class, and of the class's volumes.
pub(crate) fn in_class(class: &str) -> String {
    format!("class/{class}")
}

/// Index entry of the volumes that a driver knows by this name, and of the nodes to which they are
/// attached.
pub(crate) fn of_driver(name: &str) -> String {
    format!("csi/{name}")
}

/// Index entry of claims and attachments that refer to a volume.
pub(crate) fn on_volume(name: &str) -> String {
    format!("volume/{name}")
}

/// Index entry of volumes and pods that refer to a claim.
pub(crate) fn for_claim(namespace: &str, name: &str) -> String {
    format!("claim/{namespace}/{name}")
}

impl Cached for Node {
    type Pool = ();

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata);
        if let Some(status) = self.status.as_mut() {
            status.node_info = None;
        }
    }

    fn index(&self) -> Vec<String> {
        attach::attached(self).map(of_driver).collect()
    }
}

impl Cached for CustomResourceDefinition {
    type Pool = ();

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata);
        for version in &mut self.spec.versions {
            version.schema = None;
            version.additional_printer_columns = None;
        }
    }
}

/// The resource of a definition, in a served version: the storage version if it is served, since it
/// needs no conversion.
pub(crate) fn defined(definition: &CustomResourceDefinition) -> Option<Resource> {
    let (spec, status) = (&definition.spec, definition.status.as_ref()?);
    let mut served = spec.versions.iter().filter(|version| version.served);
    let stored = served.clone().find(|version| version.storage);
    let version = stored.or_else(|| served.next())?;
    is_true(status, "Established").then(|| Resource {
        group: intern::text(&spec.group),
        version: intern::text(&version.name),
        kind: intern::text(&spec.names.kind),
        plural: intern::text(&spec.names.plural),
        namespaced: spec.scope == "Namespaced",
    })
}

/// An object with its metadata only.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Partial {
    metadata: Metadata,
}

impl Cached for Partial {
    type Pool = Pool;

    fn share(&mut self, pool: &mut Pool) {
        self.metadata.share(pool);
    }
}

impl Object for Partial {
    type Meta = Metadata;

    fn meta(&self) -> &Metadata {
        &self.metadata
    }
}
