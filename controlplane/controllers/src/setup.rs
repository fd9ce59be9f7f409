//! Creates caches, watches and controllers, and starts them: the table of contents of this crate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::go::architecture;
use futures::FutureExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::accounts::{self, RootCertificates, TokenSecrets};
use crate::access::{aggregation, certificates, signer};
use crate::machinery::cache::Key;
use crate::machinery::driver::{self, Context, Controller};
use crate::machinery::events::{self, Recorder};
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;
use crate::network::{cluster_dns, endpoints, load_balancers, service_ranges};
use crate::node::{nodes, pod_gc, ttl};
use crate::objects::{garbage, namespaces, quotas};
use crate::scheduler::{self, Scheduler};
use crate::storage::protection::{self, Guard};
use crate::storage::{attach_detach, ephemeral, provisioner, volumes};
use crate::workloads::{
    autoscaling, cron_jobs, daemon_sets, deployments, disruption, jobs, replica_sets, stateful_sets,
};
use crate::{Clients, Options};

/// Prefix of the controllers' service accounts.
const HOME: &str = "system:serviceaccount:kube-system:";
/// User of the shared watches.
const MANAGER: &str = "system:kube-controller-manager";

/// Accounts whose names differ from the source of their events.
const GARBAGE: &str = "generic-garbage-collector";
const PROVISIONER: &str = "local-path-provisioner";

/// Handles for start-up.
struct Setup<'a> {
    clients: &'a Clients,
    options: &'a Options,
    caches: Arc<Caches>,
    recorder: Recorder,
    tasks: JoinSet<()>,
}

/// Running tasks.
pub(crate) struct Started {
    /// All tasks but the writer.
    pub(crate) tasks: JoinSet<()>,
    /// Writer of the events, which runs a little longer than the others.
    pub(crate) writer: JoinSet<()>,
    /// Tells the writer to finish.
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
        caches: caches.clone(),
        recorder,
        tasks: JoinSet::new(),
    };
    let mut writing = JoinSet::new();
    writing.spawn(writer.run(components(clients, options.version)));

    setup.workloads(&caches);
    setup.controllers(&caches);
    setup.workers(&caches);
    setup.credentials(&caches);
    let scheduler = Scheduler::listen(&caches);
    options.metrics.watch_scheduler(scheduler.clone());
    let context = setup.context(events::SCHEDULER);
    setup.spawn(scheduler::run(scheduler, context));

    // Watches start last: all listeners are registered by now.
    for reflecting in caches.reflect_all(&client(clients, options.version, MANAGER), cancel) {
        setup.tasks.spawn(reflecting);
    }
    Started {
        tasks: setup.tasks,
        writer: writing,
        ending,
    }
}

