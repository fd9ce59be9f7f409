//! Containers whose making begins before anybody asks for them, while the network and the volumes of their pod are made.
//!
//! A child goes as far as it can without those, and waits. When it is asked for the very container that was foreseen, the way that
//! is left is a short one; when it is not, the child is ended, and what it made is removed.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::confine::PidNamespace;
use super::create_calls::{Asked, Ground};
use super::exits::remove_traces;
use super::job::{Job, Purpose};
use super::read_frame;
use super::state::{Stdio, Supervisor};
use crate::clock::monotonic;
use crate::protocol::{self, Early};
use crate::{Refusal, SandboxSpec};

/// Nobody will ask for a container any more that nobody has asked for so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Children that a pod may have waiting.
const LIMIT: usize = 4;

/// What a child waits for.
pub(super) struct Foreseen {
    pub(super) id: String,
    /// The configuration that it has.
    spec: Vec<u8>,
    wanted: protocol::Stdio,
    streams: Stdio,
    go: PipeWriter,
    /// It was killed.
    pub(super) over: bool,
}

/// Where a child waits.
pub(super) struct Hold {
    pub(super) go: PipeReader,
    /// Its pod's network, which it has to join then; none: the machine's.
    pub(super) netns: Option<PathBuf>,
}

impl Hold {
    /// Waits for the word. None comes from a supervisor that is gone, or does not want the container.
    pub(super) fn wait(&self) -> io::Result<()> {
        (&self.go).read_exact(&mut [0])
    }
}

/// Reads what the agent says until the pod's network is there, and begins what it foresees where there is a ground for it. That
/// nothing more comes, because there will be no network, is an error.
pub(super) fn until_connected(
    agent: &mut UnixStream,
    spec: &SandboxSpec,
    ground: Option<&Ground<'_>>,
    jobs: &mut Vec<Job>,
) -> io::Result<()> {
    loop {
        let (id, wanted, container) = match read_frame(agent)? {
            (Early::Connected, _) => return Ok(()),
            (Early::Foresee { container_id, stdio }, body) => (container_id, stdio, body),
        };
        // Those who join a namespace that comes later cannot begin.
        let joins = spec.share_process_namespace && !spec.host_pid;
        if let Some(ground) = ground.filter(|_| !joins && jobs.len() < LIMIT) {
            let foreign = [signals(jobs), vec![agent.as_raw_fd()]].concat();
            // What fails is told when the container is asked for.
            jobs.extend(begin(spec, ground, id, wanted, container, foreign).ok());
            failpoint::reach("container foreseen");
        }
    }
}

fn begin(
    spec: &SandboxSpec,
    ground: &Ground<'_>,
    id: String,
    wanted: protocol::Stdio,
    container: Vec<u8>,
    mut foreign: Vec<RawFd>,
) -> Result<Job, Refusal> {
    let (ours, go) = io::pipe().map_err(|error| Refusal::failed("make a pipe", &error))?;
    foreign.push(go.as_raw_fd());
    let hold = Hold {
        go: ours,
        netns: spec.netns.clone(),
    };
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
        hold: Some(hold),
    };
    let (child, streams) = ground.begin(asked, &foreign)?;
    let foreseen = Foreseen {
        id,
        spec: container,
        wanted,
        streams,
        go,
        over: false,
    };
    Ok(child.job(monotonic() + PATIENCE, Purpose::Foreseen(foreseen)))
}

/// What ends the waiting of children, and the input of their containers: another child that had it, too, would keep it open.
pub(super) fn signals(jobs: &[Job]) -> Vec<RawFd> {
    let own = |job: &Job| match &job.purpose {
        Purpose::Foreseen(foreseen) => foreseen.signals(),
        Purpose::Create { .. } | Purpose::Exec(_) | Purpose::Remove { .. } | Purpose::Over(_) => Vec::new(),
    };
    jobs.iter().flat_map(own).collect()
}

/// The time of those who wait begins anew: before this nobody could ask for them.
pub(super) fn wait_on(jobs: Vec<Job>) -> Vec<Job> {
    let deadline = monotonic() + PATIENCE;
    jobs.into_iter()
        .map(|job| job.turned(deadline, |purpose| purpose))
        .collect()
}

impl Foreseen {
    fn signals(&self) -> Vec<RawFd> {
        let input = match &self.streams {
            Stdio::Pipes { stdin, .. } => stdin.as_ref().map(AsRawFd::as_raw_fd),
            Stdio::Terminal { .. } => None,
        };
        [Some(self.go.as_raw_fd()), input].into_iter().flatten().collect()
    }

    /// Whether it is this container.
    pub(super) fn is(&self, wanted: protocol::Stdio, pids: &PidNamespace, spec: &[u8]) -> bool {
        !self.over && !matches!(pids, PidNamespace::Shared(_)) && self.wanted == wanted && self.spec == spec
    }

    /// Lets the child go on; answers our ends of the container's streams.
    pub(super) fn go_on(mut self) -> Stdio {
        // One that is gone is met at its end.
        self.go.write_all(&[0]).ok();
        self.streams
    }
}

impl Supervisor {
    /// The child that waits for a container, if it is as `fits` wants it; one that is not ends.
    pub(super) fn foreseen(&mut self, id: &str, fits: impl FnOnce(&Foreseen) -> bool) -> Option<Job> {
        let waits = |job: &Job| matches!(&job.purpose, Purpose::Foreseen(foreseen) if foreseen.id == id);
        let index = self.jobs.iter().position(waits)?;
        let job = self.jobs.swap_remove(index);
        if matches!(&job.purpose, Purpose::Foreseen(foreseen) if !job.is_over() && fits(foreseen)) {
            return Some(job);
        }
        // Without a quota's leave it would not even die.
        self.unthrottle(&self.group.join(id));
        if job.end() {
            self.forget(id);
        } else {
            // Its end will be met; until then it has the directory.
            self.jobs.push(job);
        }
        self.throttle();
        None
    }

    /// Removes what a child left that made a container ahead.
    pub(super) fn forget(&self, id: &str) {
        let (directory, group) = (self.container_directory(id), self.group.join(id));
        // Who makes the container meets what is left.
        drop(remove_traces(&self.cgroups, &group, Path::new(&directory)));
    }
}
