//! What all parts of the agent share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::addresses::of_each_family;
use agent_plan::admission::Host;
use agent_plan::collection::Policy;
use agent_plan::environment::Surroundings;
use agent_plan::eviction::{Pressure, Thresholds};
use agent_plan::files::ClusterDns;
use agent_plan::oci::Abilities;
use agent_plan::reserve::Amounts;
use agent_plan::shutdown::Grace;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use network::{Network, Ranges};
use runtime::Runtime;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tracing::warn;
use volume::{LocalPath, Volumes};

use crate::apparmor::AppArmor;
use crate::begun::Begun;
use crate::crashes::Crashes;
use crate::events::{Kind, Recorder};
use crate::granted::Granted;
use crate::images;
use crate::measure::Memory;
use crate::milestones::{Milestones, Step};
use crate::names::Names;
use crate::node_routes::Routed;
use crate::objects::Objects;
use crate::policies::Admissions;
use crate::preempted::Preempted;
use crate::pressure::Order;
use crate::rights::Rights;
use crate::selinux::SeLinux;
use crate::serve::{Access, Asking, Looks, Probes};
use crate::services::{Programmed, ServiceProxy, Services, Slices};
use crate::tokens::Tokens;
use crate::users::UserIds;

/// Between two questions to a runtime that does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Reads the wall clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the operator says.
#[derive(Clone, Debug)]
pub struct Config {
    /// The Node's name.
    pub node_name: String,
    /// Where the agent keeps what is its own.
    pub state_directory: PathBuf,
    /// The pods' ranges; the Node's `spec.podCIDRs` where they are absent.
    pub pod_cidr: Option<Ranges>,
    /// The node's addresses, the first one first: pods tell of their addresses in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Port of the agent's own server, for the Node's `daemonEndpoints`.
    pub port: u16,
    /// How many pods the node takes.
    pub max_pods: u32,
    /// What keeps the node able to work.
    pub upkeep: Upkeep,
    /// How long the machine's end waits for pods.
    pub shutdown: Grace,
    /// Name resolution within the cluster.
    pub dns: ClusterDns,
    /// The file that tells the machine's name servers, where it is not the usual one; an empty path is that of none.
    pub resolv_conf: Option<PathBuf>,
    /// Where the API server is, for pods that speak to it by its Service.
    pub server: Option<SocketAddrV4>,
    /// Whether volumes that hold secrets lie in memory. They do, but for simulations, which may not mount.
    pub secrets_in_memory: bool,
    /// How traffic is led to Services; not at all where it is absent.
    pub service_proxy: Option<ServiceProxy>,
    /// Name of the kernel's tables of network policies, unique on the machine; they are left to others where it is absent.
    pub network_policies: Option<String>,
    /// An identifier of the machine, for an annotation of the Node.
    pub instance_id: Option<String>,
    /// Labels of the Node besides the usual ones.
    pub labels: BTreeMap<String, String>,
}

impl Config {
    /// `status.hostIPs`: an address of each family.
    pub(crate) fn host_addresses(&self) -> Vec<IpAddr> {
        self.in_order(&self.addresses)
    }

    /// An address of each family, in the order that the node's own are in.
    pub(crate) fn in_order(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        of_each_family(addresses, self.addresses.first().is_some_and(IpAddr::is_ipv6))
    }
}

/// When images are removed and pods have to go. By default never.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// When pods have to go.
    pub thresholds: Thresholds,
    /// When images have to.
    pub images: Policy,
    /// What is kept from pods for others on the machine.
    pub reserved: Vec<Amounts>,
    /// Processes that a pod may have.
    pub pod_pids: Option<i64>,
    /// Whether all pods together are held to what the node can give.
    pub enforce: bool,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            thresholds: Thresholds {
                all: Vec::new(),
                transition: 0,
                longest_grace: 0,
            },
            images: Policy {
                high: 100,
                low: 100,
                youth: 0,
            },
            reserved: Vec::new(),
            pod_pids: None,
            enforce: false,
        }
    }
}

/// The world that the agent acts on.
#[derive(Clone)]
pub struct Parts {
    /// The API, as `system:node:NAME`.
    pub client: Client,
    /// Runs containers.
    pub runtime: Arc<dyn Runtime>,
    /// Connects pods.
    pub network: Arc<dyn Network>,
    /// Has images.
    pub images: Arc<dyn images::Source>,
    /// Tells the time.
    pub clock: Clock,
}

