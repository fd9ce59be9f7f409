//! State of the supervisor, and its changes by requests, exits and deadlines.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signalfd::SignalFd;

use super::client::Client;
use super::container::create;
use super::container::spec::PidNamespace;
use super::container::start::Starter;
use super::job::{Job, Ticket};
use super::namespaces::pause::Pause;
use super::namespaces::users::Users;
use super::rootfs::namespace::MountNamespace;
use super::rootfs::shm::SharedMemory;
use super::streams::attach::Attachment;
use super::streams::log::LogFile;
use super::streams::stdio::Pipe;
use super::{CONTAINERS, RECORD};
use crate::cgroup::Cgroups;
use crate::clock::now;
use crate::files::record;
use crate::protocol::{Answer, Call, Message};
use crate::{Container, Limits, Refusal, Sandbox, SandboxSpec, State};

/// Timeout of a child's work.
pub(super) const JOB_LIMIT: Duration = Duration::from_mins(2);

pub(super) struct Entry {
    pub(super) container: Container,
    /// Limits that are set at the start.
    pub(super) limits: Limits,
    pub(super) pid: i32,
    /// True if its init process is that of a PID namespace: all others die with it.
    pub(super) own_pids: bool,
    /// SIGKILL was sent.
    pub(super) killed: bool,
    pub(super) outputs: Vec<Pipe>,
    pub(super) log: LogFile,
    pub(super) removal: Vec<Ticket>,
    /// The container's input, while clients may still write to it.
    pub(super) stdin: Option<OwnedFd>,
    /// True if its input ends with that of the first client.
    pub(super) once: bool,
    /// Master of the terminal.
    pub(super) terminal: Option<OwnedFd>,
    /// `None` once it was started.
    pub(super) starter: Option<Starter>,
    pub(super) attachments: Vec<Attachment>,
}

/// Kind of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Exec whose output is collected; its leftover processes are killed.
    Collected,
    /// An exec with streams of its client.
    Streamed,
    /// An exec with a terminal.
    Terminal,
}

pub(super) struct Execution {
    pub(super) key: u64,
    pub(super) ticket: Ticket,
    pub(super) output: Option<OwnedFd>,
    pub(super) kept: Vec<u8>,
    pub(super) limit: usize,
    pub(super) truncated: bool,
    pub(super) deadline: Duration,
    pub(super) timed_out: bool,
    pub(super) kind: Kind,
    pub(super) pid: Option<i32>,
    pub(super) exit_code: Option<i32>,
    pub(super) group: PathBuf,
}

pub(super) struct Supervisor {
    pub(super) directory: PathBuf,
    pub(super) spec: SandboxSpec,
    pub(super) sandbox: Sandbox,
    pub(super) cgroups: Cgroups,
    pub(super) group: PathBuf,
    pub(super) mntns: MountNamespace,
    /// User namespace of the pod; `None` for the machine's.
    pub(super) users: Option<Users>,
    pub(super) pause: Option<Pause>,
    /// Shared memory of the pod; `None` for the machine's.
    pub(super) memory: Option<SharedMemory>,
    pub(super) listener: UnixListener,
    pub(super) signals: SignalFd,
    pub(super) clients: Vec<Client>,
    pub(super) entries: Vec<Entry>,
    pub(super) execs: Vec<Execution>,
    pub(super) jobs: Vec<Job>,
    pub(super) unclaimed: Vec<(i32, i32)>,
    /// Exit records, with the time at which they are written to the disk.
    pub(super) unsettled: Vec<(PathBuf, Duration)>,
    /// Cgroups of execs that could not be removed yet.
    pub(super) stale: Vec<PathBuf>,
    /// Request to answer at the shutdown, if any, and its deadline.
    pub(super) shutdown: Option<(Option<Ticket>, Duration)>,
    pub(super) ended: bool,
    pub(super) keys: u64,
}

impl Supervisor {
    pub(super) fn sandbox(&self) -> Sandbox {
        let containers = self.entries.iter().map(|entry| entry.container.clone()).collect();
        Sandbox {
            containers,
            ..self.sandbox.clone()
        }
    }

    /// Returns a new key.
    pub(super) fn key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    pub(super) fn container_directory(&self, id: &str) -> PathBuf {
        self.directory.join(CONTAINERS).join(id)
    }

    /// Returns the PID namespace of a container that joins that of another one, or the sandbox's.
    fn pid_namespace(&mut self, of: Option<&str>) -> Result<PidNamespace, Refusal> {
        if self.spec.host_pid {
            return Ok(PidNamespace::Host);
        }
        if let Some(pause) = &self.pause {
            return Ok(PidNamespace::Shared(pause.pid));
        }
        let Some(of) = of else { return Ok(PidNamespace::Own) };
        let target = self.find(of)?;
        match target.container.state {
            // An unreaped child: the PID is its own.
            State::Running { .. } => Ok(PidNamespace::Shared(target.pid)),
            State::Created | State::Exited { .. } => Err(Refusal::wrong_state(&target.container)),
        }
    }

