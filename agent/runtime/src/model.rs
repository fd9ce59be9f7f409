//! Types that callers and runtimes exchange.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

/// Name and version of a runtime, for `Node.status.nodeInfo.containerRuntimeVersion` (`name://version`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The scheme of container ids: `youki`.
    pub name: String,
    /// The version, without a leading `v`.
    pub version: String,
}

/// The pod that a sandbox was made for. Opaque to the runtime: kept and handed back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodId {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// Limits of a cgroup; `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// `cpu.shares` as cgroup v1 counts them, 2 to 262144 (1024 is one core); converted to `cpu.weight` on v2.
    pub cpu_shares: Option<u64>,
    /// CPU time in microseconds per period.
    pub cpu_quota: Option<i64>,
    /// The period in microseconds; 100000 where absent.
    pub cpu_period: Option<u64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Number of tasks.
    pub pids: Option<i64>,
    /// Bytes of huge pages, by their size as the kernel names it (`2MB`).
    #[serde(default)]
    pub hugepages: Vec<(String, i64)>,
}

/// QoS class of a pod (`status.qosClass`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Requests equal limits.
    #[default]
    Guaranteed,
    /// Has some requests or limits.
    Burstable,
    /// Has neither requests nor limits.
    BestEffort,
}

/// Specification of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Unique on the machine: letters, digits, `-`, `_` and `.`, at most 64 bytes, not starting with a dot.
    pub id: String,
    /// The pod of the sandbox.
    pub pod: PodId,
    /// Counts the sandboxes of this pod, from 0.
    pub attempt: u32,
    /// The pod's host name, at most 64 bytes.
    pub hostname: String,
    /// The network namespace to join; `None` is the agent's own (`hostNetwork`).
    pub netns: Option<PathBuf>,
    /// Single PID namespace for all containers (`shareProcessNamespace`).
    pub share_process_namespace: bool,
    /// The machine's pid namespace (`hostPID`).
    pub host_pid: bool,
    /// The machine's ipc namespace and `/dev/shm` (`hostIPC`). Otherwise the containers share those of the pod, 64 MiB.
    pub host_ipc: bool,
    /// Limits of the pod as a whole.
    pub limits: Limits,
    /// QoS class, which selects the parent cgroup.
    #[serde(default)]
    pub class: Class,
    /// Settings of the kernel (`net.ipv4.ip_unprivileged_port_start`) and their values, for the pod's own namespaces.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// The first of the machine's 65536 ids that are the pod's own (`hostUsers: false`), to whom its network namespace must belong.
    pub user_ids: Option<u32>,
    /// The `SELinux` level of the pod's containers. Opaque to the runtime: kept and handed back.
    pub se_linux_level: Option<String>,
    /// The handler of the pod's `RuntimeClass`, for which there must be a runtime ([`crate::Runtime::has_handler`]); `""`: none.
    #[serde(default)]
    pub handler: String,
}

