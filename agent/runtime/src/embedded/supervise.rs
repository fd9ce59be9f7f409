//! Starting supervisors, reconnecting to running ones, and noticing their exit.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::connection::{self, Connection};
use super::{Program, Shared, unexpected};
use crate::cgroup::Cgroups;
use crate::error::io_error;
use crate::protocol::{self, Answer, Configuration, Early, Message};
use crate::supervisor::{self, SOCKET};
use crate::{Connected, Error, Event, Sandbox, SandboxSpec, sys};

/// Bytes of a message read before its length is known; each pod has such a buffer.
const READ_AHEAD: usize = 256;
/// Timeout after which a silent supervisor counts as broken.
const ANSWER: Duration = Duration::from_secs(30);

/// Zygote: the process that supervisors, or loggers, are forked from. It exits when this is
/// dropped.
pub(crate) struct Zygote {
    orders: OwnedFd,
    process: Child,
}

/// Process that supervisors are forked from, once it was started.
#[derive(Default)]
pub(crate) struct Zygotes(Mutex<Option<Zygote>>);

impl Zygotes {
    pub(crate) fn set(&self, started: Zygote) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
    }

    /// Orders a fork, with two descriptors. Starts the zygote if there is none.
    pub(crate) fn order(
        &self,
        directory: &Path,
        [first, second]: [&OwnedFd; 2],
        start: impl FnOnce() -> io::Result<Zygote>,
    ) -> io::Result<()> {
        let mut zygote = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = zygote.as_ref()
            && supervisor::order(&running.orders, directory, first, second).is_ok()
        {
            return Ok(());
        }
        let started = start()?;
        supervisor::order(&started.orders, directory, first, second)?;
        *zygote = Some(started);
        Ok(())
    }

    /// Ends the zygote, if there is one, and waits for its exit.
    pub(crate) async fn end(&self) {
        let zygote = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Zygote { orders, mut process }) = zygote {
            drop(orders);
            process.wait().await.ok();
        }
    }
}

impl Zygote {
    /// Starts it in its own cgroup, so that limits or the end of the agent do not affect it and its
    /// forks.
    pub(crate) fn start(
        program: &Program,
        arguments: &[OsString],
        (cgroups, root): (&Cgroups, &str),
    ) -> io::Result<Self> {
        let started = Self::spawn(&program.path(), arguments)?;
        let group = Path::new(root).join(supervisor::GROUP);
        let pid = started.process.id().and_then(|pid| i32::try_from(pid).ok());
        let placed = cgroups.create(&group);
        if let Err(error) = placed.and_then(|()| pid.map_or(Ok(()), |pid| cgroups.attach(&group, pid))) {
            tracing::warn!(%error, "supervisors stay in the agent's cgroup");
        }
        Ok(started)
    }

    fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Self> {
        let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (orders, theirs) = socketpair(kind.0, kind.1, None, kind.2)?;
        let process = Command::new(program)
            .arg0("skiff-supervisor")
            .args(arguments)
            .env_clear()
            .envs(failpoint::passed_on())
            // Have the dynamic linker resolve all symbols once instead of in each fork.
            .env("LD_BIND_NOW", "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { orders, process })
    }
}

/// Bounds an exchange with a supervisor by the timeout after which it counts as broken.
async fn in_time<T>(talk: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let talked = tokio::time::timeout(ANSWER, talk).await;
    talked.map_err(io::Error::from).flatten()
}

/// Sends announced containers to a supervisor until the network exists. Returns false if there will
/// be none.
async fn until_connected(
    stream: &mut UnixStream,
    mut announced: mpsc::Receiver<Vec<u8>>,
    mut connected: Connected,
) -> io::Result<bool> {
    loop {
        tokio::select! {
            biased;
            Some(frame) = announced.recv() => match in_time(stream.write_all(&frame)).await {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                // A failed supervisor has sent its error, which is read later.
                Ok(()) | Err(_) => {}
            },
            told = &mut connected => return Ok(told.is_ok()),
        }
    }
}

/// Tells a supervisor that the network exists, and reads the result of the creation.
async fn tell_connected(stream: &mut UnixStream) -> io::Result<Message> {
    let connected = protocol::encode(&Early::Connected, &[])?;
    // A failed supervisor has sent its error, and does not read any more.
    let told = stream.write_all(&connected).await;
    let answered = connection::receive(stream).await;
    answered
        .map(|(message, _)| message)
        .map_err(|error| told.err().unwrap_or(error))
}

impl Shared {
    /// Creates a sandbox. A failure leaves nothing.
    pub(super) async fn create(self: &Arc<Self>, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        let (id, directory) = (spec.id.clone(), self.directory(&spec.id));
        match self.spares.make(&directory, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Error::SandboxExists(id)),
            result => result.map_err(io_error("create", &directory))?,
        }
        failpoint::reach("directory made");
        let spawned = self.spawn(spec, connected).await;
        self.forget_announced(&id);
        match spawned {
            Ok(sandbox) => Ok(sandbox),
            Err(error) => {
                if let Err(failure) = self.remove(&id).await {
                    tracing::warn!(sandbox = id, %failure, "what a failed creation left is not all removed");
                }
                Err(error)
            }
        }
    }

