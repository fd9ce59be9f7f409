//! The node agent against the real server, in one process: the runtime, the network and time are simulated.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may fail like tests"
)]

use std::sync::Arc;
use std::time::Duration;

use agent::{Clock, Config, Parts};
use agent_plan::node::registration::Registration;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Taint};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use network::Network;
use runtime::Runtime;
use server::authn::identity::{MASTERS, User, assume};
use server::{Options, Server};
use store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[path = "node/back_off.rs"]
mod back_off;
#[path = "node/lost.rs"]
mod lost;
#[path = "node/preempted.rs"]
mod preempted;
#[path = "node/told.rs"]
mod told;

struct World {
    server: Server,
    runtime: Arc<runtime::Sim>,
    network: Arc<network::Sim>,
    directory: tempfile::TempDir,
    clock: Clock,
    ranges: &'static str,
    addresses: &'static [&'static str],
    registration: Registration,
    agent: Option<(CancellationToken, JoinHandle<()>)>,
}

impl World {
    async fn start() -> Self {
        Self::with("10.1.0.0/24", &["192.0.2.1"]).await
    }

    async fn with(ranges: &'static str, addresses: &'static [&'static str]) -> Self {
        let store = Store::in_memory(store::Options {
            index: server::storage::index,
            class: server::storage::class,
            ..store::Options::default()
        });
        let (began, start) = (
            tokio::time::Instant::now(),
            "2030-01-01T00:00:00Z".parse::<Timestamp>().unwrap(),
        );
        let clock: Clock = Arc::new(move || start + SignedDuration::try_from(began.elapsed()).unwrap());
        let own = Arc::clone(&clock);
        let server = Server::new(store, Options::new(Arc::new(move || own())));
        server.bootstrap().await.unwrap();
        let mut world = Self {
            server,
            runtime: Arc::new(runtime::Sim::new()),
            network: Arc::new(network::Sim::new()),
            directory: tempfile::tempdir().unwrap(),
            clock,
            ranges,
            addresses,
            registration: Registration::default(),
            agent: None,
        };
        let admin = User::new("kubernetes-admin", ["system:masters"]);
        tests::accounts::quiet(world.client(admin)).await.unwrap();
        world.start_agent().await;
        world
    }

    fn client(&self, user: User) -> kube::Client {
        kube::Client::new(assume(user, "test", self.server.router()), "default")
    }

    async fn start_agent(&mut self) {
        let config = Config {
            node_name: "n1".to_owned(),
            state_directory: self.directory.path().to_owned(),
            logs: agent::log_files::LogFiles::new(self.directory.path(), None),
            kubelet_directory: self.directory.path().join("kubelet"),
            spares: 0,
            pod_cidr: (!self.ranges.is_empty()).then(|| self.ranges.parse().unwrap()),
            addresses: self.addresses.iter().map(|address| address.parse().unwrap()).collect(),
            port: 10250,
            max_pods: 110,
            upkeep: agent::Upkeep::default(),
            shutdown: agent_plan::node::shutdown::Grace::default(),
            dns: agent_plan::container::files::ClusterDns {
                servers: vec!["10.96.0.10".to_owned()],
                domain: "cluster.local".to_owned(),
            },
            resolv_conf: None,
            server: None,
            service_proxy: None,
            network_policies: None,
            secrets_in_memory: true,
            instance_id: None,
            registration: self.registration.clone(),
            flags: Vec::new(),
        };
        let parts = Parts {
            client: self.client(User::new("system:node:n1", ["system:nodes", "system:authenticated"])),
            runtime: Arc::clone(&self.runtime) as Arc<dyn Runtime>,
            network: Arc::clone(&self.network) as Arc<dyn Network>,
            images: Arc::new(agent::images::Sim),
            clock: Arc::clone(&self.clock),
        };
        let (context, events) = agent::context(config, parts).unwrap();
        let cancel = CancellationToken::new();
        let own = cancel.clone();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "the test ends it by its handle")]
        let task = tokio::spawn(async move {
            let ended = Box::pin(agent::run(context, events, own, move || {
                assert!(ready.send(()).is_ok());
            }))
            .await;
            assert!(matches!(ended, Err(agent::Error::Cancelled)), "{ended:?}");
        });
        is_ready.await.unwrap();
        self.agent = Some((cancel, task));
    }

    async fn stop_agent(&mut self) {
        let (cancel, task) = self.agent.take().unwrap();
        cancel.cancel();
        task.await.unwrap();
    }

    fn admin(&self) -> kube::Client {
        self.client(User::new("kubernetes-admin", [MASTERS]))
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.admin())
    }

    async fn create(&self, name: &str, spec: &str) {
        let text = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
        let mut pod: Pod = serde_json::from_str(&text).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Waits, in virtual time, until the pod has the wanted state.
    async fn until(&self, name: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let mut last = None;
        for _ in 0..2000 {
            last = self.pods().get_opt(name).await.unwrap();
            if let Some(pod) = &last
                && wanted(pod)
            {
                return pod.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "not reached: {}",
            serde_json::to_string_pretty(&last.map(|pod| pod.status)).unwrap()
        );
    }

    async fn gone(&self, name: &str) {
        for _ in 0..10_000 {
            if self.pods().get_opt(name).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} is still there");
    }

    async fn events(&self, name: &str) -> Vec<String> {
        // Events are sent with a delay: pods take precedence.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let api: Api<Event> = Api::default_namespaced(self.admin());
        let mut events = api.list(&ListParams::default()).await.unwrap().items;
        events.retain(|event| event.involved_object.name.as_deref() == Some(name));
        events.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        events
            .into_iter()
            .map(|event| format!("{}: {}", event.reason.unwrap(), event.message.unwrap()))
            .collect()
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count
}

fn container_id(pod: &Pod) -> String {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0]
        .container_id
        .clone()
        .unwrap()
}

const PLAIN: &str = r#"{"containers":[{"name":"a","image":"nginx:1"}]}"#;

#[tokio::test(start_paused = true)]
async fn the_node_registers_and_becomes_ready() {
    let world = World::start().await;
    let api: Api<Node> = Api::all(world.admin());
    let node = api.get("n1").await.unwrap();
    let status = node.status.unwrap();
    let conditions: Vec<String> = status
        .conditions
        .unwrap()
        .into_iter()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect();
    assert_eq!(
        conditions,
        [
            "MemoryPressure=False",
            "DiskPressure=False",
            "PIDPressure=False",
            "Ready=True"
        ]
    );
    // Taking it off is the node controller's, which this world lacks: a node may not touch its own taints.
    let taints = node.spec.unwrap().taints.unwrap();
    assert_eq!(taints.len(), 1, "{taints:?}");
    assert_eq!(taints[0].key, "node.kubernetes.io/not-ready");
    let addresses: Vec<String> = status
        .addresses
        .unwrap()
        .into_iter()
        .map(|address| address.address)
        .collect();
    assert_eq!(addresses, ["192.0.2.1", "n1"]);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(world.admin(), "kube-node-lease");
    let renewed = leases.get("n1").await.unwrap().spec.unwrap().renew_time.unwrap().0;
    assert!((world.clock)().duration_since(renewed) < SignedDuration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_what_its_operator_says_and_has_the_addresses_of_its_cloud() {
    let mut world = World::start().await;
    let nodes: Api<Node> = Api::all(world.admin());
    world.stop_agent().await;
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    let mut own = Taint {
        key: "only".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Taint::default()
    };
    world.registration = Registration {
        taints: vec![own.clone()],
        provider_id: Some("cloud://1".to_owned()),
        external_cloud: true,
        ..Registration::default()
    };
    world.start_agent().await;
    let node = nodes.get("n1").await.unwrap();
    let spec = node.spec.unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("cloud://1"));
    let mut taints = spec.taints.unwrap();
    let initialized = taints.pop().unwrap();
    assert_eq!(initialized.key, "node.cloudprovider.kubernetes.io/uninitialized");
    own.time_added.clone_from(&taints.last().unwrap().time_added);
    assert_eq!(taints.pop(), Some(own));
    let annotations = node.metadata.annotations.unwrap();
    assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "192.0.2.1");
    let stated = serde_json::json!([{"type": "ExternalIP", "address": "203.0.113.9"}]);
    let change = serde_json::json!({"status": {"addresses": stated}});
    let change = kube::api::Patch::Merge(change);
    nodes
        .patch_status("n1", &kube::api::PatchParams::default(), &change)
        .await
        .unwrap();
    world.stop_agent().await;
    world.start_agent().await;
    // Longer than an unchanged status is kept.
    tokio::time::sleep(Duration::from_mins(6)).await;
    let status = nodes.get("n1").await.unwrap().status.unwrap();
    assert_eq!(serde_json::to_value(status.addresses).unwrap(), stated);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_deleted_owns_its_next_lease() {
    let world = World::start().await;
    let nodes: Api<Node> = Api::all(world.admin());
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(world.admin(), "kube-node-lease");
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    // As the garbage collector does.
    leases.delete("n1", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (node, lease) = (nodes.get("n1").await.unwrap(), leases.get("n1").await.unwrap());
    assert_eq!(
        lease.metadata.owner_references.unwrap()[0].uid,
        node.metadata.uid.unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_restarts_and_goes() {
    let world = World::start().await;
    world.create("web", PLAIN).await;
    let pod = world.until("web", is_ready).await;
    let status = pod.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.2"));
    let conditions: Vec<String> = status
        .conditions
        .unwrap()
        .into_iter()
        .map(|condition| condition.type_)
        .collect();
    assert_eq!(
        conditions,
        [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
    let sandbox = world.runtime.sandboxes().await.unwrap().remove(0);
    assert!(world.runtime.kill(&sandbox.id, &sandbox.containers[0].id));
    let pod = world.until("web", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    let last = pod.status.unwrap().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("Error")));
    let events = world.events("web").await;
    assert_eq!(
        events[1..3],
        ["Created: Container created", "Started: Container started"],
        "{events:?}"
    );
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.gone("web").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.runtime.sandboxes().await.unwrap().is_empty());
    assert!(world.network.attachments().await.unwrap().is_empty());
    assert_eq!(
        std::fs::read_dir(world.directory.path().join("pods")).unwrap().count(),
        0
    );
    assert_eq!(
        std::fs::read_dir(world.directory.path().join("logs")).unwrap().count(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_two_families_tells_of_both_in_the_order_of_the_node() {
    let mut world = World::with("fd00:1::/64,10.1.0.0/24", &["192.0.2.1", "127.0.0.1", "2001:db8::1"]).await;
    let node = Api::<Node>::all(world.admin()).get("n1").await.unwrap();
    assert_eq!(node.spec.unwrap().pod_cidrs.unwrap(), ["fd00:1::/64", "10.1.0.0/24"]);
    world.create("web", PLAIN).await;
    let host = PLAIN.replacen('{', r#"{"hostNetwork":true,"#, 1);
    world.create("host", &host).await;
    let told = |pod: &Pod| {
        let status = pod.status.clone().unwrap();
        let pods: Vec<String> = status.pod_ips.into_iter().flatten().map(|one| one.ip).collect();
        let hosts: Vec<String> = status.host_ips.into_iter().flatten().map(|one| one.ip).collect();
        assert_eq!(
            (status.pod_ip.as_ref(), status.host_ip.as_ref()),
            (pods.first(), hosts.first())
        );
        format!("{} on {}", pods.join(" "), hosts.join(" "))
    };
    for again in [false, true] {
        let (web, host) = (world.until("web", is_ready).await, world.until("host", is_ready).await);
        assert_eq!(told(&web), "10.1.0.2 fd00:1::2 on 192.0.2.1 2001:db8::1", "{again}");
        assert_eq!(told(&host), "192.0.2.1 2001:db8::1 on 192.0.2.1 2001:db8::1", "{again}");
        let hosts = format!("pods/{}/etc/hosts", web.metadata.uid.unwrap());
        let hosts = std::fs::read_to_string(world.directory.path().join(hosts)).unwrap();
        assert!(hosts.contains("\n10.1.0.2\tweb\nfd00:1::2\tweb\n"), "{hosts}");
        world.stop_agent().await;
        world.start_agent().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_adopts_what_runs_and_removes_what_is_gone() {
    let mut world = World::start().await;
    world.create("stays", PLAIN).await;
    world.create("goes", PLAIN).await;
    let before = world.until("stays", is_ready).await;
    world.until("goes", is_ready).await;
    world.stop_agent().await;
    world
        .pods()
        .delete("goes", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    world.start_agent().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let after = world.until("stays", is_ready).await;
    assert_eq!(container_id(&before), container_id(&after));
    assert_eq!(restarts(&after), 0);
    assert_eq!(before.status, after.status, "nothing is reported twice");
    assert_eq!(world.runtime.sandboxes().await.unwrap().len(), 1);
    assert_eq!(world.network.attachments().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_named_and_waited_for() {
    let world = World::start().await;
    let spec = r#"{"containers":[{"name":"a","image":"i","env":[{"name":"X","valueFrom":{"configMapKeyRef":{"name":"cm","key":"k"}}}]}]}"#;
    world.create("web", spec).await;
    let waiting = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let waiting = statuses.first()?.state.as_ref()?.waiting.as_ref()?;
        Some((waiting.reason.clone()?, waiting.message.clone()?))
    };
    let pod = world.until("web", |pod| waiting(pod).is_some()).await;
    let expected = (
        "CreateContainerConfigError".to_owned(),
        "configmap \"cm\" not found".to_owned(),
    );
    assert_eq!(waiting(&pod), Some(expected));
    let map: ConfigMap = serde_json::from_str(r#"{"metadata":{"name":"cm"},"data":{"k":"v"}}"#).unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(world.admin());
    api.create(&PostParams::default(), &map).await.unwrap();
    world.until("web", is_ready).await;
}
