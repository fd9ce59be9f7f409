//! Creation of a container, in a forked child of the supervisor: libcontainer's memory is freed
//! with it.

use std::fs::{self, File};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::cgroup::{Access, View};
use super::spec::{PidNamespace, Place, confine, is_closed};
use super::start::{self, Starter};
use super::sync_pipe::SyncPipe;
use super::{cgroup, depth, seccomp};
use crate::cgroup::Cgroups;
use crate::cgroup::devices::Rule;
use crate::files::overlay::{self, Writable};
use crate::files::{label, record};
use crate::supervisor::CONFIG;
use crate::supervisor::namespaces::users::Users;
use crate::supervisor::process::program::{Program, set_exec_label};
use crate::supervisor::process::{affinity, exec, user};
use crate::supervisor::rootfs::cwd::InVolume;
use crate::supervisor::rootfs::delayed::DelayedMounts;
use crate::supervisor::rootfs::mounts::{Last, Sources};
use crate::supervisor::rootfs::namespace::MountNamespace;
use crate::supervisor::rootfs::shm::{self, SharedMemory};
use crate::supervisor::rootfs::{cwd, declared, id_mapped, namespace};
use crate::supervisor::streams::libcontainer_log::{Complaints, described, failed_mount, init_failed};
use crate::supervisor::streams::stdio;
use crate::sys::Mount;
use crate::{ContainerSpec, Refusal};

/// Root file system and its writable layer, in the container's directory.
const ROOTFS: &str = "rootfs";
const UPPER: &str = "upper";
const WORK: &str = "work";

/// Arguments of the child that creates a container.
pub(super) struct Creation<'a> {
    pub(in crate::supervisor) cgroups: &'a Cgroups,
    /// Cgroup of the container, relative to the hierarchies.
    pub(in crate::supervisor) group: PathBuf,
    /// Becomes readable when the supervisor has created the cgroup.
    pub(super) grouped: PipeReader,
    /// Directory of the container, absolute.
    pub(in crate::supervisor) directory: PathBuf,
    pub(in crate::supervisor) pid_namespace: PidNamespace,
    /// User namespace of the pod; `None` for the machine's.
    pub(in crate::supervisor) users: Option<&'a Users>,
    /// Shared memory of the pod; `None` for the machine's.
    pub(in crate::supervisor) memory: Option<&'a SharedMemory>,
    pub(in crate::supervisor) mntns: &'a MountNamespace,
    pub(in crate::supervisor) stdin: OwnedFd,
    pub(in crate::supervisor) stdout: OwnedFd,
    pub(in crate::supervisor) stderr: OwnedFd,
    /// True if a socket in the directory waits for a terminal's master.
    pub(in crate::supervisor) terminal: bool,
    /// Connected when the init process exists.
    pub(in crate::supervisor) starter: &'a Starter,
    /// Waits for the pod's network and volumes; `None` if they exist already.
    pub(in crate::supervisor) sync_pipe: Option<&'a SyncPipe>,
}

/// Returns the cgroup of a container's first processes.
pub(in crate::supervisor) fn leaf(cgroups: &Cgroups, group: &Path) -> PathBuf {
    if cgroups.unified() {
        group.join("main")
    } else {
        group.to_owned()
    }
}

/// Mounts and files that a creation opens before it leaves the machine's mount namespace.
struct Taken {
    home: Mount,
    /// Shared memory of the machine; `None`: the pod's is in the mount namespace.
    memory: Option<Mount>,
    layers: Vec<Mount>,
}

/// Steps that remain once the volumes have contents.
struct Rest {
    /// True if only the mount points of volumes matter, so that the steps run now.
    placed: bool,
    /// Access of the container to its cgroups; `None`: they are not mounted.
    access: Option<Access>,
    /// Number of used slots in the mount namespace.
    taken: usize,
    rootfs: PathBuf,
    sources: Sources,
    directory: Option<InVolume>,
}

