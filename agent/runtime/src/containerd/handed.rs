//! The pipes that a shim hands to the logger that it starts. It keeps the end of each that writes; from there they are opened again.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::stat::{Mode, fstat};
use serde::{Deserialize, Serialize};

use crate::record;

/// The record of them, in the container's directory.
const PIPES: &str = "logger.pipes";

/// `logger.pipes`.
#[derive(Debug, Serialize, Deserialize)]
struct Pipes {
    shim: i32,
    /// Numbers of the pipes of both outputs.
    pipes: [u64; 2],
}

/// Notes them, in the logger that was given them.
pub(super) fn note(directory: &Path, [stdout, stderr]: [&OwnedFd; 2]) -> io::Result<()> {
    let pipes = [fstat(stdout)?.st_ino, fstat(stderr)?.st_ino];
    let shim = std::os::unix::process::parent_id().cast_signed();
    record::write(&directory.join(PIPES), &Pipes { shim, pipes })
}

/// Opens them once more. A terminal has one output, and its shim drops the other sooner or later.
pub(super) fn open_again(directory: &Path, terminal: bool) -> io::Result<[OwnedFd; 2]> {
    let noted: Pipes = record::read(&directory.join(PIPES))?.ok_or(io::ErrorKind::NotFound)?;
    let [stdout, stderr] = noted.pipes;
    let stderr = if terminal {
        open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?
    } else {
        find(noted.shim, stderr)?
    };
    Ok([find(noted.shim, stdout)?, stderr])
}

/// Holds those that are there, for reading, so that a writer waits while there is no logger.
pub(super) fn hold(directory: &Path) -> Vec<OwnedFd> {
    let noted = record::read::<Pipes>(&directory.join(PIPES)).ok().flatten();
    let noted = noted.iter();
    noted
        .flat_map(|noted| noted.pipes.iter().filter_map(|pipe| find(noted.shim, *pipe).ok()))
        .collect()
}

fn find(shim: i32, pipe: u64) -> io::Result<OwnedFd> {
    let wanted = format!("pipe:[{pipe}]");
    for entry in fs::read_dir(format!("/proc/{shim}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|to| to == Path::new(&wanted)) {
            // Whichever end the shim has there, this is one that reads. It may be closed just now, and another in its place.
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let opened = open(&path, flags, Mode::empty());
            if let Some(opened) = opened.ok().filter(|opened| is(opened, pipe)) {
                return Ok(opened);
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn is(opened: &OwnedFd, pipe: u64) -> bool {
    let fifo = |found: nix::sys::stat::FileStat| found.st_mode & libc::S_IFMT == libc::S_IFIFO && found.st_ino == pipe;
    fstat(opened).is_ok_and(fifo)
}
