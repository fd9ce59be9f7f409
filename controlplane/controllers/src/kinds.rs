//! What the caches keep of each kind: what plans read, and no more.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    kind::{Scope, Verbs},
    kinds::KINDS,
    registration::Registration,
};
use controlplane_plan::{
    objects::{controller_of, node_of},
    step::{self, Resource},
};
use k8s_openapi::{
    Metadata,
    api::{
        apps::v1::{Deployment, ReplicaSet},
        coordination::v1::Lease,
        core::v1::{Container, ContainerStatus, Namespace, Node, Pod, ResourceQuota, Service},
        discovery::v1::EndpointSlice,
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRole,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    accounts::{ACCOUNT_NAME, BOOTSTRAP, CERTIFICATE, TOKEN},
    cache::{Cache, Change, Progress},
};

/// A kind that is cached.
pub(crate) trait Cached: DeserializeOwned + Clone + Send + Sync + 'static {
    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// Drops what nobody reads.
    fn trim(&mut self);
    /// The entries under which it is found.
    fn index(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The index entry of what a controller owns.
pub(crate) fn owned_by(uid: &str) -> String {
    format!("owner/{uid}")
}

/// The index entry of a namespace's objects that nobody manages.
pub(crate) fn unmanaged(namespace: &str) -> String {
    format!("unmanaged/{namespace}")
}

/// The index entry of a node's pods.
pub(crate) fn on_node(node: &str) -> String {
    format!("node/{node}")
}

fn owner_entry(metadata: &ObjectMeta) -> String {
    controller_of(metadata).map_or_else(
        || unmanaged(metadata.namespace.as_deref().unwrap_or_default()),
        |owner| owned_by(&owner.uid),
    )
}

/// Lists grow by doubling while they are read, from four items: most hold one or two.
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

/// Keeps what garbage collection reads.
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
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata);
        if let Some(spec) = self.spec.as_mut() {
            spec.volumes = None;
            spec.ephemeral_containers = None;
            for container in spec
                .containers
                .iter_mut()
                .chain(spec.init_containers.iter_mut().flatten())
            {
                *container = Container {
                    name: std::mem::take(&mut container.name),
                    ports: container.ports.take(),
                    resources: container.resources.take(),
                    restart_policy: container.restart_policy.take(),
                    ..Container::default()
                };
                tighten(&mut container.ports);
            }
            spec.containers.shrink_to_fit();
            tighten(&mut spec.tolerations);
        }
        if let Some(status) = self.status.as_mut() {
            status.init_container_statuses = None;
            status.ephemeral_container_statuses = None;
            status.host_ips = None;
            for container in status.container_statuses.iter_mut().flatten() {
                *container = ContainerStatus {
                    name: std::mem::take(&mut container.name),
                    restart_count: container.restart_count,
                    ..ContainerStatus::default()
                };
            }
            tighten(&mut status.container_statuses);
            tighten(&mut status.conditions);
        }
    }

    fn index(&self) -> Vec<String> {
        let mut entries = vec![owner_entry(&self.metadata)];
        entries.extend(node_of(self).map(on_node));
        entries
    }
}

impl Cached for ReplicaSet {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata);
    }

    fn index(&self) -> Vec<String> {
        vec![owner_entry(&self.metadata)]
    }
}

macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Cached for $kind {
            fn metadata(&self) -> &ObjectMeta {
                Metadata::metadata(self)
            }

            fn trim(&mut self) {
                trim_metadata(&mut self.metadata);
            }
        }
    )*};
}

plain!(
    ClusterRole,
    Deployment,
    Lease,
    Namespace,
    Service,
    EndpointSlice,
    ResourceQuota,
    PodDisruptionBudget
);

impl Cached for Node {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata);
        if let Some(status) = self.status.as_mut() {
            status.images = None;
            status.node_info = None;
        }
    }
}

/// A `ConfigMap` or a Secret, of which few have contents that anybody reads here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Contents {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    /// As in JSON: of a Secret in base64.
    #[serde(default)]
    pub(crate) data: BTreeMap<String, String>,
}

/// The index entry of the Secrets that hold a service account's token.
pub(crate) fn of_account(namespace: &str, name: &str) -> String {
    format!("account/{namespace}/{name}")
}

impl Cached for Contents {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn trim(&mut self) {
        let is_token = matches!(self.kind.as_str(), TOKEN | BOOTSTRAP);
        let is_certificate = self.kind.is_empty() && self.metadata.name.as_deref() == Some(CERTIFICATE);
        let annotations = self.metadata.annotations.take().filter(|_| is_token);
        let created = self.metadata.creation_timestamp.take().filter(|_| is_token);
        trim_all(&mut self.metadata);
        self.metadata.annotations = annotations;
        self.metadata.creation_timestamp = created;
        if !is_token && !is_certificate {
            self.data = BTreeMap::new();
        }
    }

    fn index(&self) -> Vec<String> {
        let account = self.metadata.annotations.as_ref().and_then(|all| all.get(ACCOUNT_NAME));
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        account
            .map(|account| of_account(namespace, account))
            .into_iter()
            .collect()
    }
}