/// User of a container's process. Names are resolved in the root file system's `/etc/passwd` and
/// `/etc/group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `""` (root), `name`, `uid`, `name:group`, `uid:gid`: the image's `User`, or `runAsUser` in digits.
    pub user: String,
    /// `runAsGroup`: wins over the primary group that `user` gives.
    pub group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`; the groups that the image's `/etc/group` gives the user are added.
    pub supplementary: Vec<u32>,
    /// `runAsNonRoot`: creation fails with [`crate::Error::RunsAsRoot`] when the user turns out to be 0.
    pub must_not_be_root: bool,
    /// The groups that the image's `/etc/group` gives the user are not added.
    #[serde(default)]
    pub strict_groups: bool,
}

/// A container's standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// At its end from the beginning.
    #[default]
    Closed,
    /// Open for as long as the container runs.
    Open,
    /// Open until the first client that attached to it is at the end of its input.
    Once,
}

/// Specification of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Unique on the machine, same alphabet as [`SandboxSpec::id`].
    pub id: String,
    /// The container's name in the pod.
    pub name: String,
    /// Counts the instances of this container, from 0.
    pub attempt: u32,
    /// The image reference as the pod wrote it. Kept and handed back.
    pub image: String,
    /// The image's id or digest. Kept and handed back.
    pub image_id: String,
    /// Unpacked layers, lowest first: what [`crate::Embedded`] makes the root file system of.
    pub layers: Vec<PathBuf>,
    /// A committed snapshot of containerd's, by its name: what [`crate::Containerd`] makes it of.
    pub snapshot: Option<String>,
    /// The OCI configuration. The runtime fills in `root`, the namespaces, `linux.cgroupsPath`, and `process.user` from [`ContainerSpec::user`];
    /// a tmpfs at `/dev/shm` becomes the pod's; capabilities, resource limits and `oomScoreAdj` are clamped to what the machine allows.
    pub spec: Spec,
    /// Directories of the image that are made where they are missing, and writable also in a root that is not.
    #[serde(default)]
    pub volumes: Vec<PathBuf>,
    /// The user to run as.
    pub user: User,
    /// The running container of the same sandbox whose processes this one sees and can debug; otherwise as the sandbox says.
    #[serde(default)]
    pub pid_of: Option<String>,
    /// Whether standard input accepts data by [`crate::Runtime::attach`]. `process.terminal` gives
    /// it a terminal.
    pub stdin: Stdin,
    /// Path of the log (CRI format; rotated to `PATH.YYYYMMDD-hhmmss`, 10 MiB each). Its directory
    /// must exist.
    pub log_path: PathBuf,
    /// Kept and handed back.
    pub annotations: BTreeMap<String, String>,
}

/// Exit of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kernel killed a process of it for its memory limit.
    pub oom_killed: bool,
    /// Time of the exit.
    pub finished_at: SystemTime,
}

/// Lifecycle state of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Made; its program does not run yet.
    Created,
    /// Its program runs.
    Running {
        /// Process id of its first process, as the agent sees it.
        pid: i32,
        /// Time at which the program was started.
        started_at: SystemTime,
    },
    /// Its first process is gone, and with it all others.
    Exited {
        /// Exit code, signal and time.
        exit: Exit,
        /// Time at which the program was started; `None` if it never was.
        started_at: Option<SystemTime>,
    },
}

/// A container as the runtime knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// ID of the specification.
    pub id: String,
    /// Name of the specification.
    pub name: String,
    /// Attempt of the specification.
    pub attempt: u32,
    /// Image of the specification.
    pub image: String,
    /// Image ID of the specification.
    pub image_id: String,
    /// Log path of the specification.
    pub log_path: PathBuf,
    /// Annotations of the specification.
    pub annotations: BTreeMap<String, String>,
    /// Time of creation.
    pub created_at: SystemTime,
    /// Lifecycle state.
    pub state: State,
}

/// A sandbox as the runtime knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// ID of the specification.
    pub id: String,
    /// Pod of the specification.
    pub pod: PodId,
    /// Attempt of the specification.
    pub attempt: u32,
    /// Time of creation.
    pub created_at: SystemTime,
    /// User IDs of the specification.
    #[serde(default)]
    pub user_ids: Option<u32>,
    /// `SELinux` level of the specification.
    #[serde(default)]
    pub se_linux_level: Option<String>,
    /// Its supervisor is gone: only [`crate::Runtime::remove_sandbox`] works on it.
    pub lost: bool,
    /// In order of creation.
    pub containers: Vec<Container>,
}

/// Program to run in a container, whose output is collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Program and arguments; the program is looked up in the container's `PATH`.
    pub argv: Vec<String>,
    /// Added to the container's environment.
    pub env: Vec<(String, String)>,
    /// After this the program and everything it started is killed.
    pub timeout: Duration,
    /// At most so many bytes of output are kept (the first ones); at most 16 KiB.
    pub output_limit: usize,
}

/// Result of an exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    /// The exit code; 128 + signal when a signal ended it; 126 or 127 when it could not be run.
    pub exit_code: i32,
    /// stdout and stderr as they came.
    pub output: Vec<u8>,
    /// There was more output than was kept.
    pub truncated: bool,
    /// True if the timeout killed it.
    pub timed_out: bool,
}

/// Program to run in a container with streams of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Program and arguments; the program is looked up in the container's `PATH`.
    pub argv: Vec<String>,
    /// A new terminal of the container's is its standard input, output and error.
    pub tty: bool,
    /// Requested streams, if it has no terminal.
    pub streams: Streams,
}

/// Requested streams; the others are at end-of-file or discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Resource usage of a container, a sandbox or the machine; `None` if the kernel does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since it was made.
    pub cpu: Option<Duration>,
    /// Bytes of memory, the page cache's included.
    pub memory: Option<u64>,
    /// The most bytes of memory that it used at once.
    pub memory_peak: Option<u64>,
    /// Bytes of memory without pages of files that were not used lately.
    pub working_set: Option<u64>,
    /// Bytes of memory that belong to no file.
    pub rss: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Page faults that waited for a disk.
    pub major_page_faults: Option<u64>,
    /// Processes and threads that there are.
    pub processes: Option<u64>,
    /// Rarely needed values.
    pub details: Details,
}

/// Further resource usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// CPU time of the programs.
    pub cpu_user: Option<Duration>,
    /// CPU time of the kernel for them.
    pub cpu_system: Option<Duration>,
    /// Periods in which there was something to do under a limit of CPU time.
    pub periods: Option<u64>,
    /// Periods in which the limit was hit.
    pub throttled_periods: Option<u64>,
    /// The time for which it was waited then.
    pub throttled: Option<Duration>,
    /// Bytes of the page cache.
    pub cache: Option<u64>,
    /// Bytes of files that are mapped.
    pub mapped: Option<u64>,
    /// Bytes of memory on a disk.
    pub swap: Option<u64>,
    /// The most of it, where there is a bound; of the machine, what there is.
    pub swap_limit: Option<u64>,
    /// The most bytes of memory, where there is a bound.
    pub memory_limit: Option<u64>,
    /// Number of times that the memory limit was hit.
    pub limit_hits: Option<u64>,
    /// Number of OOM kills.
    pub oom_kills: Option<u64>,
}

/// User and groups of a container's init process at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// Location of an image's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFiles {
    /// Its layers, lowest first; none where containerd has it.
    pub layers: Vec<PathBuf>,
    /// The name of containerd's committed snapshot, where containerd has it.
    pub snapshot: Option<String>,
}

/// Usage of a container's writable layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Directory of the layer, to be measured.
    In(PathBuf),
    /// Counted by the snapshotter.
    Counted {
        /// Bytes that the files occupy.
        bytes: i64,
        /// Files and directories.
        inodes: i64,
    },
}

/// News from a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A container ended.
    ContainerExited {
        /// Its sandbox.
        sandbox_id: String,
        /// The container.
        container_id: String,
        /// Exit code, signal and time.
        exit: Exit,
    },
    /// The supervisor of a sandbox is gone; its containers are being killed. The sandbox must be removed.
    SandboxLost {
        /// The sandbox.
        sandbox_id: String,
    },
}
