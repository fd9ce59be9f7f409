//! Network namespaces owned by user namespaces.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd as _;

use nix::sched::{CloneFlags, clone};
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, close, read};

/// Number of user and group IDs of a pod.
const COUNT: u32 = 65_536;
/// Stack size of the child process, which makes two system calls.
const STACK: usize = 64 << 10;

/// Creates a user namespace with the host's user and group IDs from `first` on, and a network
/// namespace that it owns. Both exist while a process or this file refers to them.
pub(super) fn network(first: u32) -> io::Result<File> {
    let (wait, go) = io::pipe()?;
    let child = start(&wait, &go)?;
    let made = describe(child, first);
    drop(go);
    let ended = waitpid(child, None);
    let made = made?;
    ended?;
    Ok(made)
}

/// Starts a process in new namespaces, which exits when `go` is closed.
#[expect(
    unsafe_code,
    reason = "the child shares no memory, and does nothing that another thread's lock could hold up"
)]
fn start(wait: &PipeReader, go: &PipeWriter) -> io::Result<Pid> {
    let child = || {
        // Its own copy of the pipe's write end, for whose close it waits.
        close(go.as_raw_fd()).ok();
        read(wait, &mut [0]).ok();
        0
    };
    let mut stack = vec![0; STACK];
    let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET;
    // SAFETY: see the reason above.
    let pid = unsafe { clone(Box::new(child), &mut stack, flags, Some(Signal::SIGCHLD as i32)) };
    pid.map_err(io::Error::from)
}

fn describe(child: Pid, first: u32) -> io::Result<File> {
    let map = format!("0 {first} {COUNT}\n");
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{child}/{file}"), &map)?;
    }
    File::open(format!("/proc/{child}/ns/net"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    #[test]
    fn the_namespace_is_a_new_one_that_root_of_the_machine_can_enter() {
        assert!(nix::unistd::geteuid().is_root(), "namespaces need root");
        let inode = |file: &std::fs::File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let own = std::fs::File::open("/proc/self/ns/net").unwrap();
        let made = super::network(1 << 20).unwrap();
        assert_ne!(inode(&own), inode(&made));
        let inside = std::thread::spawn(move || {
            nix::sched::setns(made.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            inode(&std::fs::File::open("/proc/thread-self/ns/net").unwrap()) == inode(&made)
        });
        assert!(inside.join().unwrap());
    }
}
