//! Types that callers and runtimes exchange.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

/// Name and version of a runtime, for `Node.status.nodeInfo.containerRuntimeVersion`
/// (`name://version`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Scheme of container IDs: `youki`.
    pub name: String,
    /// Version, without a leading `v`.
    pub version: String,
}

/// Pod of a sandbox. Opaque to the runtime: stored and returned.
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
    /// `cpu.shares` as cgroup v1 counts them, 2 to 262144 (1024 is one core); converted to
    /// `cpu.weight` on v2.
    pub cpu_shares: Option<u64>,
    /// CPU time in microseconds per period.
    pub cpu_quota: Option<i64>,
    /// Period in microseconds; 100000 if absent.
    pub cpu_period: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<i64>,
    /// Number of tasks.
    pub pids: Option<i64>,
    /// Bytes of huge pages, by their size in the kernel's notation (`2MB`).
    #[serde(default)]
    pub hugepages: Vec<(String, i64)>,
}

/// Quality-of-service class of a pod (`status.qosClass`).
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
    /// ID, unique on the machine: letters, digits, `-`, `_` and `.`, at most 64 bytes, not starting
    /// with a dot.
    pub id: String,
    /// The pod of the sandbox.
    pub pod: PodId,
    /// Number of earlier sandboxes of this pod.
    pub attempt: u32,
    /// Host name of the pod, at most 64 bytes.
    pub hostname: String,
    /// Network namespace to join; `None` for the agent's own (`hostNetwork`).
    pub netns: Option<PathBuf>,
    /// Single PID namespace for all containers (`shareProcessNamespace`).
    pub share_process_namespace: bool,
    /// Uses the machine's PID namespace (`hostPID`).
    pub host_pid: bool,
    /// Uses the machine's IPC namespace and `/dev/shm` (`hostIPC`). Otherwise the containers share
    /// those of the pod, 64 MiB.
    pub host_ipc: bool,
    /// Limits of the pod as a whole.
    pub limits: Limits,
    /// Quality-of-service class, which selects the parent cgroup.
    #[serde(default)]
    pub class: Class,
    /// Sysctls (`net.ipv4.ip_unprivileged_port_start`) and their values, for the pod's own
    /// namespaces.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// First of the machine's 65536 IDs that are mapped to the pod (`hostUsers: false`), whose user
    /// namespace must own its network namespace.
    pub user_ids: Option<u32>,
    /// `SELinux` level of the pod's containers. Opaque to the runtime: stored and returned.
    pub se_linux_level: Option<String>,
    /// Handler of the pod's `RuntimeClass`, which must be available
    /// ([`crate::Runtime::has_handler`]); `""` for the default.
    #[serde(default)]
    pub handler: String,
}