    pub(super) fn find(&mut self, id: &str) -> Result<&mut Entry, Refusal> {
        let found = self.entries.iter_mut().find(|entry| entry.container.id == id);
        found.ok_or_else(|| Refusal::ContainerNotFound(id.to_owned()))
    }

    pub(super) fn reply(&mut self, ticket: Ticket, result: Result<Answer, Refusal>) {
        self.reply_with(ticket, result, &[]);
    }

    pub(super) fn reply_with(&mut self, ticket: Ticket, result: Result<Answer, Refusal>, body: &[u8]) {
        let message = Message::Reply {
            id: ticket.request,
            result,
        };
        if let Some(client) = self.clients.iter_mut().find(|client| client.key == ticket.client) {
            client.send(&message, body);
        }
    }

    /// Executes or begins a request.
    pub(super) fn call(&mut self, ticket: Ticket, call: Call, body: &[u8], descriptors: Vec<OwnedFd>) {
        let begins = matches!(
            call,
            Call::Create { .. } | Call::Start(_) | Call::Exec(..) | Call::Stream(..) | Call::Attach(..)
        );
        let refused = begins && self.ending();
        if refused {
            return self.reply(ticket, Err(self.shutting_down()));
        }
        let result = match call {
            Call::Inspect => Some(Ok(Answer::Sandbox(self.sandbox()))),
            Call::Create {
                container,
                limits,
                pid_of,
                stdio,
            } => {
                let created = self.pid_namespace(pid_of.as_deref());
                created
                    .and_then(|pids| self.create(ticket, container, limits, pids, stdio, body))
                    .err()
                    .map(Err)
            }
            Call::Start(id) if self.start_later(ticket, &id) => None,
            Call::Start(id) => Some(self.start(&id).map(Answer::Container)),
            Call::Limit(limits) => {
                self.spec.limits = limits;
                Some(Ok(Answer::Done))
            }
            Call::Signal(id, signal) => Some(self.signal(&id, signal).map(|()| Answer::Done)),
            Call::Exec(id, exec) => self.exec(ticket, &id, &exec).err().map(Err),
            Call::Stream(id, spec) => self.stream(ticket, &id, &spec, descriptors).err().map(Err),
            Call::Attach(id, streams) => self.attach(ticket, &id, streams, descriptors).err().map(Err),
            Call::Leave(request) => {
                self.leave(ticket.client, request);
                Some(Ok(Answer::Done))
            }
            Call::Resize(id, size) => Some(self.resize(&id, size).map(|()| Answer::Done)),
            Call::Remove(id) => self.remove(ticket, &id),
            Call::Shutdown => {
                self.begin_shutdown(Some(ticket));
                None
            }
        };
        if let Some(result) = result {
            self.reply(ticket, result);
        }
    }

    /// Error for requests after the shutdown has begun.
    pub(super) fn shutting_down(&self) -> Refusal {
        Refusal::WrongState {
            id: self.sandbox.id.clone(),
            state: "shutting down".to_owned(),
        }
    }

    /// Sets the limits at the start of a container: work before that is ours, small, and must not
    /// be throttled.
    fn limit(&self, group: &Path, limits: &Limits) -> io::Result<()> {
        self.cgroups.limit(&self.group, &self.spec.limits)?;
        self.cgroups.limit_container(group, limits)?;
        self.cgroups.end_together(group)?;
        self.cgroups.forbid_swap(group)?;
        let leaf = create::leaf(&self.cgroups, group);
        if leaf == group {
            return Ok(());
        }
        self.cgroups.limit_container(&leaf, limits)?;
        self.cgroups.end_together(&leaf)
    }

    pub(super) fn start(&mut self, id: &str) -> Result<Container, Refusal> {
        let directory = self.container_directory(id);
        let group = self.group.join(id);
        let entry = self.find(id)?;
        if entry.container.state != State::Created {
            return Err(Refusal::wrong_state(&entry.container));
        }
        let limits = entry.limits.clone();
        self.limit(&group, &limits)
            .map_err(|error| Refusal::failed("set limits", &error))?;
        let entry = self.find(id)?;
        // Write the record first: an agent that finds it after the supervisor was killed must count
        // each run of the program.
        let record = directory.join(RECORD);
        entry.container.state = State::Running {
            pid: entry.pid,
            started_at: now(),
        };
        let told = record::replace(&record, &entry.container)
            .map_err(|error| Refusal::failed("write the container's record", &error))
            .and_then(|()| {
                let starter = entry.starter.as_ref();
                let starter = starter.ok_or_else(|| Refusal::wrong_state(&entry.container))?;
                starter
                    .tell()
                    .map_err(|error| Refusal::failed("start container", &error))
            });
        if let Err(refusal) = told {
            entry.container.state = State::Created;
            drop(record::replace(&record, &entry.container));
            return Err(refusal);
        }
        entry.starter = None;
        failpoint::reach("start told");
        Ok(entry.container.clone())
    }
}