/// Everything together, shared by all workers.
pub struct Context {
    pub(crate) config: Config,
    pub(crate) parts: Parts,
    pub(crate) volumes: Volumes,
    /// The persistent volumes that the node has itself.
    pub(crate) local_path: LocalPath,
    /// Who may use which images.
    pub(crate) rights: Rights,
    /// Who may ask the agent.
    pub(crate) access: Access,
    /// What is remembered of containers that failed.
    pub(crate) crashes: Crashes,
    /// For what pods have on the disk.
    pub(crate) spares: runtime::Spares,
    pub(crate) milestones: Milestones,
    /// What volumes show of the API.
    pub(crate) objects: Objects,
    /// The tokens of the pods' accounts.
    pub(crate) tokens: Tokens,
    /// Which ids of the node are users of pods.
    pub(crate) users: UserIds,
    /// Nothing until they are listed.
    pub(crate) services: watch::Sender<Option<Arc<Services>>>,
    /// EndpointSlices as the API shows them, where they are followed.
    pub(crate) slices: Mutex<Slices>,
    /// The cluster's name server on this node.
    pub(crate) names: Names,
    pub(crate) programmed: Programmed,
    /// Pods that wait for their network policies.
    pub(crate) admissions: Admissions,
    pub(crate) recorder: Recorder,
    pub(crate) machine: crate::machine::Machine,
    /// What pods may use of it.
    pub(crate) allocatable: Amounts,
    /// Pulls that may be under way at once.
    pub(crate) pulls: Semaphore,
    pub(crate) app_armor: AppArmor,
    pub(crate) se_linux: SeLinux,
    /// Containers that may be created at once: more only fight for the same cores.
    pub(crate) starts: Semaphore,
    /// Limits how many configurations of containers wait for their sandboxes.
    pub(crate) drafts: Arc<Semaphore>,
    /// The pods as the API shows them, for `/pods` and for logs.
    pub(crate) pods: Mutex<BTreeMap<String, Arc<Pod>>>,
    /// There are others, or they ask for something else.
    pub(crate) pods_changed: Notify,
    /// The machine is about to go down.
    pub(crate) shutting_down: watch::Sender<bool>,
    /// Where the pods' workers are told something.
    pub(crate) orders: OnceLock<mpsc::Sender<Order>>,
    /// What those that are here were given.
    pub(crate) granted: Granted,
    /// The uids of those that do not count for what others may have.
    pub(crate) discounted: Mutex<BTreeSet<String>>,
    /// Those that end for others.
    pub(crate) preempted: Preempted,
    pub(crate) begun: Begun,
    /// The instances that run now: who follows a log wants to know its end, who runs a program inside where they are.
    pub(crate) running: watch::Sender<BTreeMap<Run, Place>>,
    /// What was used when somebody last asked.
    pub(crate) measured: Memory,
    /// What pods had on the disk when somebody last asked.
    pub(crate) looks: Looks,
    /// Who asks the file systems of volumes how full they are.
    pub(crate) asking: Asking,
    /// Held while files are counted for who asks.
    pub(crate) counting: Arc<tokio::sync::Mutex<()>>,
    /// How often containers were probed.
    pub(crate) probes: Probes,
    /// What keeps pods' packets back.
    pub(crate) blocked: watch::Sender<Option<String>>,
    /// Tells whether pods of other nodes are reached.
    pub(crate) routed: watch::Sender<Routed>,
    /// What is short on the node.
    pub(crate) pressures: watch::Sender<BTreeSet<Pressure>>,
    /// The Node as it was last read.
    pub(crate) node: Mutex<Option<Arc<Node>>>,
    /// When the loop that follows the pods turned last.
    pub(crate) turned: Mutex<Instant>,
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

/// Where a run is for the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sandbox: String,
    pub(crate) instance: String,
}

