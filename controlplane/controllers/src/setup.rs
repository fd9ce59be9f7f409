//! Builds caches, watches and controllers, and starts them: the table of contents of this crate.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use controlplane_plan::step::{self, Resource};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Clients, Options,
    accounts::{self, RootCertificates, ServiceAccounts, TokenSecrets},
    aggregation::{self, Aggregation},
    cache::{Cache, Key},
    certificates,
    deployments::{self, Deployments},
    disruption::{self, Disruption},
    driver::{self, Context, Controller},
    endpoints::{self, EndpointSlices, Legacy, Mirror},
    ephemeral::{self, Ephemeral},
    events::{self, Recorder},
    garbage,
    kinds::{Cached, Caches},
    namespaces,
    nodes::{self, Leftovers, Nodes},
    protection::{self, Guard},
    provisioner,
    queue::Queue,
    quotas, reflector,
    replica_sets::{self, ReplicaSets, ReplicationControllers},
    scheduler::{self, Scheduler},
    service_ranges::{self, ServiceRanges},
    signer, ttl,
    volumes::{self, Claims, Volumes},
};

/// The namespace of the controllers' service accounts.
const HOME: &str = "system:serviceaccount:kube-system:";
/// Who the shared watches are.
const MANAGER: &str = "system:kube-controller-manager";

/// The accounts that are not named like the source of their events.
const GARBAGE: &str = "generic-garbage-collector";
const SLICES: &str = "endpointslice-controller";
const MIRROR: &str = "endpointslicemirroring-controller";
const BINDER: &str = "persistent-volume-binder";
const PROVISIONER: &str = "local-path-provisioner";
const EPHEMERAL: &str = "ephemeral-volume-controller";

/// What start-up hands around.
struct Setup<'a> {
    clients: &'a Clients,
    options: &'a Options,
    cancel: &'a CancellationToken,
    caches: Arc<Caches>,
    recorder: Recorder,
    tasks: JoinSet<()>,
}

/// What runs.
pub(crate) struct Started {
    /// All but the writer.
    pub(crate) tasks: JoinSet<()>,
    /// What writes their events, for as long as they run and a little longer.
    pub(crate) writer: JoinSet<()>,
    /// Tells the writer to come to its end.
    pub(crate) ending: CancellationToken,
}

