//! Containers that are created ahead of their request, while the network and the volumes of their
//! pod are set up.
//!
//! A child goes as far as it can without those, and waits. When the request matches the precreated
//! container, little is left to do; otherwise the child is killed and its work is removed. If the
//! mount points of all volumes exist from the beginning, only the network is missing: then the
//! child creates the whole container, reports that, and waits for the request before it is started.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::environment::{Asked, PodEnvironment};
use super::spec::PidNamespace;
use super::sync_pipe::SyncPipe;
use crate::clock::monotonic;
use crate::protocol::{self, Early, PRECREATED};
use crate::supervisor::exits::remove_traces;
use crate::supervisor::job::{Job, Precreated, Purpose, signals};
use crate::supervisor::read_frame;
use crate::supervisor::state::Supervisor;
use crate::{Refusal, SandboxSpec};

/// Time after which a precreated container that was not requested is given up.
const EXPIRY: Duration = Duration::from_secs(10);

/// Reads the agent's early messages until the pod's network exists (with `wait`) or none is
/// pending, and begins the announced containers if there is a [`PodEnvironment`]. Returns whether the
/// network exists. End-of-file, because there will be none, is an error.
pub(in crate::supervisor) fn hear(
    agent: &mut UnixStream,
    spec: &SandboxSpec,
    environment: Option<&PodEnvironment<'_>>,
    jobs: &mut Vec<Job>,
    wait: bool,
) -> io::Result<bool> {
    loop {
        if !wait && poll(&mut [PollFd::new(agent.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? == 0 {
            return Ok(false);
        }
        let (asked, container) = match read_frame(agent)? {
            (Early::Connected, _) => return Ok(true),
            (
                Early::Foresee {
                    container_id,
                    stdio,
                    placed,
                },
                body,
            ) => ((container_id, stdio, placed), body),
        };
        // A container that joins a namespace that does not exist yet cannot begin.
        let joins = spec.share_process_namespace && !spec.host_pid;
        if let Some(environment) = environment.filter(|_| !joins && jobs.len() < PRECREATED) {
            let foreign = [signals(jobs), vec![agent.as_raw_fd()]].concat();
            // A failure is reported when the container is requested.
            jobs.extend(begin(spec, environment, asked, container, foreign).ok());
            failpoint::reach("container precreated");
        }
    }
}

fn begin(
    spec: &SandboxSpec,
    environment: &PodEnvironment<'_>,
    (id, wanted, placed): (String, protocol::Stdio, bool),
    container: Vec<u8>,
    mut foreign: Vec<RawFd>,
) -> Result<Job, Refusal> {
    let (ours, go) = io::pipe().map_err(|error| Refusal::failed("make a pipe", &error))?;
    foreign.push(go.as_raw_fd());
    let sync_pipe = SyncPipe::new(ours, spec.netns.clone(), placed);
    let pids = if spec.host_pid {
        PidNamespace::Host
    } else {
        PidNamespace::Own
    };
    let asked = Asked {
        id: &id,
        spec: &container,
        stdio: wanted,
        pids,
        sync_pipe: Some(sync_pipe),
    };
    let (child, ends) = environment.begin(asked, &foreign)?;
    let precreated = Precreated {
        id,
        spec: container,
        wanted,
        ends,
        go,
        over: false,
    };
    Ok(child.job(monotonic() + EXPIRY, Purpose::Precreated(precreated)))
}

/// Tells children that their pod's network exists.
pub(in crate::supervisor) fn connect(jobs: &mut [Job]) {
    for job in jobs {
        if let Purpose::Precreated(precreated) = &mut job.purpose {
            precreated.go_on();
        }
    }
}

/// Restarts the deadlines of precreated containers: they could not be requested before.
pub(in crate::supervisor) fn wait_on(jobs: Vec<Job>) -> Vec<Job> {
    let deadline = monotonic() + EXPIRY;
    jobs.into_iter()
        .map(|job| job.turned(deadline, |purpose| purpose))
        .collect()
}

impl Supervisor {
    /// Returns the child of a precreated container, if it `fits`; otherwise ends the child.
    pub(super) fn precreated(&mut self, id: &str, fits: impl FnOnce(&Precreated) -> bool) -> Option<Job> {
        let waits = |job: &Job| matches!(&job.purpose, Purpose::Precreated(precreated) if precreated.id == id);
        let index = self.jobs.iter().position(waits)?;
        let job = self.jobs.swap_remove(index);
        if matches!(&job.purpose, Purpose::Precreated(precreated) if !job.has_ended() && fits(precreated)) {
            return Some(job);
        }
        // Throttled by the quota, it would not even die.
        self.unthrottle(&self.group.join(id));
        if job.end() {
            self.forget(id);
        } else {
            // Handled at its exit; until then it uses the directory.
            self.jobs.push(job);
        }
        self.throttle();
        None
    }

    /// Removes the remains of a child that created a container ahead.
    pub(in crate::supervisor) fn forget(&self, id: &str) {
        let (directory, group) = (self.container_directory(id), self.group.join(id));
        // Throttled by the quota, a container that was not requested would not even die.
        self.unthrottle(&group);
        // The creator of the container reports what cannot be removed.
        drop(remove_traces(&self.cgroups, &group, &directory));
    }
}
