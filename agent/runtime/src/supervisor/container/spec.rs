//! Turns the agent's configuration of a container into libcontainer's: with our paths and
//! namespaces, and without anything that this machine refuses.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use oci_spec::runtime::{
    Capabilities, LinuxCapabilities, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, Mount, PosixRlimit,
    PosixRlimitBuilder, PosixRlimitType, Process, RootBuilder, Spec, UserBuilder,
};

use crate::Refusal;
use crate::supervisor::process::user::Identity;
use crate::supervisor::rootfs::{devices, shm};

/// Paths and namespaces of one container.
pub(crate) struct Place<'a> {
    pub(crate) rootfs: &'a Path,
    /// Path in the hierarchies, with a leading slash.
    pub(crate) cgroup: PathBuf,
    /// Namespaces: new ones, and the pod's by their paths.
    pub(crate) namespaces: Vec<(LinuxNamespaceType, Option<PathBuf>)>,
    /// Mount point of the pod's shared memory.
    pub(crate) memory: &'a Path,
    /// True if the creator of the container sets up its cgroups: devices at once, limits at the
    /// start, so that a small quota does not throttle the creation.
    pub(crate) grouped: bool,
    /// True if the pod's namespaces have their sysctls already.
    pub(crate) settled: bool,
}

/// PID namespace of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PidNamespace {
    Own,
    Host,
    /// The PID namespace of the process with this PID.
    Shared(i32),
}

/// Completes and clamps a configuration.
pub(crate) fn confine(mut spec: Spec, identity: &Identity, place: &Place<'_>) -> Result<Spec, Refusal> {
    let broken = |error: oci_spec::OciSpecError| Refusal::failed("complete the configuration", &error);
    let root = RootBuilder::default()
        .path(place.rootfs)
        .readonly(is_closed(&spec))
        .build()
        .map_err(broken)?;
    spec.set_root(Some(root))
        .set_hostname(None)
        .set_domainname(None)
        .set_hooks(None);
    let mut process = spec.process().clone().unwrap_or_default();
    if process.no_new_privileges() != Some(true) {
        // Only without the flag does libcontainer load a seccomp filter before it drops the
        // capabilities that this needs.
        process.set_no_new_privileges(None);
    }
    let user = UserBuilder::default()
        .uid(identity.uid)
        .gid(identity.gid)
        .additional_gids(identity.supplementary.clone())
        .build()
        .map_err(broken)?;
    process.set_user(user);
    set_home(&mut process, identity);
    check_cwd(process.cwd())?;
    clamp(&mut process)?;
    spec.set_process(Some(process));
    if let Some(mounts) = spec.mounts().clone() {
        let shared = mounts.into_iter().map(|mount| share_memory(mount, place.memory));
        spec.set_mounts(Some(shared.collect()));
    }
    devices::add(&mut spec, &place.namespaces)?;
    let mut linux = spec.linux().clone().unwrap_or_default();
    if place.grouped {
        linux.set_resources(None);
    }
    linux.set_namespaces(Some(namespaces(&place.namespaces).map_err(broken)?));
    if place.settled {
        linux.set_sysctl(None);
    }
    linux
        .set_cgroups_path(Some(place.cgroup.clone()))
        .set_uid_mappings(None)
        .set_gid_mappings(None);
    spec.set_linux(Some(linux));
    Ok(spec)
}

/// True if the root file system is read-only.
pub(crate) fn is_closed(spec: &Spec) -> bool {
    let root = spec.root().as_ref();
    root.and_then(oci_spec::runtime::Root::readonly).unwrap_or(false)
}

