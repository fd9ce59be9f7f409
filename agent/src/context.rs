//! State shared by all parts of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::container::environment::Surroundings;
use agent_plan::container::files::ClusterDns;
use agent_plan::container::oci::Abilities;
use agent_plan::network::addresses::of_each_family;
use agent_plan::network::node_routes::Routed;
use agent_plan::node::admission::Host;
use agent_plan::node::collection::Policy;
use agent_plan::node::eviction::{Pressure, Thresholds};
use agent_plan::node::registration::Registration;
use agent_plan::node::reserve::Amounts;
use agent_plan::node::shutdown::Grace;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use network::{Cidr, Network, Ranges};
use runtime::Runtime;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tracing::warn;
use volume::{LocalPath, Volumes};

use crate::client::events::{Kind, Recorder};
use crate::client::objects::Objects;
use crate::client::tokens::Tokens;
use crate::clock::Clock;
use crate::drivers::registered::Drivers;
use crate::images;
use crate::images::credentials::ImagePullRecords;
use crate::networking::dns::names::Names;
use crate::networking::policies::admissions::Admissions;
use crate::networking::services::programmed::Programmed;
use crate::networking::services::slices::{Services, Slices};
use crate::node::apparmor::AppArmor;
use crate::node::devices::Devices;
use crate::node::log_files::LogFiles;
use crate::node::measure::Memory;
use crate::node::selinux::SeLinux;
use crate::pod::allocation::Allocations;
use crate::pod::crashes::Crashes;
use crate::pod::instances::{Place, Run};
use crate::pod::milestones::{Milestones, Step};
use crate::pod::orders::Order;
use crate::pod::preempted::Preempted;
use crate::pod::started::StartCounts;
use crate::pod::users::UserIds;
use crate::serve::access::reviews::Access;
use crate::serve::metrics::own::operations::Operations;
use crate::serve::metrics::probes::Probes;
use crate::serve::metrics::pulls::PullTimes;
use crate::serve::metrics::requests::{Asking, Looks};

/// Age of the last renewal of the Node's Lease from which on the control plane may take the node for
/// dead.
const EXPIRY: Duration = Duration::from_secs(40);

/// Time between two requests to a runtime that does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Configuration of the agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The Node's name.
    pub node_name: String,
    /// Directory of the agent's own state.
    pub state_directory: PathBuf,
    /// Where containers' logs lie.
    pub logs: LogFiles,
    /// Directory that stands for a kubelet's `--root-dir`: where plugins register.
    pub kubelet_directory: PathBuf,
    /// Number of directories that are made ahead for pods.
    pub spares: usize,
    /// The pods' ranges; the Node's `spec.podCIDRs` where they are absent.
    pub pod_cidr: Option<Ranges>,
    /// Addresses of the node, the primary one first: pods list their addresses in the order of its
    /// families.
    pub addresses: Vec<IpAddr>,
    /// Port of the agent's own server, for the Node's `daemonEndpoints`.
    pub port: u16,
    /// Maximum number of pods on the node.
    pub max_pods: u32,
    /// Eviction thresholds and reserved resources.
    pub upkeep: Upkeep,
    /// Grace periods for pods when the machine shuts down.
    pub shutdown: Grace,
    /// Name resolution within the cluster.
    pub dns: ClusterDns,
    /// File with the machine's name servers, if it is not the usual one; an empty path means none.
    pub resolv_conf: Option<PathBuf>,
    /// Address of the API server, for pods that reach it through its Service.
    pub server: Option<SocketAddr>,
    /// True if volumes that hold secrets are on tmpfs; false in simulations only, which may not
    /// mount.
    pub secrets_in_memory: bool,
    /// Service proxy; absent if Services are not proxied.
    pub service_proxy: Option<ServiceProxy>,
    /// Name of the kernel's tables of network policies, unique on the machine; `None` leaves
    /// policies to another program.
    pub network_policies: Option<String>,
    /// ID of the machine, for an annotation of the Node.
    pub instance_id: Option<String>,
    /// What the Node says of itself.
    pub registration: Registration,
    /// Command-line flags and their values, for `/flagz`.
    pub flags: Vec<(String, String)>,
}