/// Starts everything.
pub(crate) fn start(clients: &Clients, options: &Options, cancel: &CancellationToken) -> Started {
    let ending = CancellationToken::new();
    let (recorder, writer) = Recorder::new(options.clock.clone(), options.machine.clone(), ending.clone());
    let caches = Arc::new(Caches::new());
    let mut setup = Setup {
        clients,
        options,
        cancel,
        caches: caches.clone(),
        recorder,
        tasks: JoinSet::new(),
    };
    let mut writing = JoinSet::new();
    writing.spawn(writer.run(components(clients, options.version)));

    let queue = deployments::listen(&caches);
    setup.controller(Deployments(caches.clone()), "deployment-controller", queue);
    let queue = replica_sets::listen(&caches);
    setup.controller(ReplicaSets(caches.clone()), "replicaset-controller", queue);
    let queue = replica_sets::listen_to_elders(&caches);
    setup.controller(ReplicationControllers(caches.clone()), "replication-controller", queue);

    let queue = aggregation::listen(&caches);
    setup.controller(Aggregation(caches.clone()), "clusterrole-aggregation-controller", queue);
    setup.endpoints();
    setup.accounts();
    let (garbage, queue) = garbage::listen(&caches);
    setup.controller(garbage, GARBAGE, queue);
    let queue = nodes::listen(&caches);
    setup.controller(
        Nodes::new(caches.clone(), options.pod_ranges.clone()),
        "node-controller",
        queue,
    );
    let queue = nodes::listen_leftovers(&caches);
    setup.controller(Leftovers::new(caches.clone()), "pod-garbage-collector", queue);
    setup.keepers(&caches);
    setup.storage(&caches);
    let scheduler = Scheduler::listen(&caches);
    options.metrics.watch_scheduler(scheduler.clone());
    let context = setup.context(events::SCHEDULER);
    setup.tasks.spawn(scheduler::run(scheduler, context));

    // Watches start last: by now everybody listens.
    setup.reflect(&caches.deployments, step::DEPLOYMENTS);
    setup.reflect(&caches.replica_sets, step::REPLICA_SETS);
    setup.reflect(&caches.replication_controllers, step::REPLICATION_CONTROLLERS);
    setup.reflect(&caches.pods, step::PODS);
    setup.reflect(&caches.nodes, step::NODES);
    setup.reflect(&caches.namespaces, step::NAMESPACES);
    setup.reflect(&caches.services, step::SERVICES);
    setup.reflect(&caches.leases, step::LEASES);
    setup.reflect(&caches.endpoints, step::ENDPOINTS);
    setup.reflect(&caches.endpoint_slices, step::ENDPOINT_SLICES);
    setup.reflect(&caches.quotas, step::RESOURCE_QUOTAS);
    setup.reflect(&caches.budgets, step::DISRUPTION_BUDGETS);
    setup.reflect(&caches.cluster_roles, step::CLUSTER_ROLES);
    setup.reflect(&caches.config_maps, step::CONFIG_MAPS);
    setup.reflect(&caches.secrets, step::SECRETS);
    setup.reflect(&caches.claims, step::CLAIMS);
    setup.reflect(&caches.volumes, step::VOLUMES);
    setup.reflect(&caches.storage_classes, step::STORAGE_CLASSES);
    setup.reflect(&caches.service_ranges, step::SERVICE_RANGES);
    for (resource, cache) in &caches.partial {
        setup.reflect(cache, *resource);
    }
    Started {
        tasks: setup.tasks,
        writer: writing,
        ending,
    }
}

