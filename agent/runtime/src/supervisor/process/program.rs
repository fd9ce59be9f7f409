//! Search and execution of a container's program, with runc's error messages.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, chdir, execve, faccessat};
use oci_spec::runtime::Spec;

use crate::{Refusal, sys};

/// Default of `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// File for the label of the next `execve`.
const NEXT: &str = "/proc/thread-self/attr/exec";
/// Exit code of a container whose program could not be executed.
const NOT_EXECUTED: i32 = 255;

/// Executes the program of a container's configuration.
#[derive(Clone)]
pub(in crate::supervisor) struct Program {
    /// Working directory, if libcontainer could not enter it.
    directory: Option<PathBuf>,
}

impl Program {
    pub(in crate::supervisor) fn in_directory(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }
}

impl Executor for Program {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        if let Some(directory) = &self.directory
            && let Err(error) = chdir(directory)
        {
            let (directory, why) = (directory.display().to_string(), words(error));
            let text = format!("chdir to cwd ({directory:?}) set in config.json failed: {why}\n");
            nix::unistd::write(io::stderr(), text.as_bytes()).ok();
            sys::exit_now(NOT_EXECUTED)
        }
        let Err((path, error)) = execute(spec);
        // The start was answered already; users look for the error in the container's log.
        let text = format!("exec {}: {}\n", path.display(), words(error));
        nix::unistd::write(io::stderr(), text.as_bytes()).ok();
        sys::exit_now(NOT_EXECUTED)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let (program, environment) = wanted(spec);
        let valid = environment
            .iter()
            .rev()
            .try_for_each(|variable| check_variable(variable));
        let found = valid.and_then(|()| find(program, environment).map_err(|why| format!("exec: {program:?}: {why}")));
        found.map(drop).map_err(ExecutorValidationError::ArgValidationError)
    }

    /// The variables are passed to `execve` itself, in their order and as bytes.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}

/// Refuses a variable that no program can be given (`prepareEnv` of runc's libcontainer/env.go).
fn check_variable(variable: &str) -> Result<(), String> {
    let name = variable.split('=').next().unwrap_or_default();
    if name.is_empty() {
        return Err("invalid environment variable: name cannot be empty".to_owned());
    }
    if variable.contains('\0') {
        let name = name.replace('\0', "\\x00");
        return Err(format!(
            "invalid environment variable \"{name}\": contains nul byte (\\x00)"
        ));
    }
    Ok(())
}

/// Converts arguments or variables for `execve`. In those of a container the last of Unicode's
/// private characters, from U+10FF80 on, each represent the byte that they end with: JSON has no
/// other way to hold values that are not UTF-8.
pub(super) fn c_strings(all: &[String]) -> io::Result<Vec<CString>> {
    let bytes = |text: &String| {
        let mut bytes = Vec::with_capacity(text.len());
        for character in text.chars() {
            match u32::from(character).to_be_bytes() {
                [0, 0x10, 0xff, byte @ 0x80..=0xff] => bytes.push(byte),
                _ => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    };
    all.iter().map(|text| sys::c_string(&bytes(text))).collect()
}

fn wanted(spec: &Spec) -> (&str, &[String]) {
    let process = spec.process().as_ref();
    let argv = process
        .and_then(|process| process.args().as_deref())
        .unwrap_or_default();
    let environment = process.and_then(|process| process.env().as_deref()).unwrap_or_default();
    (argv.first().map_or("", String::as_str), environment)
}

fn execute(spec: &Spec) -> Result<Infallible, (PathBuf, Errno)> {
    let (program, environment) = wanted(spec);
    let path = find(program, environment).unwrap_or_else(|_| PathBuf::from(program));
    let argv = spec.process().as_ref().and_then(|process| process.args().as_deref());
    let file = sys::c_string(path.as_os_str().as_encoded_bytes());
    let strings = (file, c_strings(argv.unwrap_or_default()), c_strings(environment));
    let (Ok(file), Ok(argv), Ok(environment)) = strings else {
        return Err((path, Errno::EINVAL));
    };
    execve(&file, &argv, &environment).map_err(|error| (path, error))
}

/// Finds a program at its path or in a directory of `PATH`; otherwise returns the error.
fn find(program: &str, environment: &[String]) -> Result<PathBuf, String> {
    if program.contains('/') {
        let path = PathBuf::from(program);
        return match check(&path) {
            Ok(()) => Ok(path),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG) => Err(stat(&path)),
            Err(error) => Err(words(error)),
        };
    }
    search(program, environment).ok_or_else(|| "executable file not found in $PATH".to_owned())
}

/// Returns the first executable file of that name in the directories of `PATH`.
pub(super) fn search(program: &str, environment: &[String]) -> Option<PathBuf> {
    let mut candidates = candidates(program, environment);
    candidates.find(|path| !program.is_empty() && check(path).is_ok())
}

fn candidates(program: &str, environment: &[String]) -> impl Iterator<Item = PathBuf> {
    let path = environment.iter().find_map(|entry| entry.strip_prefix("PATH="));
    let directories = path.unwrap_or(PATH).split(':');
    directories.map(move |directory| Path::new(directory).join(program))
}

/// Candidate paths of a program.
pub(in crate::supervisor) fn places(program: &str, environment: &[String]) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![PathBuf::from(program)];
    }
    candidates(program, environment).collect()
}

