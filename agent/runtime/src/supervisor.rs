//! Supervisor: the process that holds one pod, as parent of its containers, writer of their logs
//! and exit records.
//!
//! It is the agent's own program, run again with the arguments that [`main`] takes, single-threaded
//! and small, and outlives the agent. libcontainer runs only in short-lived forks of it. It exits
//! when it is told to, or when no agent can find it any more.
//!
//! * `zygote`: the process that supervisors are forked from
//! * `state`, `poll`, `exits`: the state, its event loop and its end; `client`: an agent's connection
//! * `job`: forked children that do the heavy work
//! * `container`, `process`: containers, and processes in them
//! * `rootfs`, `namespaces`, `streams`: what they are made of

mod client;
pub(crate) mod container;
pub(crate) mod exits;
mod job;
mod namespaces;
mod poll;
pub(crate) mod process;
pub(crate) mod rootfs;
mod state;
pub(crate) mod streams;
pub(crate) mod zygote;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use container::environment::PodEnvironment;
use job::Job;
use namespaces::pause::Pause;
use namespaces::ready::Ready;
use namespaces::users::Users;
use rootfs::namespace::MountNamespace;
use rootfs::shm::SharedMemory;
use zygote::Order;
pub(crate) use zygote::order;

use crate::cgroup::Cgroups;
use crate::clock::now;
use crate::files::record;
use crate::protocol::{self, Answer, Configuration, Message};
use crate::{Refusal, Sandbox, SandboxSpec};

/// Socket in the sandbox's directory.
pub(crate) const SOCKET: &str = "supervisor.sock";
/// Record of a sandbox, for an agent that finds no supervisor.
pub(crate) const SANDBOX: &str = "sandbox.json";
/// Directories of containers.
pub(crate) const CONTAINERS: &str = "containers";
/// Directory made ahead, which is renamed to that of a sandbox's first container.
pub(crate) const FIRST: &str = "first";
/// Contents of a sandbox's directory that was made ahead; supervisors of earlier versions ignore
/// them.
pub(crate) const FOLDERS: [&str; 4] = [FIRST, "first/rootfs", "first/upper", "first/work"];
/// Completed configuration.
pub(crate) const CONFIG: &str = "config.json";
/// Record of a container and its exit.
pub(crate) const RECORD: &str = "record.json";
/// Cgroup of all supervisors, below the root of our cgroups.
pub(crate) const GROUP: &str = "supervisors";

/// `sandbox.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub(crate) sandbox: Sandbox,
    /// PID of the supervisor.
    pub(crate) supervisor: i32,
    /// Start time, in clock ticks since boot, to tell it from a later process of the same PID.
    pub(crate) started: u64,
}

/// Runs the zygote, which forks one supervisor for each order, or a supervisor in such a fork. Must
/// be called before the process has any other thread; standard input is a socket to the agent. The
/// zygote exits with the agent; the supervisors go on.
///
/// Forked supervisors share all memory that they do not write, relocated tables of the program
/// above all, and start in less than a millisecond.
pub fn main() -> ExitCode {
    // Read once, because the machine's mount table grows with its pods.
    let cgroups = match Cgroups::detect() {
        Ok(cgroups) => cgroups,
        Err(error) => return broken("read the cgroup layout", &error),
    };
    let mntns = match MountNamespace::make(&cgroups) {
        Ok(mntns) => mntns,
        Err(error) => return broken("make a mount namespace", &error),
    };
    process::affinity::look();
    match zygote::serve(&mntns) {
        Ok(Some(order)) => supervise(order, mntns, cgroups),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => broken("make supervisors", &error),
    }
}

fn broken(doing: &str, error: &io::Error) -> ExitCode {
    // stderr is the only place left to report it.
    drop(writeln!(io::stderr(), "supervisors cannot {doing}: {error}"));
    ExitCode::FAILURE
}

