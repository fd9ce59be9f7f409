//! Making a container, in a forked child of the supervisor: libcontainer's memory goes with it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use oci_spec::runtime::LinuxNamespaceType;

use super::confine::{PidNamespace, Place, confine};
use super::memory::{self, SharedMemory};
use super::program::Program;
use super::propagation::Shared;
use super::users::Users;
use super::{exec, groups, shifted, user, workplace};
use crate::cgroup::Cgroups;
use crate::overlay::{self, Writable};
use crate::sys::Mount;
use crate::{ContainerSpec, Refusal, record};

/// The name that libcontainer knows every container by: its directory below the container's own.
pub(super) const OCI: &str = "oci";
/// The completed configuration.
pub(super) const CONFIG: &str = "config.json";

/// What the child needs.
pub(super) struct Creation<'a> {
    pub(super) cgroups: &'a Cgroups,
    /// The container's group, relative to the hierarchies.
    pub(super) group: PathBuf,
    /// The container's directory, absolute.
    pub(super) directory: PathBuf,
    pub(super) pid_namespace: PidNamespace,
    /// None: the machine's.
    pub(super) users: Option<&'a Users>,
    /// None: the machine's.
    pub(super) memory: Option<&'a SharedMemory>,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// The socket that takes the terminal's master, absolute; for a container with a terminal.
    pub(super) console: Option<PathBuf>,
}

/// Where a container's first processes go.
pub(super) fn leaf(cgroups: &Cgroups, group: &Path) -> PathBuf {
    if cgroups.unified() {
        group.join("main")
    } else {
        group.to_owned()
    }
}

/// Makes the container and returns its first process, a child of this one, which waits to be started.
pub(super) fn create(creation: Creation<'_>, spec: &[u8], tracked: bool) -> Result<i32, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let spec: ContainerSpec =
        serde_json::from_slice(spec).map_err(|error| Refusal::failed("read the container's configuration", &error))?;
    let memory = creation.memory.map(SharedMemory::mount).transpose();
    let memory = memory.map_err(failed("find the pod's shared memory"))?;
    let shared = Shared::take(&spec.spec)?;
    enter_private_mounts().map_err(failed("unshare the mount namespace"))?;
    let rootfs = creation.directory.join("rootfs");
    mount_rootfs(&creation, &rootfs, &spec.layers).map_err(failed("mount the root file system"))?;
    let memory = match &memory {
        Some(mount) => attach_memory(mount, &creation.directory).map_err(failed("mount the pod's shared memory"))?,
        None => PathBuf::from(memory::TARGET),
    };
    let identity = user::resolve(&rootfs, &spec.user)?;
    if let Some(users) = creation.users {
        users.check(&spec.user.user, &identity)?;
    }
    let owner = exec::owner(creation.users, identity.uid);
    exec::own([&creation.stdin, &creation.stdout, &creation.stderr], owner).map_err(failed("give the streams away"))?;
    let leaf = leaf(creation.cgroups, &creation.group);
    enter_cgroups(&creation, &leaf, tracked).map_err(failed("enter the container's cgroup"))?;
    if !groups::every_device(&spec.spec) {
        let confined = creation.cgroups.confine_devices(&creation.group);
        confined.map_err(failed("confine the container's devices"))?;
    }
    let joined = creation
        .pid_namespace
        .open()
        .map_err(failed("open the pid namespace"))?;
    let place = Place {
        rootfs: &rootfs,
        cgroup: PathBuf::from("/"),
        namespaces: namespaces(&creation, joined.as_ref()),
        memory: &memory,
        grouped: true,
        settled: true,
    };
    let mut config = confine(spec.spec, &identity, &place)?;
    workplace::make(&rootfs, &config, creation.users).map_err(failed("make the working directory"))?;
    shared.settle(&mut config, &creation.directory, &memory)?;
    if let Some(users) = creation.users {
        shifted::volumes(users, &mut config, &creation.directory, &memory)?;
        shifted::open_way(&creation.directory).map_err(failed("open the way to the container"))?;
    }
    groups::show(creation.cgroups, &leaf, &creation.directory, &mut config)
        .map_err(failed("mount the container's control groups"))?;
    groups::keep(&creation.directory, &mut config)?;
    groups::hide(creation.cgroups, &creation.directory).map_err(failed("arrange the control groups"))?;
    record::write(&creation.directory.join(CONFIG), &config, record::Durability::Process)
        .map_err(failed("write the configuration"))?;
    let broken = |error: libcontainer::error::LibcontainerError| described(&error);
    let container = ContainerBuilder::new(OCI.to_owned(), SyscallType::default())
        .with_root_path(&creation.directory)
        .map_err(broken)?
        .with_stdin(creation.stdin)
        .with_stdout(creation.stdout)
        .with_stderr(creation.stderr)
        .with_console_socket(creation.console)
        .with_executor(Program)
        .as_init(&creation.directory)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(broken)?;
    let none = || Refusal::Failed {
        doing: "create container".to_owned(),
        cause: "it has no process".to_owned(),
    };
    container.pid().map(nix_pid).ok_or_else(none)
}