impl Config {
    /// `status.hostIPs`: an address of each family.
    pub(crate) fn host_addresses(&self) -> Vec<IpAddr> {
        self.in_order(&self.addresses)
    }

    /// Returns an address of each family, in the order of the node's own.
    pub(crate) fn in_order(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        of_each_family(addresses, self.addresses.first().is_some_and(IpAddr::is_ipv6))
    }
}

/// Configuration of the service proxy.
#[derive(Clone, Debug)]
pub struct ServiceProxy {
    /// Name of the kernel's tables, unique on the machine.
    pub table: String,
    /// Addresses of the node that serve node ports; all except loopback if it is empty.
    pub node_ports: Vec<Cidr>,
    /// Port at which load balancers learn of the proxy's health.
    pub health_port: Option<u16>,
    /// Address at which the proxy tells its metrics and its mode.
    pub metrics_address: Option<SocketAddr>,
}

/// Thresholds of image garbage collection and of evictions. Without them nothing is removed.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// Eviction thresholds.
    pub thresholds: Thresholds,
    /// Image garbage collection.
    pub images: Policy,
    /// Resources reserved for other processes on the machine.
    pub reserved: Vec<Amounts>,
    /// Maximum number of processes of a pod.
    pub pod_pids: Option<i64>,
    /// True if all pods together are limited to the node's allocatable.
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

/// External interfaces of the agent.
#[derive(Clone)]
pub struct Parts {
    /// Client of the API, as `system:node:NAME`.
    pub client: Client,
    /// Container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Pod network.
    pub network: Arc<dyn Network>,
    /// Image store.
    pub images: Arc<dyn images::Source>,
    /// Wall clock.
    pub clock: Clock,
}

