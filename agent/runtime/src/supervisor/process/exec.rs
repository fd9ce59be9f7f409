//! Execs in a container's namespaces, in a forked child of the supervisor.
//!
//! Not by libcontainer's tenant containers: those drop the container's seccomp filter.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use libcontainer::apparmor;
use libcontainer::capabilities;
use libcontainer::syscall::Syscall;
use libcontainer::syscall::syscall::create_syscall;
use nix::errno::Errno;
use nix::libc;
use nix::sched::CloneFlags;
use nix::sys::stat::SFlag;
use nix::unistd::{
    ForkResult, Gid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, fchown, setgroups, setsid,
};
use oci_spec::runtime::{Process, Spec};

use super::program::{c_strings, set_exec_label};
use crate::cgroup::Cgroups;
use crate::files::record;
use crate::supervisor::CONFIG;
use crate::supervisor::namespaces::users::{self, Users};
use crate::supervisor::streams::terminal;
use crate::{Refusal, sys};

/// Exit code of a child that could not execute the program; the cause comes through the pipe.
const NOT_RUN: i32 = 127;

/// Arguments of the child that executes a program.
pub(in crate::supervisor) struct Execution<'a> {
    pub(in crate::supervisor) cgroups: &'a Cgroups,
    /// Cgroup of the container.
    pub(in crate::supervisor) group: PathBuf,
    /// Cgroup of this program and all that it starts, below the container's.
    pub(super) exec_group: PathBuf,
    /// Directory of the container, absolute.
    pub(in crate::supervisor) directory: PathBuf,
    /// User namespace of the pod; `None` for the machine's.
    pub(in crate::supervisor) users: Option<&'a Users>,
    /// Init process of the container.
    pub(in crate::supervisor) init: OwnedFd,
    pub(in crate::supervisor) streams: Streams,
}

/// Standard input, output and error of the program.
pub(in crate::supervisor) enum Streams {
    /// One pipe for both outputs.
    Collected { stdin: OwnedFd, output: OwnedFd },
    /// Descriptors that the caller gave.
    Given([OwnedFd; 3]),
    /// A new terminal of the container; its master is sent to this socket.
    Terminal(OwnedFd),
}

/// Starts the program and returns its PID, a child of this process.
pub(in crate::supervisor) fn start(
    execution: &Execution<'_>,
    argv: &[String],
    env: &[(String, String)],
    tracked: bool,
) -> Result<i32, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let missing = || Refusal::Failed {
        doing: "read the configuration".to_owned(),
        cause: "there is none".to_owned(),
    };
    let config: Spec = record::read(&execution.directory.join(CONFIG))
        .map_err(failed("read the configuration"))?
        .ok_or_else(missing)?;
    let process = config.process().clone().ok_or_else(missing)?;
    enter(execution, tracked).map_err(failed("enter the container's cgroup"))?;
    if let Some(adjustment) = process.oom_score_adj() {
        fs::write("/proc/self/oom_score_adj", adjustment.to_string())
            .map_err(failed("set the score for the OOM killer"))?;
    }
    set_exec_label(&config)?;
    // The container must not reach our memory or descriptors through `/proc` once we are inside.
    nix::sys::prctl::set_dumpable(false)
        .map_err(io::Error::from)
        .map_err(failed("become undumpable"))?;
    let owner = owner(execution.users, process.user().uid());
    own_streams(&execution.streams, owner).map_err(failed("give the streams away"))?;
    join(execution).map_err(failed("join the container's namespaces"))?;
    // Pipe for an error of `execve`.
    let (reader, writer) = io::pipe().map_err(failed("make a pipe"))?;
    match sys::fork().map_err(failed("fork"))? {
        ForkResult::Parent { child } => {
            drop(writer);
            executed(child, reader)
        }
        ForkResult::Child => {
            match become_program(execution, argv, env, &config, &process) {
                Ok(never) => match never {},
                Err(failure) => tell(writer, argv, &failure),
            }
            sys::exit_now(NOT_RUN)
        }
    }
}

fn join(execution: &Execution<'_>) -> io::Result<()> {
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWCGROUP;
    flags.set(CloneFlags::CLONE_NEWUSER, execution.users.is_some());
    sys::join_namespaces(execution.init.as_fd(), flags)?;
    if execution.users.is_some() {
        users::become_root()?;
    }
    Ok(())
}