impl Context {
    /// The ranges that the control plane gave and pods may have addresses of.
    pub(crate) fn allocated_ranges(&self) -> Option<Ranges> {
        let served = self.parts.network.served();
        served
            .filter(|_| self.config.pod_cidr.is_none())
            .map(|served| served.ranges)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.parts.clock)()
    }

    /// All that the runtime has, asked for until it answers: news that were lost are not told again.
    pub(crate) async fn all_sandboxes(&self) -> Vec<runtime::Sandbox> {
        loop {
            match self.parts.runtime.sandboxes().await {
                Ok(sandboxes) => return sandboxes,
                Err(error) => warn!(
                    error = image::chain(&error),
                    "the runtime's sandboxes could not be read"
                ),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Notes that a pod took a step of its start.
    pub(crate) fn reached(&self, uid: &str, step: Step) {
        self.milestones.note(uid, step, self.now());
    }

    /// `youki`, in front of container identifiers.
    pub(crate) fn scheme(&self) -> String {
        self.parts.runtime.info().name
    }

    pub(crate) fn slices(&self) -> MutexGuard<'_, Slices> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn abilities(&self) -> Abilities {
        Abilities {
            capabilities: self.machine.capabilities.clone(),
            memory: self.machine.memory_bytes,
            pids: self.machine.pids_per_pod,
            all_users: self.machine.all_users,
        }
    }

    /// What pods may use, in thousandths, by resource.
    fn allocatable_milli(&self) -> BTreeMap<String, i64> {
        let each = self.allocatable.iter();
        each.map(|(name, amount)| (name.clone(), amount.milli())).collect()
    }

    pub(crate) fn surroundings(&self, pod_addresses: &[IpAddr]) -> Surroundings {
        Surroundings {
            pod_addresses: pod_addresses.iter().map(ToString::to_string).collect(),
            host_addresses: self.config.host_addresses().iter().map(ToString::to_string).collect(),
            hostname: crate::machine::hostname(),
            cluster_domain: self.config.dns.domain.clone(),
            allocatable: self.allocatable_milli(),
            services: Vec::new(),
        }
    }

    /// The directory of a pod's files.
    pub(crate) fn pod_directory(&self, uid: &str) -> PathBuf {
        self.config.state_directory.join("pods").join(uid)
    }

    /// The directory of a pod's logs.
    pub(crate) fn log_directory(&self, pod: &Pod) -> PathBuf {
        let name = format!(
            "{}_{}_{}",
            agent_plan::pods::namespace(pod),
            agent_plan::pods::name(pod),
            agent_plan::pods::uid(pod)
        );
        self.config.state_directory.join("logs").join(name)
    }

    fn locked_pods(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self, pod: &Arc<Pod>) {
        let uid = agent_plan::pods::uid(pod).to_owned();
        self.locked_pods().insert(uid, Arc::clone(pod));
        self.pods_changed.notify_one();
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.locked_pods().remove(uid);
        self.discounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
        self.preempted.over(uid);
        self.granted.forget(uid);
        self.tokens.forget(uid);
        self.probes.forget(uid);
        self.pods_changed.notify_one();
    }

    /// The node does not take this pod, ends it for another, or it is gone from the API: from now on it does not count for the others. The scheduler
    /// does not count it either, and may have given its room away.
    pub(crate) fn discount(&self, uid: &str) {
        let mut discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        discounted.insert(uid.to_owned());
    }

    /// What the node has for a pod, as things are.
    pub(crate) fn host(&self, pod: &Pod) -> Host {
        use agent_plan::pods::uid;
        let discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = self.known_pods();
        others.retain(|other| uid(other) != uid(pod) && !discounted.contains(uid(other)));
        Host {
            pods: self.config.max_pods.into(),
            allocatable: self.allocatable_milli(),
            others: self.granted.given(others),
            node: self.node(),
            pressures: self.pressures.borrow().clone(),
            shutting_down: *self.shutting_down.borrow(),
            app_armor: self.app_armor.machine().enabled,
        }
    }

    /// Something happened to this node.
    pub(crate) fn node_event(&self, kind: Kind, reason: &'static str, message: String) {
        let node = Node {
            metadata: ObjectMeta {
                name: Some(self.config.node_name.clone()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        self.recorder.node(&node, kind, reason, message);
    }

    /// Where the images are.
    pub(crate) fn image_directory(&self) -> PathBuf {
        let own = self.parts.images.directory();
        own.map_or_else(|| self.config.state_directory.join("images"), Path::to_owned)
    }

    pub(crate) fn known_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.locked_pods().get(uid).cloned()
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let known = self.locked_pods();
        let wanted =
            |pod: &&Arc<Pod>| agent_plan::pods::namespace(pod) == namespace && agent_plan::pods::name(pod) == name;
        known.values().find(wanted).cloned()
    }

    /// Where a container runs now.
    pub(crate) fn place(&self, pod: &Pod, container: &str) -> Option<Place> {
        let uid = agent_plan::pods::uid(pod);
        let running = self.running.borrow();
        let newest = running
            .iter()
            .rfind(|(run, _)| run.pod == uid && run.container == container);
        newest.map(|(_, place)| place.clone())
    }

    pub(crate) fn known_pods(&self) -> Vec<Arc<Pod>> {
        self.locked_pods().values().cloned().collect()
    }
}