/// Shared state of all workers.
pub struct Context {
    pub(crate) config: Config,
    pub(crate) parts: Parts,
    pub(crate) volumes: Volumes,
    /// Local persistent volumes of the node.
    pub(crate) local_path: LocalPath,
    /// Pods' access to images that were pulled with credentials.
    pub(crate) pull_records: ImagePullRecords,
    /// Authentication and authorization of requests to the agent.
    pub(crate) access: Access,
    /// Records of containers that failed.
    pub(crate) crashes: Crashes,
    /// Precreated directories for pods.
    pub(crate) spares: runtime::Spares,
    pub(crate) milestones: Milestones,
    /// API objects that volumes show.
    pub(crate) objects: Objects,
    /// Tokens of the pods' service accounts.
    pub(crate) tokens: Tokens,
    /// User namespace ranges of the pods.
    pub(crate) users: UserIds,
    /// CSI drivers and their volumes.
    pub(crate) drivers: Drivers,
    /// `None` until the Services are listed.
    pub(crate) services: watch::Sender<Option<Arc<Services>>>,
    /// EndpointSlices as of their watch.
    pub(crate) slices: Mutex<Slices>,
    /// The cluster's name server on this node.
    pub(crate) names: Names,
    pub(crate) programmed: Programmed,
    /// Queue of pods that wait for their network policies.
    pub(crate) admissions: Admissions,
    pub(crate) recorder: Recorder,
    pub(crate) machine: crate::node::machine::Machine,
    /// Resources that pods may use (allocatable).
    pub(crate) allocatable: Amounts,
    /// Limits concurrent image pulls.
    pub(crate) pulls: Semaphore,
    pub(crate) app_armor: AppArmor,
    pub(crate) se_linux: SeLinux,
    /// Devices of device plugins.
    pub(crate) devices: Arc<Devices>,
    /// Limits concurrent container creations: more would only compete for the same cores.
    pub(crate) starts: Semaphore,
    /// Limits configurations of containers that wait for their sandboxes.
    pub(crate) drafts: Arc<Semaphore>,
    /// The pods as the API shows them, for `/pods` and for logs.
    pub(crate) pods: Mutex<BTreeMap<String, Arc<Pod>>>,
    /// Notified when the set of pods or their requests change.
    pub(crate) pods_changed: Notify,
    /// True while the machine is about to shut down.
    pub(crate) shutting_down: watch::Sender<bool>,
    /// Channel for orders to the pods' workers.
    pub(crate) orders: OnceLock<mpsc::Sender<Order>>,
    /// Resources allocated to the pods on the node.
    pub(crate) allocations: Allocations,
    /// UIDs of pods whose requests no longer count.
    pub(crate) discounted: Mutex<BTreeSet<String>>,
    /// Pods that are being preempted.
    pub(crate) preempted: Preempted,
    pub(crate) started: StartCounts,
    /// Running instances: log followers need to know when they end, exec needs their location.
    pub(crate) running: watch::Sender<BTreeMap<Run, Place>>,
    /// Resource usage as of the last query.
    pub(crate) measured: Memory,
    /// Disk usage of pods as of the last query.
    pub(crate) looks: Looks,
    /// Queries of the usage of volumes' file systems.
    pub(crate) asking: Asking,
    /// Lock for counting files on behalf of requests.
    pub(crate) counting: Arc<tokio::sync::Mutex<()>>,
    /// Counts of containers' probes.
    pub(crate) probes: Probes,
    /// Durations of image pulls.
    pub(crate) pull_times: PullTimes,
    /// Durations of the runtime's operations.
    pub(crate) operations: Operations,
    /// Firewall that drops pods' packets, if there is one.
    pub(crate) blocked: watch::Sender<Option<String>>,
    /// State of the routes to other nodes' pods.
    pub(crate) routed: watch::Sender<Routed>,
    /// Notified when the machine's routes may have changed.
    pub(crate) rerouted: Notify,
    /// Notified when the wall clock was set, or the machine slept, which its other clock does not
    /// count.
    pub(crate) stepped: Notify,
    /// Pressures of the node.
    pub(crate) pressures: watch::Sender<BTreeSet<Pressure>>,
    /// The Node as it was last read; a change of its labels is notified.
    pub(crate) node: watch::Sender<Option<Arc<Node>>>,
    /// Time of the last iteration of the pod loop.
    pub(crate) turned: Mutex<Instant>,
    /// Time of the last renewal of the Node's Lease.
    pub(crate) renewed: Mutex<Instant>,
}