/// Maps a user of the container to the machine's.
pub(in crate::supervisor) fn owner(users: Option<&Users>, uid: u32) -> u32 {
    users.map_or(Some(uid), |users| users.on_machine(uid)).unwrap_or(uid)
}

/// Waits until the child has executed the program: that closes the pipe.
fn executed(child: nix::unistd::Pid, reader: io::PipeReader) -> Result<i32, Refusal> {
    let mut failure = String::new();
    // An unreadable pipe is no failure of the program.
    drop(reader.take(4096).read_to_string(&mut failure));
    if failure.is_empty() {
        return Ok(child.as_raw());
    }
    nix::sys::wait::waitpid(child, None).ok();
    Err(Refusal::Program(failure))
}

/// Reports why the program could not be executed.
fn tell(mut writer: io::PipeWriter, argv: &[String], (doing, error): &Failure) {
    let program = argv.first().map_or("", String::as_str);
    let missing = error.kind() == io::ErrorKind::NotFound;
    let denied = error.kind() == io::ErrorKind::PermissionDenied && *doing == "execute";
    let why = if missing && *doing == "find" {
        "executable file not found in $PATH".to_owned()
    } else if missing && *doing == "execute" {
        format!("stat {program}: no such file or directory")
    } else if denied {
        "permission denied".to_owned()
    } else {
        format!("{doing}: {error}")
    };
    drop(write!(writer, "exec: {program:?}: {why}"));
}

/// Enters the container's cgroup, which limits the program, and its own cgroup in the tracking
/// hierarchy, in which all that it starts is found.
fn enter(execution: &Execution<'_>, tracked: bool) -> io::Result<()> {
    // On v1 and hybrid machines the limits are not in the tracking hierarchy.
    if !execution.cgroups.unified() {
        execution.cgroups.enter(&execution.group, true)?;
    }
    if tracked {
        Ok(())
    } else {
        execution.cgroups.track(&execution.exec_group)
    }
}

type Failure = (&'static str, io::Error);

fn become_program(
    execution: &Execution<'_>,
    argv: &[String],
    env: &[(String, String)],
    config: &Spec,
    process: &Process,
) -> Result<std::convert::Infallible, Failure> {
    fn at<Source: Into<io::Error>>(doing: &'static str) -> impl Fn(Source) -> Failure {
        move |error| (doing, error.into())
    }
    let other = |doing| move |error: &dyn std::error::Error| (doing, io::Error::other(error.to_string()));
    setsid().map_err(at("make a session"))?;
    take_streams(&execution.streams, process.user().uid()).map_err(at("set the standard streams"))?;
    if let Some(profile) = process.apparmor_profile() {
        // The profile takes effect with `execve`, as for the container's own program.
        apparmor::apply_profile(profile).map_err(|error| other("set the AppArmor profile")(&error))?;
    }
    let kernel = create_syscall();
    for limit in process.rlimits().iter().flatten() {
        kernel
            .set_rlimit(limit)
            .map_err(|error| other("set resource limits")(&error))?;
    }
    let user = process.user();
    let groups: Vec<Gid> = user
        .additional_gids()
        .iter()
        .flatten()
        .map(|gid| Gid::from_raw(*gid))
        .collect();
    setgroups(&groups).map_err(at("set groups"))?;
    let no_new_privileges = process.no_new_privileges() == Some(true);
    if no_new_privileges {
        nix::sys::prctl::set_no_new_privs().map_err(at("set no_new_privs"))?;
    } else {
        // Without `no_new_privs` a filter needs the privileges that are dropped next.
        filter(config)?;
    }
    let entered = may_begin(process).map_err(at("change to the working directory"))?;
    become_user(kernel.as_ref(), process)?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(user.umask().unwrap_or(0o022)));
    if !entered {
        chdir(process.cwd()).map_err(at("change to the working directory"))?;
    }
    let inside = std::env::current_dir().is_ok_and(|cwd| cwd.is_absolute());
    if !inside {
        return Err((
            "check the working directory",
            io::Error::other("it is outside the container"),
        ));
    }
    sys::close_on_exec_all().map_err(at("close descriptors"))?;
    let terminal = matches!(execution.streams, Streams::Terminal(_));
    let (environment, program) = (
        environment(process, env, terminal),
        argv.first().map_or("", String::as_str),
    );
    let (argv, env) = (
        c_strings(argv).map_err(at("argv"))?,
        c_strings(&environment).map_err(at("environment"))?,
    );
    let path = sys::c_string(
        find(program, &environment)
            .map_err(at("find"))?
            .as_os_str()
            .as_encoded_bytes(),
    );
    let path = path.map_err(at("path"))?;
    if no_new_privileges {
        filter(config)?;
    }
    execve(&path, &argv, &env).map_err(at("execute"))
}

