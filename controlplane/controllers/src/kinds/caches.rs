//! The one cache of each kind.

use std::{collections::BTreeMap, sync::Arc};

use api::{kind::Scope, kinds::KINDS, registration::Registration};
use controlplane_plan::{
    objects::{Whatever, uid},
    pod::Pod,
    replicas::Elder,
    step::{self, Resource},
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    coordination::v1::Lease,
    core::v1::{Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ResourceQuota, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    storage::v1::StorageClass,
};

use super::{Cached, Contents, Partial};
use crate::cache::{Cache, Progress};

/// What became of an object, whatever its kind: the uid of the one before, and the one that is there now.
pub(crate) struct Turn<'a> {
    pub(crate) old: Option<&'a str>,
    pub(crate) new: Option<Arc<dyn Whatever>>,
}

fn hear<K: Cached>(
    cache: &Cache<K>,
    resource: Resource,
    listener: impl Fn(&Arc<Resource>, Turn<'_>) + Send + Sync + 'static,
) {
    let resource = Arc::new(resource);
    cache.listen(move |change| {
        let turn = Turn {
            old: change.old.map(uid),
            new: change.kept.map(|kept| Arc::clone(kept) as Arc<dyn Whatever>),
        };
        listener(&resource, turn);
    });
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

/// The kinds that are stored: not those that are only requests or answers.
pub(crate) fn stored_kinds() -> impl Iterator<Item = Resource> {
    KINDS.iter().filter(|row| row.verbs.are_stored()).map(resource_of)
}

/// The kinds of which metadata is enough. Events own nothing and are not owned.
fn partial_kinds() -> impl Iterator<Item = Resource> {
    const TYPED: [Resource; 19] = [
        step::CLAIMS,
        step::VOLUMES,
        step::STORAGE_CLASSES,
        step::SERVICE_RANGES,
        step::CLUSTER_ROLES,
        step::PODS,
        step::REPLICA_SETS,
        step::REPLICATION_CONTROLLERS,
        step::DEPLOYMENTS,
        step::NODES,
        step::NAMESPACES,
        step::SERVICES,
        step::LEASES,
        step::ENDPOINTS,
        step::ENDPOINT_SLICES,
        step::RESOURCE_QUOTAS,
        step::DISRUPTION_BUDGETS,
        step::CONFIG_MAPS,
        step::SECRETS,
    ];
    stored_kinds().filter(|resource| resource.kind != "Event" && !TYPED.contains(resource))
}

/// All caches.
pub(crate) struct Caches {
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) replica_sets: Arc<Cache<ReplicaSet>>,
    pub(crate) replication_controllers: Arc<Cache<Elder>>,
    pub(crate) deployments: Arc<Cache<Deployment>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) namespaces: Arc<Cache<Namespace>>,
    pub(crate) services: Arc<Cache<Service>>,
    pub(crate) leases: Arc<Cache<Lease>>,
    pub(crate) endpoints: Arc<Cache<Endpoints>>,
    pub(crate) endpoint_slices: Arc<Cache<EndpointSlice>>,
    pub(crate) quotas: Arc<Cache<ResourceQuota>>,
    pub(crate) budgets: Arc<Cache<PodDisruptionBudget>>,
    pub(crate) cluster_roles: Arc<Cache<ClusterRole>>,
    pub(crate) config_maps: Arc<Cache<Contents>>,
    pub(crate) secrets: Arc<Cache<Contents>>,
    pub(crate) claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(crate) volumes: Arc<Cache<PersistentVolume>>,
    pub(crate) storage_classes: Arc<Cache<StorageClass>>,
    pub(crate) service_ranges: Arc<Cache<ServiceCIDR>>,
    /// The kinds of which only metadata is kept.
    pub(crate) partial: BTreeMap<Resource, Arc<Cache<Partial>>>,
}

impl Caches {
    pub(crate) fn new() -> Self {
        Self {
            pods: Cache::new(),
            replica_sets: Cache::new(),
            replication_controllers: Cache::new(),
            deployments: Cache::new(),
            nodes: Cache::new(),
            namespaces: Cache::new(),
            services: Cache::new(),
            leases: Cache::new(),
            endpoints: Cache::new(),
            endpoint_slices: Cache::new(),
            quotas: Cache::new(),
            budgets: Cache::new(),
            cluster_roles: Cache::new(),
            config_maps: Cache::new(),
            secrets: Cache::new(),
            claims: Cache::new(),
            volumes: Cache::new(),
            storage_classes: Cache::new(),
            service_ranges: Cache::new(),
            partial: partial_kinds().map(|resource| (resource, Cache::new())).collect(),
        }
    }