/// Checks that this process may execute a file.
fn check(path: &Path) -> Result<(), Errno> {
    let found = nix::sys::stat::stat(path)?;
    let kind = nix::sys::stat::SFlag::from_bits_truncate(found.st_mode) & nix::sys::stat::SFlag::S_IFMT;
    if kind == nix::sys::stat::SFlag::S_IFDIR {
        return Err(Errno::EISDIR);
    }
    match faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS) {
        // A seccomp filter that does not know the call.
        Err(Errno::ENOSYS | Errno::EPERM) if found.st_mode & 0o111 != 0 => Ok(()),
        Err(Errno::ENOSYS | Errno::EPERM) => Err(Errno::EACCES),
        answer => answer,
    }
}

fn stat(path: &Path) -> String {
    let error = nix::sys::stat::stat(path).err().unwrap_or(Errno::ENOENT);
    format!("stat {}: {}", path.display(), words(error))
}

/// Labels the next program that this thread, or a fork of it, executes. Must be called while
/// `/proc` is the machine's: an image's files there must not be written to.
pub(in crate::supervisor) fn set_exec_label(spec: &Spec) -> Result<(), Refusal> {
    let process = spec.process().as_ref();
    let Some(label) = process.and_then(|process| process.selinux_label().as_ref()) else {
        return Ok(());
    };
    // Without `O_CREAT`, which a policy may deny.
    let written = File::options().write(true).open(NEXT);
    let written = written.and_then(|mut next| next.write_all(label.as_bytes()));
    written.map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
        let why = words(errno);
        Refusal::Program(format!(
            "error during container init: can't set process label: write {NEXT}: {why}"
        ))
    })
}

/// Error message of an errno as Go prints it.
pub(in crate::supervisor) fn words(error: Errno) -> String {
    let text = io::Error::from(error).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_wrong_with_a_program_is_said_as_runc_says_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().display();
        let make = |name: &str, mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        make("runs", 0o750);
        make("text", 0o644);
        let environment = [format!("PATH=/nowhere:{place}")];
        let found = |program: &str| find(program, &environment).map(|path| path.display().to_string());
        assert_eq!(found("runs"), Ok(format!("{place}/runs")));
        assert_eq!(found(&format!("{place}/runs")), Ok(format!("{place}/runs")));
        for absent in ["text", "absent", ""] {
            assert_eq!(
                found(absent),
                Err("executable file not found in $PATH".to_owned()),
                "{absent}"
            );
        }
        assert_eq!(found(&format!("{place}/text")), Err("permission denied".to_owned()));
        assert_eq!(found(&format!("{place}/")), Err("is a directory".to_owned()));
        assert_eq!(
            found(&format!("{place}/absent")),
            Err(format!("stat {place}/absent: no such file or directory"))
        );
        assert_eq!(
            found(&format!("{place}/runs/x")),
            Err(format!("stat {place}/runs/x: not a directory"))
        );
        assert_eq!(words(Errno::ENOEXEC), "exec format error");
    }
}