/// An object of which only the metadata matters.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Partial {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Cached for Partial {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn trim(&mut self) {
        trim_all(&mut self.metadata);
    }
}

fn hear<K: Cached>(
    cache: &Cache<K>,
    resource: Resource,
    listener: impl Fn(Resource, &Change<'_, ObjectMeta>) + Send + Sync + 'static,
) {
    cache.listen(move |change| {
        let change = Change {
            old: change.old.map(Cached::metadata),
            new: change.new.map(Cached::metadata),
        };
        listener(resource, &change);
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
    KINDS.iter().filter(|row| row.verbs == Verbs::All).map(resource_of)
}

/// The kinds of which metadata is enough. Events own nothing and are not owned.
fn partial_kinds() -> impl Iterator<Item = Resource> {
    const TYPED: [Resource; 13] = [
        step::CLUSTER_ROLES,
        step::PODS,
        step::REPLICA_SETS,
        step::DEPLOYMENTS,
        step::NODES,
        step::NAMESPACES,
        step::SERVICES,
        step::LEASES,
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
    pub(crate) deployments: Arc<Cache<Deployment>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) namespaces: Arc<Cache<Namespace>>,
    pub(crate) services: Arc<Cache<Service>>,
    pub(crate) leases: Arc<Cache<Lease>>,
    pub(crate) endpoint_slices: Arc<Cache<EndpointSlice>>,
    pub(crate) quotas: Arc<Cache<ResourceQuota>>,
    pub(crate) budgets: Arc<Cache<PodDisruptionBudget>>,
    pub(crate) cluster_roles: Arc<Cache<ClusterRole>>,
    pub(crate) config_maps: Arc<Cache<Contents>>,
    pub(crate) secrets: Arc<Cache<Contents>>,
    /// The kinds of which only metadata is kept.
    pub(crate) partial: BTreeMap<Resource, Arc<Cache<Partial>>>,
}

impl Caches {
    pub(crate) fn new() -> Self {
        Self {
            pods: Cache::new(),
            replica_sets: Cache::new(),
            deployments: Cache::new(),
            nodes: Cache::new(),
            namespaces: Cache::new(),
            services: Cache::new(),
            leases: Cache::new(),
            endpoint_slices: Cache::new(),
            quotas: Cache::new(),
            budgets: Cache::new(),
            cluster_roles: Cache::new(),
            config_maps: Cache::new(),
            secrets: Cache::new(),
            partial: partial_kinds().map(|resource| (resource, Cache::new())).collect(),
        }
    }

    /// Calls `listener` with the metadata of every object of every kind that can own or be owned.
    pub(crate) fn listen_to_all(
        &self,
        listener: impl Fn(Resource, &Change<'_, ObjectMeta>) + Clone + Send + Sync + 'static,
    ) {
        hear(&self.pods, step::PODS, listener.clone());
        hear(&self.replica_sets, step::REPLICA_SETS, listener.clone());
        hear(&self.deployments, step::DEPLOYMENTS, listener.clone());
        hear(&self.nodes, step::NODES, listener.clone());
        hear(&self.namespaces, step::NAMESPACES, listener.clone());
        hear(&self.services, step::SERVICES, listener.clone());
        hear(&self.leases, step::LEASES, listener.clone());
        hear(&self.endpoint_slices, step::ENDPOINT_SLICES, listener.clone());
        hear(&self.quotas, step::RESOURCE_QUOTAS, listener.clone());
        hear(&self.budgets, step::DISRUPTION_BUDGETS, listener.clone());
        hear(&self.cluster_roles, step::CLUSTER_ROLES, listener.clone());
        hear(&self.config_maps, step::CONFIG_MAPS, listener.clone());
        hear(&self.secrets, step::SECRETS, listener.clone());
        for (resource, cache) in &self.partial {
            hear(cache, *resource, listener.clone());
        }
    }

    /// Waits until every kind has been listed: a plan on half a world would make things twice.
    pub(crate) async fn synced(&self) {
        self.pods.synced().await;
        self.replica_sets.synced().await;
        self.deployments.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.services.synced().await;
        self.leases.synced().await;
        self.endpoint_slices.synced().await;
        self.quotas.synced().await;
        self.budgets.synced().await;
        self.cluster_roles.synced().await;
        self.config_maps.synced().await;
        self.secrets.synced().await;
        for cache in self.partial.values() {
            cache.synced().await;
        }
    }

    /// The cache of a resource, if it has one.
    pub(crate) fn of(&self, resource: &Resource) -> Option<&dyn Progress> {
        let typed: [(&Resource, &dyn Progress); 13] = [
            (&step::CLUSTER_ROLES, &*self.cluster_roles),
            (&step::PODS, &*self.pods),
            (&step::REPLICA_SETS, &*self.replica_sets),
            (&step::DEPLOYMENTS, &*self.deployments),
            (&step::NODES, &*self.nodes),
            (&step::NAMESPACES, &*self.namespaces),
            (&step::SERVICES, &*self.services),
            (&step::LEASES, &*self.leases),
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