/// Creates the container and returns its init process, a child of this one, which waits for the
/// start.
pub(super) fn create(creation: Creation<'_>, spec: &[u8], tracked: bool) -> Result<i32, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let spec: ContainerSpec =
        serde_json::from_slice(spec).map_err(|error| Refusal::failed("read the container's configuration", &error))?;
    make_writable(&creation, &spec.layers, label::of_mounts(&spec.spec))
        .map_err(failed("make the root file system"))?;
    let mut origins = bound(&spec.spec);
    let taken = take(&creation, &spec)?;
    let devices = cgroup::device_rules(&spec.spec);
    let joined = creation
        .pid_namespace
        .open()
        .map_err(failed("open the pid namespace"))?;
    let entered = creation
        .memory
        .map_or_else(|| creation.mntns.enter(), SharedMemory::enter);
    entered.map_err(failed("enter a mount namespace"))?;
    let (mut config, rest) = set_stage(&creation, taken, spec, joined.as_ref())?;
    let access = rest.access;
    let (last, late) = furnish(&creation, rest, &mut config, &mut origins)?;
    seccomp::turn(&mut config).map_err(|error| Refusal::failed("complete the configuration", &error))?;
    let home = Path::new(namespace::HOME);
    let directory = config.process().as_ref().map(|process| process.cwd().clone());
    let directory = directory.unwrap_or_default();
    let hidden = late.hides(&directory);
    if hidden {
        // libcontainer would start the program in a hidden directory.
        begin_in(&mut config, PathBuf::from("/"));
    }
    let write = |config: &Spec| record::write(&home.join(CONFIG), config).map_err(failed("write the configuration"));
    write(&config)?;
    set_exec_label(&config)?;
    namespace::close().map_err(failed("close the mount namespace"))?;
    // The supervisor creates them meanwhile.
    enter_groups(&creation, access, devices.as_deref(), tracked)?;
    creation.sync_pipe.map_or(Ok(()), |pipe| pipe.connect(creation.mntns))?;
    // The process that moved this one has done so by now, or is gone.
    let back = affinity::come_back();
    back.map_err(|error| failed("use every processor")(error.into()))?;
    last.put(&origins)?;
    let complaints = Complaints::new().map_err(failed("make a file for complaints"))?;
    let build = || {
        ContainerBuilder::new(start::NAME.to_owned(), SyscallType::default())
            .with_root_path(namespace::STATE)?
            .with_stdin(creation.stdin)
            .with_stdout(creation.stdout)
            .with_stderr(creation.stderr)
            .with_console_socket(creation.terminal.then(|| home.join(stdio::CONSOLE)))
            .with_executor(Program::in_directory(hidden.then(|| directory.clone())))
            .as_init(home)
            .with_systemd(false)
            .with_detach(true)
            .build()
    };
    let outcome = complaints.during(build).map_err(failed("listen for complaints"))?;
    let container = outcome.map_err(|error| {
        let mounts = config.mounts().as_deref().unwrap_or_default();
        let heard = complaints.heard();
        let cause = failed_mount(&heard, mounts, &origins);
        cause.map_or_else(
            || described(&error.to_string(), &heard, &directory),
            |cause| init_failed(&cause),
        )
    })?;
    let pid = first_process(&container, creation.starter)?;
    if hidden {
        begin_in(&mut config, directory);
        write(&config)?;
    }
    late.attach(pid, creation.users)?;
    Ok(pid)
}

/// Returns the PID of the container's init process once it can be started.
fn first_process(container: &Container, starter: &Starter) -> Result<i32, Refusal> {
    let connected = starter.connect();
    connected.map_err(|error| Refusal::failed("reach the container's first process", &error))?;
    let none = || Refusal::Failed {
        doing: "create container".to_owned(),
        cause: "it has no process".to_owned(),
    };
    container.pid().map(nix_pid).ok_or_else(none)
}

fn begin_in(config: &mut Spec, directory: PathBuf) {
    if let Some(process) = config.process_mut() {
        process.set_cwd(directory);
    }
}

fn take(creation: &Creation<'_>, spec: &ContainerSpec) -> Result<Taken, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let is_machines = creation.memory.is_none();
    let memory = is_machines.then(|| Mount::private(Path::new(shm::TARGET)));
    Ok(Taken {
        home: Mount::private(&creation.directory).map_err(failed("take the container's directory"))?,
        memory: memory.transpose().map_err(failed("find the machine's shared memory"))?,
        layers: id_mapped::layers(creation.users, &spec.layers).map_err(failed("take the image's layers"))?,
    })
}

/// Attaches the opened mounts in the mount namespace and completes the configuration accordingly.
fn set_stage(
    creation: &Creation<'_>,
    taken: Taken,
    mut spec: ContainerSpec,
    pids: Option<&File>,
) -> Result<(Spec, Rest), Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let Taken {
        home: own,
        memory: shared,
        layers,
    } = taken;
    let (home, memory) = (Path::new(namespace::HOME), Path::new(namespace::MEMORY));
    let rootfs = home.join(ROOTFS);
    let put = own.attach(home);
    put.and_then(|()| start::make_room())
        .and_then(|()| shared.map_or(Ok(()), |shared| shared.attach(memory)))
        .map_err(failed("set up the mount namespace"))?;
    let label = label::of_mounts(&spec.spec);
    if let Some(label) = label.filter(|_| creation.memory.is_some()) {
        label::set(memory, label).map_err(failed("label the pod's shared memory"))?;
    }
    mount_rootfs(&layers, label, home).map_err(failed("mount the root file system"))?;
    let volumes = declared::places(&rootfs, &spec.volumes)?;
    declared::make(&rootfs, &volumes, creation.users.map(Users::root))?;
    if is_closed(&spec.spec) {
        declared::keep_open(&rootfs, &volumes).map_err(failed("mount the image's volumes"))?;
    }
    let identity = user::resolve(&rootfs, &spec.user)?;
    if let Some(users) = creation.users {
        users.check(&spec.user.user, &identity)?;
    }
    let owner = exec::owner(creation.users, identity.uid);
    exec::own([&creation.stdin, &creation.stdout, &creation.stderr], owner).map_err(failed("give the streams away"))?;
    let place = Place {
        rootfs: &rootfs,
        cgroup: PathBuf::from("/"),
        namespaces: namespaces(creation, pids),
        memory,
        grouped: true,
        settled: true,
    };
    let held = creation.sync_pipe.filter(|_| creation.users.is_none());
    let placed = held.is_some_and(|pipe| pipe.placed) && !depth::is_looked_into(&spec.spec);
    let directory = cwd::in_volume(&spec.spec);
    let sources = Sources::of(&mut spec.spec);
    let mut config = confine(spec.spec, &identity, &place)?;
    label::settle(&mut config);
    cwd::in_root(&rootfs, &config, creation.users)?;
    let access = cgroup::show(&mut config);
    let rest = Rest {
        placed,
        access,
        taken: layers.len(),
        rootfs,
        sources,
        directory,
    };
    Ok((config, rest))
}