/// Replaces a `/dev/shm` that is not a volume by the pod's.
fn share_memory(mut mount: Mount, memory: &Path) -> Mount {
    if mount.destination() == Path::new(shm::TARGET) && mount.typ().as_deref() == Some("tmpfs") {
        let options = ["bind", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
        mount
            .set_typ(Some("bind".to_owned()))
            .set_source(Some(memory.to_owned()))
            .set_options(Some(options));
    }
    mount
}

fn namespaces(wanted: &[(LinuxNamespaceType, Option<PathBuf>)]) -> Result<Vec<LinuxNamespace>, oci_spec::OciSpecError> {
    let one = |(kind, path): &(LinuxNamespaceType, Option<PathBuf>)| {
        let builder = LinuxNamespaceBuilder::default().typ(*kind);
        match path {
            Some(path) => builder.path(path).build(),
            None => builder.build(),
        }
    };
    wanted.iter().map(one).collect()
}

impl PidNamespace {
    /// Opens the namespace to join. A path would be resolved in the container's user namespace,
    /// which may not see the process.
    pub(in crate::supervisor) fn open(&self) -> io::Result<Option<File>> {
        match self {
            Self::Own | Self::Host => Ok(None),
            Self::Shared(pid) => File::open(format!("/proc/{pid}/ns/pid")).map(Some),
        }
    }
}

fn set_home(process: &mut Process, identity: &Identity) {
    let mut env = process.env().clone().unwrap_or_default();
    env.retain(|entry| entry != "HOME=");
    if !env.iter().any(|entry| entry.starts_with("HOME=")) {
        env.push(format!("HOME={}", identity.home.as_deref().unwrap_or("/")));
        process.set_env(Some(env));
    }
}

/// Refuses a working directory below `/proc`: it can be a descriptor of the runtime that leads out
/// of the container. libcontainer checks the resulting directory; this gives a clear message.
fn check_cwd(cwd: &Path) -> Result<(), Refusal> {
    let parent = cwd.components().any(|part| part == Component::ParentDir);
    if !cwd.is_absolute() || parent || cwd.starts_with("/proc") {
        let cause = "must be absolute, without .., and not below /proc".to_owned();
        return Err(Refusal::Failed {
            doing: format!("working directory {}", cwd.display()),
            cause,
        });
    }
    Ok(())
}

fn clamp(process: &mut Process) -> Result<(), Refusal> {
    let status =
        fs::read_to_string("/proc/self/status").map_err(|error| Refusal::failed("read /proc/self/status", &error))?;
    let set = |key: &str| {
        let hex = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map(str::trim)
            .unwrap_or_default();
        u64::from_str_radix(hex, 16).unwrap_or(0)
    };
    // Both: a capability that this process lacks cannot be granted, and its bounding set is never
    // widened.
    let allowed = set("CapBnd:") & set("CapEff:");
    if let Some(capabilities) = process.capabilities() {
        process.set_capabilities(Some(intersect(capabilities, allowed)));
    }
    let privileged = allowed >> (libcap(oci_spec::runtime::Capability::SysResource)) & 1 == 1;
    if privileged {
        return Ok(());
    }
    if let Some(wanted) = process.oom_score_adj() {
        let own = fs::read_to_string("/proc/self/oom_score_adj")
            .ok()
            .and_then(|text| text.trim().parse::<i32>().ok());
        process.set_oom_score_adj(Some(wanted.max(own.unwrap_or(0))));
    }
    if let Some(limits) = process.rlimits().clone() {
        process.set_rlimits(Some(limits.into_iter().map(clamp_limit).collect()));
    }
    Ok(())
}

/// Number of a capability in the kernel.
fn libcap(capability: oci_spec::runtime::Capability) -> u32 {
    use libcontainer::capabilities::CapabilityExt;
    u32::from(capability.to_cap().index())
}

fn intersect(capabilities: &LinuxCapabilities, allowed: u64) -> LinuxCapabilities {
    let keep = |set: &Option<Capabilities>| {
        let kept = |capability: &&oci_spec::runtime::Capability| allowed >> libcap(**capability) & 1 == 1;
        set.as_ref()
            .map(|set| set.iter().filter(kept).copied().collect::<Capabilities>())
    };
    let mut result = capabilities.clone();
    result.set_bounding(keep(capabilities.bounding()));
    result.set_effective(keep(capabilities.effective()));
    result.set_permitted(keep(capabilities.permitted()));
    result.set_inheritable(keep(capabilities.inheritable()));
    result.set_ambient(keep(capabilities.ambient()));
    result
}

fn clamp_limit(limit: PosixRlimit) -> PosixRlimit {
    let resource = match limit.typ() {
        PosixRlimitType::RlimitCpu => Resource::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => Resource::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => Resource::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => Resource::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => Resource::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => Resource::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => Resource::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => Resource::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => Resource::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => Resource::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => Resource::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => Resource::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => Resource::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => Resource::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => Resource::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => Resource::RLIMIT_RTTIME,
    };
    let Ok((_, allowed)) = getrlimit(resource) else {
        return limit;
    };
    let hard = limit.hard().min(allowed);
    let clamped = PosixRlimitBuilder::default()
        .typ(limit.typ())
        .hard(hard)
        .soft(limit.soft().min(hard))
        .build();
    clamped.unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check_cwd;

    #[test]
    fn attack_11_working_directories_that_name_descriptors_are_refused() {
        for bad in [
            "/proc/self/fd/7",
            "/proc",
            "../x",
            "/a/../../b",
            "/a/../proc/self/fd/7",
            "",
        ] {
            assert!(check_cwd(Path::new(bad)).is_err(), "{bad}");
        }
        for good in ["/", "/srv/app", "/process"] {
            check_cwd(Path::new(good)).unwrap();
        }
    }
}
