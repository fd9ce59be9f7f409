//! Table of caches: one for each stored kind.
//!
//! A kind of which plans read more than metadata has a line in `cached!`. All other stored kinds
//! are cached as [`Partial`], for the garbage collector. The line alone defines the field, the
//! watch, and everything that iterates over all caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::kind::{Scope, Subresource};
use api::kinds::{KINDS, find_kind};
use api::registration::Registration;
use controlplane_plan::objects::{Whatever, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{self, Resource};
use controlplane_plan::workloads::replicas::ReplicationController;
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ResourceQuota, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use tokio_util::sync::CancellationToken;

use super::contents::Contents;
use super::{Partial, defined, trim_metadata};
use crate::machinery::cache::Cache;
use crate::machinery::cache::Cached;
use crate::machinery::reflector::{self, Reflected};

/// Defines [`Caches`] from rows `field: type = resource`. For a type under `plain` only unread
/// metadata is dropped; a type under `own` has an `impl Cached` that determines which parts are
/// kept, shared and indexed.
macro_rules! cached {
    (
        plain { $($plain:ident: $kind:ty = $named:ident,)* }
        own { $($own:ident: $type:ty = $resource:ident,)* }
    ) => {
        $(impl Cached for $kind {
            type Pool = ();

            fn trim(&mut self) {
                trim_metadata(&mut self.metadata);
            }
        })*

        /// All caches.
        pub(crate) struct Caches {
            $(pub(crate) $plain: Arc<Cache<$kind>>,)*
            $(pub(crate) $own: Arc<Cache<$type>>,)*
            all: BTreeMap<Resource, Arc<dyn AnyCache>>,
        }

        impl Caches {
            pub(crate) fn new() -> Self {
                // Events own nothing and have no owners.
                let stored = stored_kinds().filter(|resource| resource.kind != "Event");
                let mut all: BTreeMap<_, _> = stored.map(|resource| (resource, Cache::<Partial>::new() as _)).collect();
                Self {
                    $($plain: typed(&mut all, step::$named),)*
                    $($own: typed(&mut all, step::$resource),)*
                    all,
                }
            }
        }

        /// Resources of the rows.
        #[cfg(test)]
        const ROWS: &[Resource] = &[$(step::$named,)* $(step::$resource,)*];
    };
}

cached! {
    plain {
        api_services: APIService = API_SERVICES,
        autoscalers: HorizontalPodAutoscaler = AUTOSCALERS,
        budgets: PodDisruptionBudget = DISRUPTION_BUDGETS,
        cluster_roles: ClusterRole = CLUSTER_ROLES,
        controller_revisions: ControllerRevision = CONTROLLER_REVISIONS,
        cron_jobs: CronJob = CRON_JOBS,
        csi_capacities: CSIStorageCapacity = CSI_CAPACITIES,
        csi_drivers: CSIDriver = CSI_DRIVERS,
        csi_nodes: CSINode = CSI_NODES,
        deployments: Deployment = DEPLOYMENTS,
        endpoints: Endpoints = ENDPOINTS,
        leases: Lease = LEASES,
        namespaces: Namespace = NAMESPACES,
        quotas: ResourceQuota = RESOURCE_QUOTAS,
        service_ranges: ServiceCIDR = SERVICE_RANGES,
        services: Service = SERVICES,
        storage_classes: StorageClass = STORAGE_CLASSES,
    }
    own {
        addresses: Partial = ADDRESSES,
        attachments: VolumeAttachment = ATTACHMENTS,
        attributes_classes: Partial = VOLUME_ATTRIBUTES_CLASSES,
        claims: PersistentVolumeClaim = CLAIMS,
        config_maps: Contents = CONFIG_MAPS,
        daemon_sets: DaemonSet = DAEMON_SETS,
        definitions: CustomResourceDefinition = DEFINITIONS,
        endpoint_slices: EndpointSlice = ENDPOINT_SLICES,
        jobs: Job = JOBS,
        nodes: Node = NODES,
        pods: Pod = PODS,
        replica_sets: ReplicaSet = REPLICA_SETS,
        replication_controllers: ReplicationController = REPLICATION_CONTROLLERS,
        secrets: Contents = SECRETS,
        service_accounts: Partial = SERVICE_ACCOUNTS,
        signing_requests: Partial = SIGNING_REQUESTS,
        stateful_sets: StatefulSet = STATEFUL_SETS,
        volumes: PersistentVolume = VOLUMES,
    }
}

fn typed<K: Cached>(all: &mut BTreeMap<Resource, Arc<dyn AnyCache>>, resource: Resource) -> Arc<Cache<K>> {
    let cache = Cache::new();
    all.insert(resource, cache.clone());
    cache
}

/// A change of an object of any kind: the uid of the old object, and the new object.
pub(crate) struct Turn<'a> {
    pub(crate) old: Option<&'a str>,
    pub(crate) new: Option<Arc<dyn Whatever>>,
}

