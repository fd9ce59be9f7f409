//! Properties and capabilities of this machine, read once at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use agent_plan::container::oci::capabilities;
use agent_plan::node::reserve::Amounts;
use api::quantity::Quantity;
use sha2::{Digest as _, Sha256};
use tracing::warn;

/// Properties of the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Logical processors available to the agent.
    pub processors: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Swap in bytes.
    pub swap_bytes: i64,
    /// Size in bytes of the file system that holds the state directory.
    pub storage_bytes: i64,
    /// Huge pages: bytes by page size (`2Mi`).
    pub hugepages: BTreeMap<String, i64>,
    /// Capabilities of the agent.
    pub capabilities: BTreeSet<String>,
    /// Maximum number of tasks of a container.
    pub pids_per_pod: i64,
    /// True if all possible user IDs are available to the agent: it is not in a user namespace.
    pub all_users: bool,
    /// Directories of the processors' thermal interrupts.
    pub thermal: Vec<String>,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// Firmware's UUID, or the machine ID.
    pub system_uuid: String,
    /// Boot ID.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// Pretty name of the distribution.
    pub os_image: String,
}

/// Identifier of a state directory on this machine, as `skiff join` computes it. Copies of a virtual
/// machine share `/etc/machine-id`, but not their firmware's UUID.
pub fn instance_id(state_directory: &Path) -> String {
    let read = |path: &str| fs::read(path).unwrap_or_default();
    identifier(
        &read("/etc/machine-id"),
        &read("/sys/class/dmi/id/product_uuid"),
        state_directory,
    )
}