fn supervise(order: Order, mntns: MountNamespace, cgroups: Cgroups) -> ExitCode {
    let Order {
        directory,
        mut agent,
        ready,
    } = order;
    // Otherwise the agent went away before it sent the configuration.
    let Ok((configuration, _)) = read_frame(&mut agent) else {
        return ExitCode::FAILURE;
    };
    let mut jobs = Vec::new();
    let set_up =
        ready.and_then(|ready| set_up(&directory, configuration, mntns, cgroups, ready, &mut agent, &mut jobs));
    let (result, supervisor) = match set_up {
        Ok(mut supervisor) => {
            supervisor.jobs = container::precreate::wait_on(jobs);
            let (sandbox, supervisor_pid) = (supervisor.sandbox(), nix::unistd::getpid().as_raw());
            (
                Ok(Answer::Ready {
                    sandbox,
                    supervisor: supervisor_pid,
                }),
                Some(supervisor),
            )
        }
        Err((doing, error)) => {
            // The caller removes the files that they work on.
            jobs.iter().map(Job::end).for_each(drop);
            (Err(Refusal::failed(doing, &error)), None)
        }
    };
    let told = protocol::encode(&Message::Reply { id: 0, result }, &[]).and_then(|frame| agent.write_all(&frame));
    match (supervisor, told) {
        (Some(mut supervisor), Ok(())) => match supervisor.run(agent) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        (_, _) => ExitCode::FAILURE,
    }
}

fn read_frame<Head: DeserializeOwned>(agent: &mut UnixStream) -> io::Result<(Head, Vec<u8>)> {
    let mut buffer = vec![0; protocol::PREFIX];
    agent.read_exact(&mut buffer)?;
    let prefix = buffer.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    let (head, body) = protocol::lengths(*prefix)?;
    buffer.resize(protocol::PREFIX + head + body, 0);
    agent.read_exact(buffer.get_mut(protocol::PREFIX..).unwrap_or_default())?;
    Ok(protocol::take(&mut buffer)?.ok_or(io::ErrorKind::InvalidData)?)
}

type Failure = (&'static str, io::Error);

fn at<Source: Into<io::Error>>(doing: &'static str) -> impl Fn(Source) -> Failure {
    move |error| (doing, error.into())
}

fn set_up(
    directory: &Path,
    configuration: Configuration,
    mntns: MountNamespace,
    cgroups: Cgroups,
    mut ready: Ready,
    agent: &mut UnixStream,
    jobs: &mut Vec<Job>,
) -> Result<state::Supervisor, Failure> {
    let Configuration { spec, cgroup_root } = configuration;
    let mut hear = |environment: Option<&PodEnvironment<'_>>, wait| {
        container::precreate::hear(agent, &spec, environment, jobs, wait).map_err(at("wait for the network"))
    };
    // The user namespace of a pod is found by its network namespace.
    let mut connected = spec.user_ids.is_some() && hear(None, true)?;
    let users = own_users(&spec).map_err(at("find the pod's users"))?;
    let memory = shared_memory(ready.memory.take(), &spec, &mntns, users.as_ref())
        .map_err(at("make the pod's shared memory"))?;
    nix::unistd::chdir(directory).map_err(at("enter the sandbox's directory"))?;
    let group = Path::new(&cgroup_root).join(spec.class.folder()).join(&spec.id);
    let settled = ready.settle(&spec, users.as_ref());
    settled.map_err(at("settle in namespaces"))?;
    fs::create_dir(CONTAINERS).map_err(at("create the containers' directory"))?;
    let environment = PodEnvironment {
        cgroups: &cgroups,
        group: &group,
        directory,
        mntns: &mntns,
        users: users.as_ref(),
        memory: memory.as_ref(),
    };
    // Create the precreated containers first: making the groups takes a while on v1.
    connected = connected || hear(Some(&environment), false)?;
    cgroups.create(&group).map_err(at("create the pod's cgroup"))?;
    failpoint::reach("group made");
    if !connected {
        hear(Some(&environment), true)?;
    }
    join_network(&spec)?;
    namespaces::sysctls::set(&spec).map_err(at("set what the pod wants of the kernel"))?;
    container::precreate::connect(jobs);
    let pause = if spec.share_process_namespace && !spec.host_pid {
        Some(Pause::start(&mntns, users.as_ref()).map_err(at("make the shared pid namespace"))?)
    } else {
        None
    };
    let listener = listen().map_err(at("listen"))?;
    Ok(state::Supervisor {
        directory: directory.to_owned(),
        sandbox: record_sandbox(&spec)?,
        spec,
        cgroups,
        group,
        mntns,
        users,
        pause,
        memory,
        listener,
        signals: ready.signals,
        clients: Vec::new(),
        entries: Vec::new(),
        execs: Vec::new(),
        jobs: Vec::new(),
        unclaimed: Vec::new(),
        unsettled: Vec::new(),
        stale: Vec::new(),
        shutdown: None,
        ended: false,
        keys: 0,
    })
}