/// Mounts the pod's volumes once they have contents.
fn furnish(
    creation: &Creation<'_>,
    rest: Rest,
    config: &mut Spec,
    origins: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<(Last, DelayedMounts), Refusal> {
    let Rest {
        placed,
        access: _,
        taken,
        rootfs,
        mut sources,
        directory,
    } = rest;
    if let Some(pipe) = creation.sync_pipe.filter(|_| !placed) {
        let asked = pipe.until_asked();
        asked.map_err(|error| Refusal::failed("wait to be asked for the container", &error))?;
    }
    let found = creation.mntns.away(|| {
        directory.as_ref().map_or(Ok(()), InVolume::make)?;
        sources.take(creation.users)
    });
    found.map_err(|error| Refusal::failed("go among the machine's mounts", &error))??;
    sources.put(taken, config, &rootfs, creation.users.is_some(), origins)
}

/// Targets of a container's bind mounts, and their sources on the machine.
fn bound(spec: &Spec) -> Vec<(PathBuf, PathBuf)> {
    let mounts = spec.mounts().iter().flatten();
    mounts
        .filter_map(|mount| Some((mount.destination().clone(), mount.source().clone()?)))
        .collect()
}

/// Moves this process, and so its forks, into the container's cgroup, and mounts the container's
/// view of it in the mount namespace.
fn enter_groups(
    creation: &Creation<'_>,
    access: Option<Access>,
    devices: Option<&[Rule]>,
    tracked: bool,
) -> Result<(), Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let taken = creation.mntns.away(|| take_groups(creation, access, devices, tracked));
    let view = taken.map_err(failed("go among the machine's mounts"))??;
    let put = view.map_or(Ok(()), View::put);
    put.map_err(failed("mount the container's control groups"))
}

fn take_groups(
    creation: &Creation<'_>,
    access: Option<Access>,
    devices: Option<&[Rule]>,
    tracked: bool,
) -> Result<Option<View>, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let (cgroups, leaf) = (creation.cgroups, leaf(creation.cgroups, &creation.group));
    let made = (&creation.grouped).read_exact(&mut [0]);
    let made = match creation.sync_pipe {
        // The failure is reported by the request that creates the container.
        Some(_) => made,
        // If the supervisor could not create it, this error says why.
        None => made.or_else(|_| cgroups.create(&leaf)),
    };
    let entered = made.and_then(|()| cgroups.enter(&leaf, tracked));
    entered.map_err(failed("enter the container's cgroup"))?;
    if let Some(devices) = devices {
        let confined = cgroups.confine_devices(&creation.group, devices);
        confined.map_err(failed("confine the container's devices"))?;
    }
    let view = access.map(|access| View::take(cgroups, &leaf, access));
    view.transpose().map_err(failed("take the container's control groups"))
}

/// Converts to the PID type of libcontainer's older nix.
fn nix_pid(pid: impl Into<i32>) -> i32 {
    pid.into()
}

/// Namespaces of a container whose parent is in the pod's IPC, UTS and network namespaces, which it
/// inherits.
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

/// Creates the directories of the writable layer.
fn make_writable(creation: &Creation<'_>, layers: &[PathBuf], label: Option<&str>) -> io::Result<()> {
    let upper = creation.directory.join(UPPER);
    for made in [&creation.directory.join(ROOTFS), &upper, &creation.directory.join(WORK)] {
        match fs::create_dir(made) {
            // It was made ahead.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created?,
        }
    }
    // Files created or changed there are also labeled as they lie on the disk, for example when
    // executed.
    label.map_or(Ok(()), |label| label::set(&upper, label))?;
    // The root directory has the mode of its topmost layer.
    if let Some(top) = layers.last() {
        let found = fs::metadata(top)?;
        id_mapped::give(creation.users, &upper, &found)?;
        fs::set_permissions(&upper, found.permissions())?;
    }
    Ok(())
}

/// Mounts the layers with the directories of [`make_writable`].
fn mount_rootfs(layers: &[Mount], label: Option<&str>, home: &Path) -> io::Result<()> {
    let put = layers
        .iter()
        .enumerate()
        .map(|(number, layer)| namespace::put(layer, number));
    let layers = put.collect::<io::Result<Vec<_>>>()?;
    let (upper, work) = (home.join(UPPER), home.join(WORK));
    let (upper, work) = (upper.as_path(), work.as_path());
    overlay::attach(&layers, Writable { upper, work }, label, &home.join(ROOTFS))
}