    /// Calls `listener` with every object of every kind that can own or be owned.
    pub(crate) fn listen_to_all(&self, listener: impl Fn(&Arc<Resource>, Turn<'_>) + Clone + Send + Sync + 'static) {
        hear(&self.pods, step::PODS, listener.clone());
        hear(&self.replica_sets, step::REPLICA_SETS, listener.clone());
        hear(
            &self.replication_controllers,
            step::REPLICATION_CONTROLLERS,
            listener.clone(),
        );
        hear(&self.deployments, step::DEPLOYMENTS, listener.clone());
        hear(&self.nodes, step::NODES, listener.clone());
        hear(&self.namespaces, step::NAMESPACES, listener.clone());
        hear(&self.services, step::SERVICES, listener.clone());
        hear(&self.leases, step::LEASES, listener.clone());
        hear(&self.endpoints, step::ENDPOINTS, listener.clone());
        hear(&self.endpoint_slices, step::ENDPOINT_SLICES, listener.clone());
        hear(&self.quotas, step::RESOURCE_QUOTAS, listener.clone());
        hear(&self.budgets, step::DISRUPTION_BUDGETS, listener.clone());
        hear(&self.cluster_roles, step::CLUSTER_ROLES, listener.clone());
        hear(&self.config_maps, step::CONFIG_MAPS, listener.clone());
        hear(&self.secrets, step::SECRETS, listener.clone());
        hear(&self.claims, step::CLAIMS, listener.clone());
        hear(&self.volumes, step::VOLUMES, listener.clone());
        hear(&self.storage_classes, step::STORAGE_CLASSES, listener.clone());
        hear(&self.service_ranges, step::SERVICE_RANGES, listener.clone());
        for (resource, cache) in &self.partial {
            hear(cache, *resource, listener.clone());
        }
    }

    /// Waits until every kind has been listed: a plan on half a world would make things twice.
    pub(crate) async fn synced(&self) {
        self.pods.synced().await;
        self.replica_sets.synced().await;
        self.replication_controllers.synced().await;
        self.deployments.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.services.synced().await;
        self.leases.synced().await;
        self.endpoints.synced().await;
        self.endpoint_slices.synced().await;
        self.quotas.synced().await;
        self.budgets.synced().await;
        self.cluster_roles.synced().await;
        self.config_maps.synced().await;
        self.secrets.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.storage_classes.synced().await;
        self.service_ranges.synced().await;
        for cache in self.partial.values() {
            cache.synced().await;
        }
    }

    /// The cache of a resource, if it has one.
    pub(crate) fn of(&self, resource: &Resource) -> Option<&dyn Progress> {
        let typed: [(&Resource, &dyn Progress); 19] = [
            (&step::CLAIMS, &*self.claims),
            (&step::VOLUMES, &*self.volumes),
            (&step::STORAGE_CLASSES, &*self.storage_classes),
            (&step::SERVICE_RANGES, &*self.service_ranges),
            (&step::CLUSTER_ROLES, &*self.cluster_roles),
            (&step::PODS, &*self.pods),
            (&step::REPLICA_SETS, &*self.replica_sets),
            (&step::REPLICATION_CONTROLLERS, &*self.replication_controllers),
            (&step::DEPLOYMENTS, &*self.deployments),
            (&step::NODES, &*self.nodes),
            (&step::NAMESPACES, &*self.namespaces),
            (&step::SERVICES, &*self.services),
            (&step::LEASES, &*self.leases),
            (&step::ENDPOINTS, &*self.endpoints),
            (&step::ENDPOINT_SLICES, &*self.endpoint_slices),
            (&step::RESOURCE_QUOTAS, &*self.quotas),
            (&step::DISRUPTION_BUDGETS, &*self.budgets),
            (&step::CONFIG_MAPS, &*self.config_maps),
            (&step::SECRETS, &*self.secrets),
        ];
        let found = typed
            .into_iter()
            .find(|(known, _)| *known == resource)
            .map(|(_, cache)| cache);
        found.or_else(|| self.partial.get(resource).map(|cache| &**cache as &dyn Progress))
    }
}