impl Setup<'_> {
    /// Workload controllers: source of events, queue, and plan.
    fn workloads(&mut self, caches: &Arc<Caches>) {
        self.add(
            "deployment-controller",
            deployments::listen(caches),
            deployments::Deployments,
        );
        self.add(
            "replicaset-controller",
            replica_sets::listen(caches),
            replica_sets::ReplicaSets,
        );
        self.add(
            "statefulset-controller",
            stateful_sets::listen(caches),
            stateful_sets::StatefulSets::new,
        );
        self.add(
            "daemonset-controller",
            daemon_sets::listen(caches),
            daemon_sets::DaemonSets::new,
        );
        let queue = replica_sets::listen_to_replication_controllers(caches);
        self.add("replication-controller", queue, replica_sets::ReplicationControllers);
        let metrics = self.options.metrics.jobs();
        metrics.follow(caches, (self.options.clock)());
        self.add("job-controller", jobs::listen(caches), |caches| {
            jobs::Jobs::new(caches, metrics)
        });
        self.add("job-controller", jobs::listen_orphans(caches), jobs::Orphans);
        let queue = jobs::listen_ended(caches);
        self.add("ttl-after-finished-controller", queue, jobs::Ended);
        self.add(
            "cronjob-controller",
            cron_jobs::listen(caches),
            cron_jobs::CronJobs::new,
        );
    }

    /// Other controllers that consist of a plan.
    fn controllers(&mut self, caches: &Arc<Caches>) {
        self.add(
            "clusterrole-aggregation-controller",
            aggregation::listen(caches),
            aggregation::Aggregation,
        );
        self.add(
            "endpoint-slice-controller",
            endpoints::listen(caches),
            endpoints::EndpointSlices,
        );
        self.add(
            "endpoint-controller",
            endpoints::listen_legacy(caches),
            endpoints::Legacy,
        );
        self.add(
            "endpoint-slice-mirroring-controller",
            endpoints::listen_mirror(caches),
            endpoints::Mirror,
        );
        self.add(
            "cluster-dns-controller",
            cluster_dns::listen(caches),
            cluster_dns::ClusterDns,
        );
        self.add(
            "service-account-controller",
            accounts::listen_accounts(caches),
            accounts::ServiceAccounts,
        );
        self.add("pod-garbage-collector", pod_gc::listen(caches), pod_gc::PodGc::new);
        self.add(
            "controllermanager",
            disruption::listen(caches),
            disruption::Disruption::new,
        );
        let queue = disruption::listen_stale(caches);
        self.add("controllermanager", queue, disruption::StaleDisruption);
        self.add(
            "service-cidrs-controller",
            service_ranges::listen(caches),
            service_ranges::ServiceRanges,
        );
        if let Some(addresses) = self.options.load_balancer_addresses.clone() {
            self.add("service-controller", load_balancers::listen(caches), |caches| {
                load_balancers::LoadBalancers { caches, addresses }
            });
        }
        self.add(volumes::COMPONENT, volumes::listen_claims(caches), volumes::Claims::new);
        self.add(
            volumes::COMPONENT,
            volumes::listen_volumes(caches),
            volumes::Volumes::new,
        );
        let queue = attach_detach::listen(caches);
        self.add(attach_detach::COMPONENT, queue, attach_detach::AttachDetach::new);
        self.add(ephemeral::COMPONENT, ephemeral::listen(caches), ephemeral::Ephemeral);
        let (garbage, queue, defined) = garbage::listen(caches);
        self.add("garbage-collector-controller", queue, |_| garbage);
        let context = self.context(GARBAGE);
        self.spawn(defined.follow(context));
        let (ttl, queue) = ttl::listen(caches);
        self.add("ttl-controller", queue, |_| ttl);
        let ranges = self.options.pod_ranges.clone();
        self.add("node-controller", nodes::listen(caches), |caches| {
            nodes::Nodes::new(caches, ranges)
        });
    }

    /// Controllers with their own loops.
    fn workers(&mut self, caches: &Arc<Caches>) {
        self.work(
            "horizontal-pod-autoscaler",
            autoscaling::listen(caches),
            autoscaling::run,
        );
        self.work("resourcequota-controller", quotas::listen(caches), quotas::run);
        for (guard, account) in [
            (Guard::Claims, "pvc-protection-controller"),
            (Guard::Volumes, "pv-protection-controller"),
            (Guard::AttributesClasses, "volumeattributesclass-protection-controller"),
        ] {
            let queue = protection::listen(caches, guard);
            self.work(account, queue, |context, queue| protection::run(context, queue, guard));
        }
        self.work("bootstrap-signer", signer::listen(caches), signer::run);
        self.work("namespace-controller", namespaces::listen(caches), namespaces::run);
        self.work(PROVISIONER, provisioner::listen(caches), provisioner::run);
    }

    /// Controllers that need the credentials of service accounts and nodes.
    fn credentials(&mut self, caches: &Arc<Caches>) {
        let Some(credentials) = self.options.credentials.clone() else {
            return;
        };
        let certificate = credentials.certificate.clone();
        let publisher = |caches| RootCertificates { caches, certificate };
        self.add(
            "root-ca-certificate-publisher",
            accounts::listen_certificates(caches),
            publisher,
        );
        let secrets = |caches| TokenSecrets {
            caches,
            certificate: credentials.certificate,
            sign: credentials.sign,
            asked: Mutex::default(),
        };
        self.add(
            "serviceaccount-token-controller",
            accounts::listen_secrets(caches),
            secrets,
        );
        let (certify, names) = (credentials.certify, credentials.names);
        let certificates = |context, queue| certificates::run(context, queue, certify, names);
        self.work("certificate-controller", certificates::listen(caches), certificates);
        let manager = client(self.clients, self.options.version, MANAGER);
        let context = self.context("legacy-service-account-token-cleaner");
        self.spawn(accounts::legacy_tokens::run(context, manager));
    }

    fn context(&self, account: &str) -> Context {
        Context {
            client: client(self.clients, self.options.version, account),
            caches: self.caches.clone(),
            recorder: self.recorder.clone(),
            clock: self.options.clock.clone(),
        }
    }

    fn add<C: Controller>(
        &mut self,
        component: &'static str,
        queue: Arc<Queue<Key>>,
        make: impl FnOnce(Arc<Caches>) -> C,
    ) {
        let controller = make(self.caches.clone());
        self.work(account_of(component), queue, |context, queue| {
            driver::run(Arc::new(controller), component, context, queue)
        });
    }

    fn work<T, F>(&mut self, account: &str, queue: Arc<Queue<T>>, run: impl FnOnce(Context, Arc<Queue<T>>) -> F)
    where
        T: Ord + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.options.metrics.watch(queue.clone());
        let context = self.context(account);
        self.spawn(run(context, queue));
    }

    /// Boxes the future: tokio's code for a task is compiled for each type.
    fn spawn(&mut self, running: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(running.boxed());
    }
}

/// Client of a component: a service account of kube-system, unless the name contains a full user
/// name.
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

/// Returns a client for each component that records events.
fn components(clients: &Clients, version: &'static str) -> events::Components {
    let (clients, made) = (clients.clone(), Mutex::new(BTreeMap::<String, kube::Client>::new()));
    Arc::new(move |component| {
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(component.to_owned())
            .or_insert_with(|| client(&clients, version, account_of(component)))
            .clone()
    })
}

/// Service account of an event source.
fn account_of(component: &str) -> &str {
    match component {
        "garbage-collector-controller" => GARBAGE,
        "endpoint-slice-controller" => "endpointslice-controller",
        "endpoint-slice-mirroring-controller" => "endpointslicemirroring-controller",
        "root-ca-certificate-publisher" => "root-ca-cert-publisher",
        "serviceaccount-token-controller" => MANAGER,
        "controllermanager" => "disruption-controller",
        volumes::COMPONENT => "persistent-volume-binder",
        provisioner::COMPONENT => PROVISIONER,
        provisioner::EXPANDER => "expand-controller",
        ephemeral::COMPONENT => "ephemeral-volume-controller",
        "daemonset-controller" => "daemon-set-controller",
        events::TAINT_EVICTION => "node-controller",
        own => own,
    }
}