/// User of a container's process. Names are resolved in the root file system's `/etc/passwd` and
/// `/etc/group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `""` (root), `name`, `uid`, `name:group`, `uid:gid`: the image's `User`, or `runAsUser` in
    /// digits.
    pub user: String,
    /// `runAsGroup`: overrides the primary group of `user`.
    pub group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`; the user's groups in the image's `/etc/group` are added.
    pub supplementary: Vec<u32>,
    /// `runAsNonRoot`: creation fails with [`crate::Error::RunsAsRoot`] if the user resolves to 0.
    pub must_not_be_root: bool,
    /// Does not add the user's groups in the image's `/etc/group`, as with
    /// `supplementalGroupsPolicy: Strict`.
    #[serde(default)]
    pub strict_groups: bool,
}

/// A container's standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// At end-of-file from the beginning.
    #[default]
    Closed,
    /// Open for as long as the container runs.
    Open,
    /// Open until the input of the first attached client ends.
    Once,
}

/// Specification of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// ID, unique on the machine, in the alphabet of [`SandboxSpec::id`].
    pub id: String,
    /// Name of the container in the pod.
    pub name: String,
    /// Number of earlier instances of this container.
    pub attempt: u32,
    /// Image reference as in the pod. Stored and returned.
    pub image: String,
    /// ID or digest of the image. Stored and returned.
    pub image_id: String,
    /// Unpacked layers, lowest first: the root file system in [`crate::Embedded`].
    pub layers: Vec<PathBuf>,
    /// Name of a committed snapshot in containerd: the root file system in [`crate::Containerd`].
    pub snapshot: Option<String>,
    /// OCI configuration. The runtime sets `root`, the namespaces, `linux.cgroupsPath`, and
    /// `process.user` from [`ContainerSpec::user`]; a tmpfs at `/dev/shm` is replaced by the pod's;
    /// capabilities, resource limits and `oomScoreAdj` are clamped to what the machine allows.
    pub spec: Spec,
    /// Volumes of the image: directories that are created if missing, and are writable even in a
    /// read-only root.
    #[serde(default)]
    pub volumes: Vec<PathBuf>,
    /// User of the process.
    pub user: User,
    /// Running container of the same sandbox whose PID namespace is joined, as
    /// `kubectl debug --target` requests; `None` for that of the sandbox.
    #[serde(default)]
    pub pid_of: Option<String>,
    /// True if standard input accepts data by [`crate::Runtime::attach`]. `process.terminal` gives
    /// it a terminal.
    pub stdin: Stdin,
    /// Path of the log (CRI format; rotated to `PATH.YYYYMMDD-hhmmss`, 10 MiB each). Its directory
    /// must exist.
    pub log_path: PathBuf,
    /// Stored and returned.
    pub annotations: BTreeMap<String, String>,
}

/// Exit of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; 128 + signal if a signal killed it.
    pub code: i32,
    /// Signal that killed it.
    pub signal: Option<i32>,
    /// True if the OOM killer killed one of its processes.
    pub oom_killed: bool,
    /// Time of the exit.
    pub finished_at: SystemTime,
}

/// Lifecycle state of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Created; its program was not started yet.
    Created,
    /// Its program runs.
    Running {
        /// PID of its init process, as the agent sees it.
        pid: i32,
        /// Time at which the program was started.
        started_at: SystemTime,
    },
    /// Its init process has exited, and with it all others.
    Exited {
        /// Exit code, signal and time.
        exit: Exit,
        /// Time at which the program was started; `None` if it never was.
        started_at: Option<SystemTime>,
    },
}

/// Container as the runtime knows it.
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

/// Sandbox as the runtime knows it.
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
    /// The supervisor is gone: only [`crate::Runtime::remove_sandbox`] works on the sandbox.
    pub lost: bool,
    /// Containers, in order of creation.
    pub containers: Vec<Container>,
}

/// Program to run in a container, whose output is collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Program and arguments; the program is looked up in the container's `PATH`.
    pub argv: Vec<String>,
    /// Variables that are added to the container's environment.
    pub env: Vec<(String, String)>,
    /// Time after which the program and all processes that it started are killed.
    pub timeout: Duration,
    /// Limit of kept output in bytes (the first ones are kept); at most 16 KiB.
    pub output_limit: usize,
}

/// Result of an exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    /// Exit code; 128 + signal if a signal killed it; 126 or 127 if it could not be executed.
    pub exit_code: i32,
    /// stdout and stderr, interleaved as received.
    pub output: Vec<u8>,
    /// True if there was more output than was kept.
    pub truncated: bool,
    /// True if the timeout killed it.
    pub timed_out: bool,
}

/// Program to run in a container with streams of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Program and arguments; the program is looked up in the container's `PATH`.
    pub argv: Vec<String>,
    /// True for a new terminal of the container as standard input, output and error.
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
    /// CPU time since creation.
    pub cpu: Option<Duration>,
    /// Bytes of memory, including the page cache.
    pub memory: Option<u64>,
    /// Peak of used memory, in bytes.
    pub memory_peak: Option<u64>,
    /// Bytes of memory without inactive file pages.
    pub working_set: Option<u64>,
    /// Bytes of anonymous memory.
    pub rss: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Major page faults.
    pub major_page_faults: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
    /// Rarely needed values.
    pub details: Details,
}

/// Further resource usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// CPU time in user mode.
    pub cpu_user: Option<Duration>,
    /// CPU time in kernel mode.
    pub cpu_system: Option<Duration>,
    /// Periods in which processes were runnable under a CPU quota (`nr_periods`).
    pub periods: Option<u64>,
    /// Periods in which the quota was exhausted (`nr_throttled`).
    pub throttled_periods: Option<u64>,
    /// Time for which processes were throttled.
    pub throttled: Option<Duration>,
    /// Bytes of the page cache.
    pub cache: Option<u64>,
    /// Bytes of mapped files.
    pub mapped: Option<u64>,
    /// Bytes of swapped memory.
    pub swap: Option<u64>,
    /// Limit of swap, if any; for the machine, its total swap.
    pub swap_limit: Option<u64>,
    /// Limit of memory in bytes, if any.
    pub memory_limit: Option<u64>,
    /// Number of times that the memory limit was hit.
    pub limit_hits: Option<u64>,
    /// Number of OOM kills.
    pub oom_kills: Option<u64>,
    /// Waits for a CPU.
    pub cpu_stalls: Option<Stalls>,
    /// Waits for memory.
    pub memory_stalls: Option<Stalls>,
    /// Waits for reads and writes.
    pub io_stalls: Option<Stalls>,
}

/// Transfers from and to a device since a group's creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
}

/// Pressure stall information (PSI) of a group; only cgroup v2 has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Time in which at least one process waited.
    pub some: Stall,
    /// Time in which all processes waited.
    pub full: Stall,
}

/// Share of the last 10, 60 and 300 seconds in hundredths of a percent, and time since creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Shares.
    pub shares: [u32; 3],
    /// Sum.
    pub total: Duration,
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
    /// Layers, lowest first; empty if containerd has the image.
    pub layers: Vec<PathBuf>,
    /// Name of containerd's committed snapshot, if containerd has the image.
    pub snapshot: Option<String>,
}

/// Usage of a container's writable layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Directory of the layer, to be measured.
    In(PathBuf),
    /// Counted by the snapshotter.
    Counted {
        /// Bytes that the files occupy on the disk.
        bytes: i64,
        /// Number of files and directories.
        inodes: i64,
    },
}

/// Event of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A container has exited.
    ContainerExited {
        /// Sandbox of the container.
        sandbox_id: String,
        /// ID of the container.
        container_id: String,
        /// Exit code, signal and time.
        exit: Exit,
    },
    /// The supervisor of a sandbox is gone; its containers are being killed. The sandbox must be
    /// removed.
    SandboxLost {
        /// ID of the sandbox.
        sandbox_id: String,
    },
}
