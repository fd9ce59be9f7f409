//! The node agent with each of its real runtimes and networks, and real images, as root in a network namespace of its own; the
//! server is in the same process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may fail like tests"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::{Config, Parts};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use network::{Bridge, Cni, Network};
use runtime::{Containerd, Embedded, Runtime};
use server::identity::{MASTERS, User, assume};
use server::{Options, Server};
use store::Store;
use tests::machine::Namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;

/// What the node is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    containerd: bool,
    cni: bool,
}

struct World {
    kind: Kind,
    /// The containerd of this test alone.
    daemon: Option<daemon::Daemon>,
    server: Server,
    images: image::Images,
    directory: tempfile::TempDir,
    agent: Option<(CancellationToken, JoinHandle<()>)>,
}

/// The control group of this test: named after its process, so that tests side by side have their own.
fn cgroup() -> String {
    format!("skiff-test-{}", std::process::id())
}

impl World {
    async fn start(kind: Kind) -> Self {
        let store = Store::in_memory(store::Options {
            index: server::storage::index,
            class: server::storage::class,
            ..store::Options::default()
        });
        let server = Server::new(store, Options::new(Arc::new(k8s_openapi::jiff::Timestamp::now)));
        server.bootstrap().await.unwrap();
        let directory = tempfile::Builder::new().prefix("skiff-agent-").tempdir().unwrap();
        let images = image::Images::open(&directory.path().join("images"), image::Config::default()).unwrap();
        let daemon = if kind.containerd {
            Some(daemon::Daemon::start(&directory.path().join("containerd")).await)
        } else {
            None
        };
        let mut world = Self {
            kind,
            daemon,
            server,
            images,
            directory,
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

    async fn runtime(&self) -> Arc<dyn Runtime> {
        let (state, program) = (
            self.directory.path().join("runtime"),
            tests::process::programs().unwrap().join("skiff-agent"),
        );
        if self.kind.containerd {
            let folder = self.directory.path().join("containerd");
            let (address, namespace) = (daemon::Daemon::address(&folder), daemon::Daemon::namespace(&folder));
            let mut configuration = runtime::ContainerdConfig::new(state, cgroup(), address, namespace);
            configuration.program = program;
            return Arc::new(Containerd::open(configuration).await.unwrap());
        }
        let mut configuration = runtime::Config::new(state, cgroup());
        configuration.program = program;
        Arc::new(Embedded::open(configuration).await.unwrap())
    }

    fn network(&self) -> Arc<dyn Network> {
        let state_dir = self.directory.path().join("network");
        if !self.kind.cni {
            return Arc::new(
                Bridge::open(network::Config {
                    state_dir,
                    bridge: "skifftest".to_owned(),
                    direct: Vec::new(),
                })
                .unwrap(),
            );
        }
        let conf_dir = self.directory.path().join("cni");
        let list = serde_json::json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cnitest", "isGateway": true, "capabilities": {"ipRanges": true},
             "ipam": {"type": "host-local", "dataDir": self.directory.path().join("ipam"), "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        std::fs::create_dir_all(&conf_dir).unwrap();
        std::fs::write(conf_dir.join("10-pods.conflist"), list.to_string()).unwrap();
        let configuration = network::CniConfig {
            state_dir,
            conf_dir,
            bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            time_limit: Duration::from_secs(30),
        };
        Arc::new(Cni::open(configuration).unwrap())
    }

    async fn start_agent(&mut self) {
        let config = Config {
            node_name: "n1".to_owned(),
            state_directory: self.directory.path().to_owned(),
            pod_cidr: Some("10.99.0.0/24".parse().unwrap()),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            port: 10250,
            max_pods: 110,
            upkeep: agent::Upkeep::default(),
            dns: agent_plan::files::ClusterDns::default(),
            server: None,
            secrets_in_memory: true,
            labels: std::collections::BTreeMap::new(),
        };
        let parts = Parts {
            client: self.client(User::new("system:node:n1", ["system:nodes", "system:authenticated"])),
            runtime: self.runtime().await,
            network: self.network(),
            images: Arc::new(self.images.clone()),
            clock: agent::clock::wall(),
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

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client(User::new("kubernetes-admin", [MASTERS])))
    }

    async fn until(&self, name: &str, wanted: impl Fn(Option<&Pod>) -> bool) -> Option<Pod> {
        let mut last = None;
        for _ in 0..2000 {
            last = self.pods().get_opt(name).await.unwrap();
            if wanted(last.as_ref()) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "not reached: {}",
            serde_json::to_string_pretty(&last.map(|pod| pod.status)).unwrap()
        );
    }

    async fn ready(&self, name: &str, restarts: i32) -> Pod {
        let wanted = |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            let statuses = status
                .and_then(|status| status.container_statuses.as_deref())
                .unwrap_or(&[]);
            !statuses.is_empty()
                && statuses
                    .iter()
                    .all(|status| status.ready && status.restart_count == restarts)
        };
        self.until(name, wanted).await.unwrap()
    }
}

async fn fetch(address: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect((address, 80)).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn identity(pod: &Pod) -> (String, String) {
    let status = pod.status.as_ref().unwrap();
    let container = &status.container_statuses.as_ref().unwrap()[0];
    (status.pod_ip.clone().unwrap(), container.container_id.clone().unwrap())
}

fn mounts_below(path: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .filter(|line| line.contains(path.to_str().unwrap()))
        .map(str::to_owned)
        .collect()
}

fn assert_no_address_is_held(world: &World) {
    let held = std::fs::read_dir(world.directory.path().join("ipam/pods"))
        .unwrap()
        .flatten();
    let held: Vec<_> = held
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("10."))
        .collect();
    assert!(held.is_empty(), "addresses are left: {held:?}");
}

async fn story(kind: Kind) {
    let mut world = World::start(kind).await;
    world
        .images
        .import(&tests::images::archive("nginx").unwrap())
        .await
        .unwrap();
    let name = world.images.list()[0].names[0].clone();
    let spec = serde_json::json!({
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [{
                "name": "nginx", "image": name,
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
                "resources": {"limits": {"memory": "64Mi", "cpu": "1"}},
            }],
        },
    });
    world
        .pods()
        .create(&PostParams::default(), &serde_json::from_value(spec).unwrap())
        .await
        .unwrap();
    let pod = world.ready("web", 0).await;
    let (address, container) = identity(&pod);
    assert!(fetch(&address).await.unwrap().starts_with("HTTP/1.1 200"));
    world.stop_agent().await;
    assert!(
        fetch(&address).await.unwrap().starts_with("HTTP/1.1 200"),
        "the pod outlives its agent"
    );
    world.start_agent().await;
    let adopted = world.ready("web", 0).await;
    assert_eq!(identity(&adopted), (address.clone(), container));
    let sandbox = world.runtime().await.sandboxes().await.unwrap().remove(0);
    let runtime::State::Running { pid, .. } = sandbox.containers[0].state else {
        panic!("{sandbox:?}")
    };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    world.ready("web", 1).await;
    assert!(fetch(&address).await.unwrap().starts_with("HTTP/1.1 200"));
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.until("web", |pod| pod.is_none()).await;
    world.stop_agent().await;
    assert_eq!(
        std::fs::read_dir(world.directory.path().join("pods")).unwrap().count(),
        0
    );
    nothing_is_left(world, kind).await;
}

async fn nothing_is_left(mut world: World, kind: Kind) {
    world.runtime().await.cleanup().await.unwrap();
    world.network().stop().await.unwrap();
    if let Some(daemon) = world.daemon.take() {
        daemon.finish().await;
    }
    assert_eq!(mounts_below(world.directory.path()), Vec::<String>::new());
    if kind.cni {
        assert_no_address_is_held(&world);
    }
    assert_eq!(
        tests::leaks::cgroups(&cgroup()).unwrap(),
        std::collections::BTreeSet::new()
    );
}

fn a_real_pod_serves_outlives_its_agent_restarts_and_goes(kind: Kind) {
    let name = format!("agent{}{}", u8::from(kind.containerd), u8::from(kind.cni));
    let namespace = Namespace::new(&name).unwrap();
    namespace.enter().unwrap();
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    executor.block_on(story(kind));
}

#[test]
fn embedded_and_bridge() {
    a_real_pod_serves_outlives_its_agent_restarts_and_goes(Kind {
        containerd: false,
        cni: false,
    });
}

#[test]
fn embedded_and_cni() {
    a_real_pod_serves_outlives_its_agent_restarts_and_goes(Kind {
        containerd: false,
        cni: true,
    });
}

#[test]
fn containerd_and_bridge() {
    a_real_pod_serves_outlives_its_agent_restarts_and_goes(Kind {
        containerd: true,
        cni: false,
    });
}

#[test]
fn containerd_and_cni() {
    a_real_pod_serves_outlives_its_agent_restarts_and_goes(Kind {
        containerd: true,
        cni: true,
    });
}
