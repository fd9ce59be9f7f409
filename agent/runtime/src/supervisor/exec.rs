//! Running a program in a container's namespaces, in a forked child of the supervisor.
//!
//! Not by libcontainer's tenants: those drop the container's seccomp filter.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcontainer::capabilities;
use libcontainer::syscall::Syscall;
use libcontainer::syscall::syscall::create_syscall;
use nix::libc;
use nix::sched::CloneFlags;
use nix::unistd::{ForkResult, Gid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, setgroups, setsid};
use oci_spec::runtime::{Process, Spec};

use super::create::CONFIG;
use crate::cgroup::Cgroups;
use crate::{ExecSpec, Refusal, record, sys};

/// The program was found but could not be run.
const CANNOT_RUN: i32 = 126;
/// The program was not found.
const NOT_FOUND: i32 = 127;

/// What the child needs.
pub(super) struct Execution<'a> {
    pub(super) cgroups: &'a Cgroups,
    /// The container's group.
    pub(super) group: PathBuf,
    /// The group of this program and all that it starts, below the container's.
    pub(super) exec_group: PathBuf,
    /// The container's directory, absolute.
    pub(super) directory: PathBuf,
    /// The container's first process.
    pub(super) init: OwnedFd,
    pub(super) stdin: OwnedFd,
    pub(super) output: OwnedFd,
}

/// Starts the program and returns its process, a child of this one.
pub(super) fn start(execution: &Execution<'_>, exec: &ExecSpec, tracked: bool) -> Result<i32, Refusal> {
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
    // The container must not reach our memory or descriptors through /proc once we are inside.
    nix::sys::prctl::set_dumpable(false)
        .map_err(io::Error::from)
        .map_err(failed("become undumpable"))?;
    let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWCGROUP;
    sys::join_namespaces(execution.init.as_fd(), flags).map_err(failed("join the container's namespaces"))?;
    match sys::fork().map_err(failed("fork"))? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let code = match become_program(execution, exec, &config, &process) {
                Ok(never) => match never {},
                Err((doing, error)) => {
                    // The program's output is where a person looks for this.
                    let text = format!(
                        "exec {}: {doing}: {error}\n",
                        exec.argv.first().map_or("", String::as_str)
                    );
                    nix::unistd::write(&execution.output, text.as_bytes()).ok();
                    if error.kind() == io::ErrorKind::NotFound {
                        NOT_FOUND
                    } else {
                        CANNOT_RUN
                    }
                }
            };
            sys::exit_now(code)
        }
    }
}

/// The container's group limits the program; a group of its own in the tracking hierarchy finds all that it starts.
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
    exec: &ExecSpec,
    config: &Spec,
    process: &Process,
) -> Result<std::convert::Infallible, Failure> {
    fn at<Source: Into<io::Error>>(doing: &'static str) -> impl Fn(Source) -> Failure {
        move |error| (doing, error.into())
    }
    let other = |doing| move |error: &dyn std::error::Error| (doing, io::Error::other(error.to_string()));
    setsid().map_err(at("make a session"))?;
    dup2_stdin(&execution.stdin).map_err(at("set stdin"))?;
    dup2_stdout(&execution.output).map_err(at("set stdout"))?;
    dup2_stderr(&execution.output).map_err(at("set stderr"))?;
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
        // Without no_new_privs a filter needs the privileges that are dropped next.
        filter(config)?;
    }
    become_user(kernel.as_ref(), process)?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(user.umask().unwrap_or(0o022)));
    chdir(process.cwd()).map_err(at("change to the working directory"))?;
    let inside = std::env::current_dir().is_ok_and(|cwd| cwd.is_absolute());
    if !inside {
        return Err((
            "check the working directory",
            io::Error::other("it is outside the container"),
        ));
    }
    sys::close_on_exec_all().map_err(at("close descriptors"))?;
    let strings = |all: &[String]| {
        all.iter()
            .map(|text| sys::c_string(text.as_bytes()))
            .collect::<io::Result<Vec<_>>>()
    };
    let (environment, program) = (environment(process, exec), exec.argv.first().map_or("", String::as_str));
    let (argv, env) = (
        strings(&exec.argv).map_err(at("argv"))?,
        strings(&environment).map_err(at("environment"))?,
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

fn filter(config: &Spec) -> Result<(), Failure> {
    let profile = config.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let Some(profile) = profile else { return Ok(()) };
    let installed = libcontainer::seccomp::initialize_seccomp(profile);
    installed
        .map(drop)
        .map_err(|error| ("install the seccomp filter", io::Error::other(error.to_string())))
}

/// Drops to the container's user and capabilities, in the order in which the kernel allows it.
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

fn environment(process: &Process, exec: &ExecSpec) -> Vec<String> {
    let overridden = |entry: &&String| {
        let name = entry.split('=').next();
        !exec.env.iter().any(|(given, _)| Some(given.as_str()) == name)
    };
    let kept = process.env().iter().flatten().filter(overridden).cloned();
    kept.chain(exec.env.iter().map(|(name, value)| format!("{name}={value}")))
        .collect()
}

/// Where the program is, by the container's `PATH`.
fn find(program: &str, environment: &[String]) -> io::Result<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    let default = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let path = environment
        .iter()
        .find_map(|entry| entry.strip_prefix("PATH="))
        .unwrap_or(default);
    let executable = |path: &PathBuf| {
        let mode = fs::metadata(path)
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|found| found.permissions().mode());
        mode.is_some_and(|mode| mode & 0o111 != 0)
    };
    let found = path
        .split(':')
        .map(|directory| Path::new(directory).join(program))
        .find(executable);
    found
        .filter(|_| !program.is_empty())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}