/// Writes the sandbox's record.
fn record_sandbox(spec: &SandboxSpec) -> Result<Sandbox, Failure> {
    let sandbox = Sandbox {
        id: spec.id.clone(),
        pod: spec.pod.clone(),
        attempt: spec.attempt,
        created_at: now(),
        user_ids: spec.user_ids,
        se_linux_level: spec.se_linux_level.clone(),
        lost: false,
        containers: Vec::new(),
    };
    let record = SandboxRecord {
        sandbox: sandbox.clone(),
        supervisor: nix::unistd::getpid().as_raw(),
        started: started("self").unwrap_or(0),
    };
    record::write(Path::new(SANDBOX), &record).map_err(at("write the sandbox's record"))?;
    failpoint::reach("sandbox recorded");
    Ok(sandbox)
}

fn join_network(spec: &SandboxSpec) -> Result<(), Failure> {
    let Some(netns) = &spec.netns else { return Ok(()) };
    let netns = File::open(netns).map_err(at("open the network namespace"))?;
    setns(netns, CloneFlags::CLONE_NEWNET).map_err(at("join the network namespace"))?;
    nix::unistd::sethostname(&spec.hostname).map_err(at("set the host name"))
}

/// Returns the shared memory made ahead, unless it needs another owner or is not used.
fn shared_memory(
    made: Option<SharedMemory>,
    spec: &SandboxSpec,
    mntns: &MountNamespace,
    users: Option<&Users>,
) -> io::Result<Option<SharedMemory>> {
    match (made, users) {
        _ if spec.host_ipc => Ok(None),
        (Some(made), None) => Ok(Some(made)),
        (_, users) => SharedMemory::make(mntns, users.map_or(0, Users::root)).map(Some),
    }
}

fn own_users(spec: &SandboxSpec) -> io::Result<Option<Users>> {
    let Some(first) = spec.user_ids else { return Ok(None) };
    let network = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the pod has no network namespace of its own",
        )
    };
    let netns = File::open(spec.netns.as_ref().ok_or_else(network)?)?;
    Users::of(&netns, first).map(Some)
}

/// Start of a process in clock ticks since boot.
pub(crate) fn started(pid: &str) -> Option<u64> {
    stat(pid, 22)?.parse().ok()
}

/// Session of a process: a supervisor leads one, and its forks are in it until they become a
/// container's.
pub(crate) fn session(pid: i32) -> Option<i32> {
    stat(&pid.to_string(), 6)?.parse().ok()
}

/// Returns a field of a process's `stat`, counted from 1; those before the third are not found.
fn stat(pid: &str, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name
        .split_whitespace()
        .nth(field.checked_sub(3)?)
        .map(str::to_owned)
}

#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this ignores a signal")]
fn take_signals() -> io::Result<SignalFd> {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGPIPE, &ignore) }?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_set_mask()?;
    Ok(SignalFd::with_flags(
        &mask,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// Reverts [`take_signals`] in a fork: programs inherit masks and ignored signals.
#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this restores a default")]
fn give_back_signals() -> io::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGPIPE, &default) }?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

fn listen() -> io::Result<UnixListener> {
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(SOCKET);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens `/dev/null` for an unused standard stream.
pub(crate) fn dev_null() -> io::Result<OwnedFd> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from)
}