pub(crate) type Listener = Arc<dyn Fn(&Arc<Resource>, Turn<'_>) + Send + Sync>;

/// A cache, whatever its kind.
pub(crate) trait AnyCache: Reflected {
    fn hear(&self, resource: Resource, listener: Listener);
    fn first_list(&self) -> BoxFuture<'_, ()>;
}

impl<K: Cached> AnyCache for Cache<K> {
    fn hear(&self, resource: Resource, listener: Listener) {
        let resource = Arc::new(resource);
        self.listen(move |change| {
            let turn = Turn {
                old: change.old.map(uid),
                new: change.kept.map(|kept| Arc::clone(kept) as Arc<dyn Whatever>),
            };
            listener(&resource, turn);
        });
    }

    fn first_list(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.synced())
    }
}

impl Caches {
    /// Calls `listener` on changes of every object of every kind that can own or be owned.
    pub(crate) fn listen_to_all(&self, listener: &Listener) {
        for (resource, cache) in &self.all {
            cache.hear(*resource, listener.clone());
        }
    }

    /// Waits until every kind has been listed: a plan on incomplete caches would create duplicates.
    pub(crate) async fn synced(&self) {
        for cache in self.all.values() {
            cache.first_list().await;
        }
    }

    /// The cache of a resource, if it has one.
    pub(crate) fn of(&self, resource: &Resource) -> Option<&dyn AnyCache> {
        self.all.get(resource).map(Arc::as_ref)
    }

    /// The resource of a kind, built in or defined, in any version that is served.
    pub(crate) fn resource(&self, group: &str, kind: &str) -> Option<Resource> {
        let is_meant = |resource: &Resource| resource.group == group && resource.kind == kind;
        let built_in = stored_kinds().find(is_meant);
        built_in.or_else(|| {
            let definitions = self.definitions.all();
            definitions.iter().filter_map(|own| defined(own)).find(is_meant)
        })
    }

    /// True if objects of the resource have a scale.
    pub(crate) fn has_scale(&self, resource: &Resource) -> bool {
        let row = find_kind(resource.group, resource.version, resource.kind);
        let defined = |own: &CustomResourceDefinition| {
            let is_meant = own.spec.group == resource.group && own.spec.names.plural == resource.plural;
            let mut versions = own
                .spec
                .versions
                .iter()
                .filter(|version| version.name == resource.version);
            is_meant
                && versions.any(|version| {
                    let parts = version.subresources.as_ref();
                    parts.is_some_and(|parts| parts.scale.is_some())
                })
        };
        row.is_some_and(|row| row.subresources.contains(&Subresource::Scale))
            || self.definitions.all().iter().any(|own| defined(own))
    }

    /// Futures that maintain each cache until `cancel`.
    pub(crate) fn reflect_all(
        &self,
        client: &kube::Client,
        cancel: &CancellationToken,
    ) -> impl Iterator<Item = BoxFuture<'static, ()>> {
        let reflect = |(resource, cache): (&Resource, &Arc<dyn AnyCache>)| -> BoxFuture<'static, ()> {
            Box::pin(reflector::run(cache.clone(), client.clone(), *resource, cancel.clone()))
        };
        self.all.iter().map(reflect)
    }
}

/// A row of the table of kinds.
pub(crate) fn resource_of(row: &Registration) -> Resource {
    Resource {
        group: row.group,
        version: row.version,
        kind: row.kind,
        plural: row.plural,
        namespaced: row.scope == Scope::Namespaced,
    }
}

/// Stored kinds: not those that are only requests or responses.
pub(crate) fn stored_kinds() -> impl Iterator<Item = Resource> {
    KINDS.iter().filter(|row| row.verbs.are_stored()).map(resource_of)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_stands_once() {
        assert_eq!(BTreeSet::from_iter(ROWS).len(), ROWS.len());
        let stored: BTreeSet<Resource> = stored_kinds().collect();
        assert!(ROWS.iter().all(|row| stored.contains(row)), "a row is not stored");
    }
}