impl Setup<'_> {
    /// Starts those that tell what answers for Services.
    fn endpoints(&mut self) {
        let caches = self.caches.clone();
        let queue = endpoints::listen(&caches);
        self.controller(EndpointSlices(caches.clone()), SLICES, queue);
        let queue = endpoints::listen_legacy(&caches);
        self.controller(Legacy(caches.clone()), "endpoint-controller", queue);
        let queue = endpoints::listen_mirror(&caches);
        self.controller(Mirror(caches), MIRROR, queue);
    }

    /// Starts those that keep quotas and budgets, and see things out.
    fn keepers(&mut self, caches: &Arc<Caches>) {
        let queue = disruption::listen(caches);
        self.controller(Disruption(caches.clone()), "disruption-controller", queue);
        let queue = quotas::listen(caches);
        self.measure(&queue);
        let context = self.context("resourcequota-controller");
        self.tasks.spawn(quotas::run(context, queue));
        for (guard, account) in [
            (Guard::Claims, "pvc-protection-controller"),
            (Guard::Volumes, "pv-protection-controller"),
        ] {
            let queue = protection::listen(caches, guard);
            self.measure(&queue);
            let context = self.context(account);
            self.tasks.spawn(protection::run(context, queue, guard));
        }
        let queue = service_ranges::listen(caches);
        self.controller(ServiceRanges(caches.clone()), "service-cidrs-controller", queue);
        let (ttl, queue) = ttl::listen(caches);
        self.controller(ttl, "ttl-controller", queue);
        let queue = signer::listen(caches);
        self.measure(&queue);
        let context = self.context("bootstrap-signer");
        self.tasks.spawn(signer::run(context, queue));
        let queue = namespaces::listen(caches);
        self.measure(&queue);
        let context = self.context("namespace-controller");
        self.tasks.spawn(namespaces::run(context, queue));
    }

    /// Starts those that bind claims, make volumes, and remove them.
    fn storage(&mut self, caches: &Arc<Caches>) {
        let queue = volumes::listen_claims(caches);
        self.controller(Claims::new(caches.clone()), BINDER, queue);
        let queue = volumes::listen_volumes(caches);
        self.controller(Volumes::new(caches.clone()), BINDER, queue);
        let queue = ephemeral::listen(caches);
        self.controller(Ephemeral(caches.clone()), EPHEMERAL, queue);
        let queue = provisioner::listen(caches);
        self.measure(&queue);
        let context = self.context(PROVISIONER);
        self.tasks.spawn(provisioner::run(context, queue));
    }

    fn measure<T: Ord + Clone + Send + 'static>(&self, queue: &Arc<Queue<T>>) {
        self.options.metrics.watch(queue.clone());
    }

    fn context(&self, account: &str) -> Context {
        Context {
            client: client(self.clients, self.options.version, account),
            caches: self.caches.clone(),
            recorder: self.recorder.clone(),
            clock: self.options.clock.clone(),
        }
    }

    fn controller<C: Controller>(&mut self, controller: C, account: &str, queue: Arc<Queue<Key>>) {
        self.measure(&queue);
        let context = self.context(account);
        self.tasks.spawn(driver::run(Arc::new(controller), context, queue));
    }

    /// What service accounts need.
    fn accounts(&mut self) {
        let caches = self.caches.clone();
        let queue = accounts::listen_accounts(&caches);
        self.controller(ServiceAccounts(caches.clone()), "service-account-controller", queue);
        let Some(credentials) = self.options.credentials.clone() else {
            return;
        };
        let queue = accounts::listen_certificates(&caches);
        let publisher = RootCertificates {
            caches: caches.clone(),
            certificate: credentials.certificate.clone(),
        };
        self.controller(publisher, "root-ca-cert-publisher", queue);
        let queue = accounts::listen_secrets(&caches);
        let secrets = TokenSecrets {
            caches,
            certificate: credentials.certificate,
            sign: credentials.sign,
            asked: Mutex::default(),
        };
        self.controller(secrets, MANAGER, queue);
        let queue = certificates::listen(&self.caches);
        self.measure(&queue);
        let context = self.context("certificate-controller");
        let run = certificates::run(context, queue, credentials.certify, credentials.names);
        self.tasks.spawn(run);
    }

    fn reflect<K: Cached>(&mut self, cache: &Arc<Cache<K>>, resource: Resource) {
        let client = client(self.clients, self.options.version, MANAGER);
        self.tasks
            .spawn(reflector::run(cache.clone(), client, resource, self.cancel.clone()));
    }
}

/// The client of a component: a service account of kube-system, unless its name says more.
fn client(clients: &Clients, version: &str, account: &str) -> kube::Client {
    let platform = format!(
        "{version} ({}/{}) kubernetes/skiff",
        std::env::consts::OS,
        architecture()
    );
    if account == events::SCHEDULER {
        return clients("system:kube-scheduler", &format!("kube-scheduler/{platform}/scheduler"));
    }
    if account.starts_with("system:") {
        return clients(account, &format!("kube-controller-manager/{platform}/shared-informers"));
    }
    let user = format!("{HOME}{account}");
    clients(&user, &format!("kube-controller-manager/{platform}/{user}"))
}

/// The architecture as Kubernetes spells it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// One client for each component that records events.
fn components(clients: &Clients, version: &'static str) -> events::Components {
    let (clients, made) = (clients.clone(), Mutex::new(BTreeMap::<String, kube::Client>::new()));
    Arc::new(move |component| {
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(component.to_owned())
            .or_insert_with(|| client(&clients, version, account_of(component)))
            .clone()
    })
}

/// The service account of an event's source.
fn account_of(component: &str) -> &str {
    match component {
        "garbage-collector-controller" => GARBAGE,
        "endpoint-slice-controller" => SLICES,
        "endpoint-slice-mirroring-controller" => MIRROR,
        volumes::COMPONENT => BINDER,
        provisioner::COMPONENT => PROVISIONER,
        ephemeral::COMPONENT => EPHEMERAL,
        own => own,
    }
}