    async fn spawn(self: &Arc<Self>, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        let (id, directory) = (spec.id.clone(), self.directory(&spec.id));
        let failed = || io_error("start a supervisor for", &directory);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed())?;
        let log = directory.join("supervisor.log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .map_err(io_error("open", &log))?;
        let configuration = Configuration {
            spec,
            cgroup_root: self.config.cgroup_root.clone(),
        };
        let mut configuration = protocol::encode(&configuration, &[]).map_err(failed())?;
        let mut announced = self.announced(&id);
        while let Ok(frame) = announced.try_recv() {
            configuration.extend(frame);
        }
        ours.set_nonblocking(true).map_err(failed())?;
        // Written before the supervisor begins, so that it need not wait for this task's next turn.
        let written = match (&ours).write(&configuration) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        };
        let rest = configuration.get(written.map_err(failed())?..).unwrap_or_default();
        self.order(&directory, &theirs.into(), &log.into()).map_err(failed())?;
        let configured = async {
            let mut stream = UnixStream::from_std(ours)?;
            if !rest.is_empty() {
                stream.write_all(rest).await?;
            }
            Ok::<_, io::Error>(stream)
        };
        let mut stream = in_time(configured).await.map_err(failed())?;
        let connected = until_connected(&mut stream, announced, connected).await;
        if !connected.map_err(failed())? {
            // It must be idle when the sandbox is removed: it exits on end-of-file.
            let ended = async {
                stream.shutdown().await?;
                match stream.read_to_end(&mut Vec::new()).await {
                    // It had exited before it read everything.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
                    read => read,
                }
            };
            in_time(ended).await.map_err(failed())?;
            return Err(Error::Unconnected(id));
        }
        match in_time(tell_connected(&mut stream)).await.map_err(failed())? {
            Message::Reply {
                result: Ok(Answer::Ready { sandbox, supervisor }),
                ..
            } => {
                // It answered, so it lives and the PID is its own.
                let process = sys::pidfd_open(supervisor).map_err(failed())?;
                self.adopt(&id, stream, process);
                Ok(sandbox)
            }
            Message::Reply {
                result: Err(refusal), ..
            } => Err(refusal.into()),
            Message::Reply { .. } | Message::Exited { .. } => Err(unexpected()),
        }
    }

    /// Orders a supervisor.
    fn order(&self, directory: &Path, agent: &OwnedFd, log: &OwnedFd) -> io::Result<()> {
        let fds = [agent, log];
        self.zygote.order(directory, fds, || self.make_zygote())
    }

    /// Connects to the supervisor of an earlier agent's sandbox; returns its PID.
    pub(super) async fn reconnect(self: &Arc<Self>, id: &str) -> Result<i32, Error> {
        let path = self.directory(id);
        let directory = File::open(&path).map_err(io_error("open", &path))?;
        // The real path can exceed the limit of a socket's path.
        let socket = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let stream = UnixStream::connect(&socket)
            .await
            .map_err(io_error("connect to the supervisor of", &path))?;
        let credentials = stream
            .peer_cred()
            .map_err(io_error("identify the supervisor of", &path))?;
        let pid = credentials.pid().ok_or_else(|| Error::SandboxLost(id.to_owned()))?;
        let process = sys::pidfd_open(pid).map_err(io_error("watch the supervisor of", &path))?;
        self.adopt(id, stream, process);
        Ok(pid)
    }

    /// Spawns work that is aborted when the runtime is dropped.
    pub(super) fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Serves a connection until it ends.
    fn adopt(self: &Arc<Self>, id: &str, stream: UnixStream, process: OwnedFd) {
        let (connection, frames) = Connection::new(id.to_owned(), process);
        let connection = Arc::new(connection);
        let (reader, writer) = stream.into_split();
        self.connections().insert(id.to_owned(), Arc::clone(&connection));
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(connection::write_frames(writer, frames));
        // Weak references, because the tasks are owned by their target.
        let (shared, id) = (Arc::downgrade(self), id.to_owned());
        tasks.spawn(async move {
            let mut reader = tokio::io::BufReader::with_capacity(READ_AHEAD, reader);
            while let Ok((message, body)) = connection::receive(&mut reader).await {
                match message {
                    Message::Reply { id, result } => connection.answer(id, result, body),
                    Message::Exited { container_id, exit } => {
                        let Some(shared) = shared.upgrade() else { return };
                        let event = Event::ContainerExited {
                            sandbox_id: id.clone(),
                            container_id,
                            exit,
                        };
                        // It fails without receivers, which is harmless.
                        drop(shared.events.send(event));
                    }
                }
            }
            connection.close();
            if let Some(shared) = shared.upgrade() {
                shared.disconnected(&id, &connection).await;
            }
        });
    }

    async fn disconnected(self: Arc<Self>, id: &str, connection: &Arc<Connection>) {
        {
            let mut connections = self.connections();
            if connections
                .get(id)
                .is_some_and(|current| Arc::ptr_eq(current, connection))
            {
                connections.remove(id);
            }
        }
        if connection.leaving.load(Ordering::Acquire) {
            return;
        }
        tracing::error!(sandbox = id, "supervisor lost");
        // A supervisor that broke the connection but lives would keep holding the pod.
        drop(sys::pidfd_send_signal(connection.process.as_fd(), libc::SIGKILL));
        if let Err(error) = self.kill(id).await {
            tracing::warn!(sandbox = id, %error, "processes of a lost sandbox live on");
        }
        drop(self.events.send(Event::SandboxLost {
            sandbox_id: id.to_owned(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refusal;

    #[tokio::test]
    async fn a_supervisor_that_fails_before_the_network_is_there_says_why() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let refusal = Refusal::failed("create the pod's cgroup", &io::Error::from(io::ErrorKind::StorageFull));
        let reply = Message::Reply {
            id: 0,
            result: Err(refusal),
        };
        theirs.write_all(&protocol::encode(&reply, &[]).unwrap()).await.unwrap();
        drop(theirs);
        let heard = tell_connected(&mut ours).await.unwrap();
        assert!(format!("{heard:?}").contains("create the pod's cgroup"), "{heard:?}");
        let nothing = tell_connected(&mut ours).await.unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::BrokenPipe);
    }
}