/// Enters the working directory as root, which may have access where the user has not. Returns
/// false if only the user may enter it.
fn may_begin(process: &Process) -> Result<bool, Errno> {
    match chdir(process.cwd()) {
        Err(Errno::EACCES | Errno::EPERM) => Ok(false),
        tried => tried.map(|()| true),
    }
}

fn filter(config: &Spec) -> Result<(), Failure> {
    let profile = config.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let Some(profile) = profile else { return Ok(()) };
    let installed = libcontainer::seccomp::initialize_seccomp(profile);
    installed
        .map(drop)
        .map_err(|error| ("install the seccomp filter", io::Error::other(error.to_string())))
}

/// Drops to the container's user and capabilities, in the order that the kernel requires.
fn become_user(kernel: &dyn Syscall, process: &Process) -> Result<(), Failure> {
    let failed =
        |doing: &'static str| move |error: libcontainer::syscall::SyscallError| (doing, io::Error::other(error));
    let (uid, gid) = (process.user().uid().into(), process.user().gid().into());
    nix::sys::prctl::set_keepcaps(true).map_err(|error| ("keep capabilities", error.into()))?;
    nix::unistd::setresgid(gid, gid, gid).map_err(|error: nix::Error| ("set the group", error.into()))?;
    nix::unistd::setresuid(uid, uid, uid).map_err(|error: nix::Error| ("set the user", error.into()))?;
    nix::sys::prctl::set_keepcaps(false).map_err(|error| ("drop capabilities", error.into()))?;
    capabilities::reset_effective(kernel).map_err(failed("reset capabilities"))?;
    match process.capabilities() {
        Some(wanted) => capabilities::drop_privileges(wanted, kernel).map_err(failed("drop capabilities")),
        None => Ok(()),
    }
}

/// Gives the pipes to the user, who may open them again by `/dev/stdout`.
pub(in crate::supervisor) fn own(streams: [&OwnedFd; 3], owner: u32) -> io::Result<()> {
    for stream in streams {
        let found = nix::sys::stat::fstat(stream)?;
        if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO {
            fchown(stream, Some(Uid::from_raw(owner)), None)?;
        }
    }
    Ok(())
}

fn own_streams(streams: &Streams, owner: u32) -> io::Result<()> {
    match streams {
        Streams::Collected { stdin, output } => own([stdin, output, output], owner),
        Streams::Given([stdin, stdout, stderr]) => own([stdin, stdout, stderr], owner),
        Streams::Terminal(_) => Ok(()),
    }
}

/// Installs descriptors 0, 1 and 2.
fn take_streams(streams: &Streams, user: u32) -> io::Result<()> {
    let [stdin, stdout, stderr] = match streams {
        Streams::Collected { stdin, output } => [stdin, output, output],
        Streams::Given([stdin, stdout, stderr]) => [stdin, stdout, stderr],
        Streams::Terminal(console) => return terminal::take(console.as_fd(), user),
    };
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    Ok(())
}

fn environment(process: &Process, env: &[(String, String)], terminal: bool) -> Vec<String> {
    let overridden = |entry: &&String| {
        let name = entry.split('=').next();
        let given = env.iter().any(|(given, _)| Some(given.as_str()) == name);
        !given && (!terminal || name != Some("TERM"))
    };
    let kept = process.env().iter().flatten().filter(overridden).cloned();
    let term = terminal.then(|| "TERM=xterm".to_owned());
    kept.chain(env.iter().map(|(name, value)| format!("{name}={value}")))
        .chain(term)
        .collect()
}

/// Finds the program in the container's `PATH`.
fn find(program: &str, environment: &[String]) -> io::Result<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    super::program::search(program, environment).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}