impl Context {
    /// Returns the allocated pod CIDRs that pods may have addresses of.
    pub(crate) fn allocated_ranges(&self) -> Option<Ranges> {
        let served = self.parts.network.served();
        served
            .filter(|_| self.config.pod_cidr.is_none())
            .map(|served| served.ranges)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.parts.clock)()
    }

    /// Lists all sandboxes, and retries until the runtime answers: lost events are not repeated.
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

    /// Notes that the Node's Lease was renewed.
    pub(crate) fn renewed(&self, now: Instant) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// True if the API server has not heard of this node for so long that it counts as dead.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > EXPIRY
    }

    /// Records a milestone of a pod's start.
    pub(crate) fn reached(&self, uid: &str, step: Step) {
        self.milestones.note(uid, step, self.now());
    }

    /// Prefix of container IDs, such as `youki`.
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
            thermal: self.machine.thermal.clone(),
        }
    }

    /// Allocatable resources in thousandths, by resource.
    fn allocatable_milli(&self) -> BTreeMap<String, i64> {
        let each = self.allocatable.iter();
        each.map(|(name, amount)| (name.clone(), amount.milli())).collect()
    }

    pub(crate) fn surroundings(&self, pod_addresses: &[IpAddr]) -> Surroundings {
        Surroundings {
            pod_addresses: pod_addresses.iter().map(ToString::to_string).collect(),
            host_addresses: self.config.host_addresses().iter().map(ToString::to_string).collect(),
            hostname: crate::node::machine::hostname(),
            cluster_domain: self.config.dns.domain.clone(),
            allocatable: self.allocatable_milli(),
            services: Vec::new(),
        }
    }

    /// The directory of a pod's files.
    pub(crate) fn pod_directory(&self, uid: &str) -> PathBuf {
        self.config.state_directory.join("pods").join(uid)
    }

    fn locked_pods(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self, pod: &Arc<Pod>) {
        let uid = agent_plan::pod::pods::uid(pod).to_owned();
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
        self.allocations.forget(uid);
        self.devices.release(uid);
        self.tokens.forget(uid);
        self.probes.forget(uid);
        self.pods_changed.notify_one();
    }

    /// Excludes a pod's requests: it was rejected, is being preempted, or is gone from the API. The
    /// scheduler does not count it either, and may have assigned its room.
    pub(crate) fn discount(&self, uid: &str) {
        let mut discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        discounted.insert(uid.to_owned());
    }

    pub(crate) fn is_discounted(&self, pod: &Pod) -> bool {
        let discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        discounted.contains(agent_plan::pod::pods::uid(pod))
    }

    /// Returns what the node currently offers to a pod.
    pub(crate) fn host(&self, pod: &Pod) -> Host {
        use agent_plan::pod::pods::uid;
        let discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self.active_pods(|other| uid(other) != uid(pod) && !discounted.contains(uid(other)));
        let mut allocatable = self.allocatable_milli();
        let milli = |count: usize| i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(1000);
        let devices = self.devices.counts().into_iter();
        allocatable.extend(devices.map(|(resource, count)| (resource, milli(count.allocatable))));
        Host {
            pods: self.config.max_pods.into(),
            allocatable,
            others,
            node: self.node(),
            pressures: self.pressures.borrow().clone(),
            shutting_down: *self.shutting_down.borrow(),
            app_armor: self.app_armor.machine().enabled,
        }
    }

    /// Records an event of this node.
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

    /// Directory of the images.
    pub(crate) fn image_directory(&self) -> PathBuf {
        let own = self.parts.images.directory();
        own.map_or_else(|| self.config.state_directory.join("images"), Path::to_owned)
    }

    pub(crate) fn known_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.locked_pods().get(uid).cloned()
    }

    /// Returns the pod of a name: of several, not one that is ending while its successor runs.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let discounted = self.discounted.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.locked_pods();
        let named = known.values().filter(|pod| {
            agent_plan::pod::pods::namespace(pod) == namespace && agent_plan::pod::pods::name(pod) == name
        });
        let newest = named.max_by_key(|pod| {
            let metadata = &pod.metadata;
            let gone = discounted.contains(agent_plan::pod::pods::uid(pod));
            (
                !gone,
                metadata.deletion_timestamp.is_none(),
                metadata.creation_timestamp.clone(),
            )
        });
        newest.cloned()
    }

    /// Returns the running instance of a container.
    pub(crate) fn place(&self, pod: &Pod, container: &str) -> Option<Place> {
        let uid = agent_plan::pod::pods::uid(pod);
        let running = self.running.borrow();
        let newest = running
            .iter()
            .rfind(|(run, _)| run.pod == uid && run.container == container);
        newest.map(|(_, place)| place.clone())
    }

    pub(crate) fn known_pods(&self) -> Vec<Arc<Pod>> {
        self.locked_pods().values().cloned().collect()
    }

    /// Pods that use resources of the node and that `counts` accepts, with their allocated resources.
    pub(crate) fn active_pods(&self, counts: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let known = self.locked_pods();
        let active = known.values().filter(|pod| api::pod::is_active(pod) && counts(pod));
        let active = active.cloned().collect();
        drop(known);
        self.allocations.given(active)
    }
}