/// libcontainer's error, without that of its clean-up: the supervisor cleans up.
fn described(error: &libcontainer::error::LibcontainerError) -> Refusal {
    let text = error.to_string();
    let cause = text.split(". error during cleanup:").next().unwrap_or_default();
    // libcontainer looks for the program while it creates, and hands the init process's words through as text.
    if let Some((_, why)) = cause.split_once("exec process failed with error ") {
        let why = why.strip_prefix("error in executing process : ").unwrap_or(why);
        return Refusal::Program(format!("error during container init: {why}"));
    }
    Refusal::Failed {
        doing: "create container".to_owned(),
        cause: cause.to_owned(),
    }
}

/// Puts this process, and so all that it forks, where the container shall be.
fn enter_cgroups(creation: &Creation<'_>, leaf: &Path, tracked: bool) -> io::Result<()> {
    creation.cgroups.create(leaf)?;
    creation.cgroups.enter(leaf, tracked)
}

/// libcontainer has an older nix.
fn nix_pid(pid: impl Into<i32>) -> i32 {
    pid.into()
}

/// Mounts made from here on are seen by this process and its children only, and end with them.
fn enter_private_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    Ok(())
}

/// The namespaces of a container whose parent is in the pod's own ipc, uts and net namespaces, which it inherits.
fn namespaces(creation: &Creation<'_>, pids: Option<&File>) -> Vec<(LinuxNamespaceType, Option<PathBuf>)> {
    let mut all = vec![(LinuxNamespaceType::Mount, None), (LinuxNamespaceType::Cgroup, None)];
    if let Some(users) = creation.users {
        all.push((LinuxNamespaceType::User, Some(users.path())));
    }
    match (&creation.pid_namespace, pids) {
        (PidNamespace::Own, _) => all.push((LinuxNamespaceType::Pid, None)),
        (PidNamespace::Host, _) | (PidNamespace::Shared(_), None) => {}
        (PidNamespace::Shared(_), Some(pids)) => {
            let path = PathBuf::from(format!("/proc/self/fd/{}", pids.as_raw_fd()));
            all.push((LinuxNamespaceType::Pid, Some(path)));
        }
    }
    all
}

/// Overlays the layers with a writable directory of the container's own.
fn mount_rootfs(creation: &Creation<'_>, rootfs: &Path, layers: &[PathBuf]) -> io::Result<()> {
    let directory = &creation.directory;
    let (upper, work) = (directory.join("upper"), directory.join("work"));
    for made in [rootfs, &upper, &work] {
        fs::create_dir(made)?;
    }
    // The root directory of the container has the mode of its topmost layer's.
    if let Some(top) = layers.last() {
        let found = fs::metadata(top)?;
        shifted::give(creation.users, &upper, &found)?;
        fs::set_permissions(&upper, found.permissions())?;
    }
    let (upper, work) = (upper.as_path(), work.as_path());
    let layers = shifted::layers(creation.users, layers, directory)?;
    overlay::attach(&layers, Writable { upper, work }, rootfs)
}

/// Gives the pod's shared memory a path for the configuration.
fn attach_memory(mount: &Mount, directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join("shm");
    fs::create_dir(&path)?;
    mount.attach(&path)?;
    Ok(path)
}