fn identifier(machine: &[u8], firmware: &[u8], state_directory: &Path) -> String {
    let mut hash = Sha256::new();
    for part in [
        machine,
        b"\n",
        firmware,
        b"\n",
        state_directory.as_os_str().as_encoded_bytes(),
    ] {
        hash.update(part);
    }
    let digits = hash.finalize().into_iter().take(16).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Host name that the kernel currently reports.
pub(crate) fn hostname() -> String {
    text("/proc/sys/kernel/hostname")
}

fn text(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// True if a `uid_map` or `gid_map` maps all IDs. An unreadable map means a kernel without user
/// namespaces.
fn all_users(map: &str) -> bool {
    map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Directories of the processors' thermal interrupts, whose counts tell of other containers' work
/// (`defaultMaskedPaths` of `pkg/securitycontext/util.go`).
fn thermal() -> Vec<String> {
    let processors = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let directories = processors.map(|entry| entry.path().join("thermal_throttle"));
    directories
        .filter(|path| path.is_dir())
        .map(|path| path.display().to_string())
        .collect()
}

fn number(path: &str) -> Option<i64> {
    text(path).parse().ok()
}

impl Machine {
    /// Reads the properties; those that cannot be read are empty, and are logged.
    pub fn probe(state_directory: &Path) -> Self {
        let machine_id = text("/etc/machine-id");
        let system_uuid = Some(text("/sys/class/dmi/id/product_uuid")).filter(|uuid| !uuid.is_empty());
        let storage = nix::sys::statvfs::statvfs(state_directory)
            .map_or(0, |stat| stat.blocks().saturating_mul(stat.fragment_size()));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let meminfo = text("/proc/meminfo");
        let bytes = |name: &str| field(&meminfo, name).unwrap_or(0).saturating_mul(1024);
        let machine = Self {
            processors: i64::try_from(processors).unwrap_or(1),
            memory_bytes: bytes("MemTotal:").min(cgroup_memory_limit().unwrap_or(i64::MAX)),
            swap_bytes: bytes("SwapTotal:"),
            storage_bytes: i64::try_from(storage).unwrap_or(i64::MAX),
            hugepages: hugepages(),
            capabilities: bounding_set(),
            pids_per_pod: pids_per_pod(
                number("/proc/sys/kernel/pid_max"),
                number("/proc/sys/kernel/threads-max"),
            ),
            all_users: all_users(&text("/proc/self/uid_map")) && all_users(&text("/proc/self/gid_map")),
            thermal: thermal(),
            system_uuid: system_uuid.unwrap_or_else(|| machine_id.clone()),
            machine_id,
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_image(),
        };
        machine.complain();
        machine
    }

    fn complain(&self) {
        let missing: Vec<&str> = capabilities::ALL
            .iter()
            .filter(|name| !self.capabilities.contains(**name))
            .copied()
            .collect();
        if !missing.is_empty() {
            warn!(
                ?missing,
                "capabilities that this machine does not give; containers go without them"
            );
        }
        if !Path::new("/sys/fs/cgroup").exists() {
            warn!("no control groups are mounted at /sys/fs/cgroup; limits cannot be set");
        }
    }

    /// Returns the capacity by resource.
    pub fn capacity(&self, pods: u32) -> Amounts {
        let kibibytes = |bytes: i64| Quantity::bytes(bytes / 1024 * 1024);
        let mut all = Amounts::from([
            ("cpu".to_owned(), Quantity::units(self.processors)),
            ("memory".to_owned(), kibibytes(self.memory_bytes)),
            ("ephemeral-storage".to_owned(), kibibytes(self.storage_bytes)),
            ("pods".to_owned(), Quantity::units(pods.into())),
        ]);
        for (size, bytes) in &self.hugepages {
            all.insert(format!("hugepages-{size}"), Quantity::bytes(*bytes));
        }
        all
    }
}

/// An eighth of `pid_max`, or of `threads-max` if that is lower.
fn pids_per_pod(numbers: Option<i64>, threads: Option<i64>) -> i64 {
    let most = numbers.into_iter().chain(threads).min();
    most.map_or(4096, |most| (most / 8).clamp(1024, 32_768))
}

fn field(text: &str, name: &str) -> Option<i64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Memory limit of the root of the agent's cgroup namespace, for machines that are containers
/// themselves.
fn cgroup_memory_limit() -> Option<i64> {
    number("/sys/fs/cgroup/memory.max").or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
}

fn bounding_set() -> BTreeSet<String> {
    let status = text("/proc/self/status");
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .unwrap_or_default();
    capabilities::from_mask(u64::from_str_radix(mask.trim(), 16).unwrap_or(0))
}

fn os_image() -> String {
    let release = text("/etc/os-release");
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .unwrap_or("Linux");
    name.trim_matches('"').to_owned()
}

fn hugepages() -> BTreeMap<String, i64> {
    let mut sizes = BTreeMap::new();
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kibibytes: Option<i64> = name
            .strip_prefix("hugepages-")
            .and_then(|name| name.strip_suffix("kB"))
            .and_then(|size| size.parse().ok());
        let Some(kibibytes) = kibibytes else { continue };
        let pages = number(&entry.path().join("nr_hugepages").to_string_lossy()).unwrap_or(0);
        let label = match kibibytes {
            size if size % (1024 * 1024) == 0 => format!("{}Gi", size / 1024 / 1024),
            size if size % 1024 == 0 => format!("{}Mi", size / 1024),
            size => format!("{size}Ki"),
        };
        sizes.insert(label, pages.saturating_mul(kibibytes).saturating_mul(1024));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{identifier, pids_per_pod};

    #[test]
    fn a_machine_is_known_as_by_the_command_line() {
        let known = identifier(b"m\n", b"u\n", Path::new("/var/lib/skiff-agent"));
        assert_eq!(known, "8d11276034cda1e5a7c3d75052a733c5");
    }

    #[test]
    fn a_pod_has_an_eighth_of_what_the_kernel_has_room_for() {
        assert_eq!(pids_per_pod(Some(4_194_304), Some(15_620)), 1952);
        assert_eq!(pids_per_pod(Some(32_768), Some(190_000)), 4096);
        assert_eq!(pids_per_pod(Some(4_194_304), Some(700_000)), 32_768);
        assert_eq!(pids_per_pod(None, None), 4096);
    }
}
