//! Methods of the [`Runtime`] trait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use tokio::sync::broadcast;

use super::{SIGKILL, SIGTERM, Sim, failed};
use crate::{
    Connected, Container, ContainerSpec, Error, Event, ExecResult, ExecSpec, Identity, ImageFiles, Info, Input, Limits,
    Output, Refusal, Runtime, Sandbox, SandboxSpec, Session, State, StreamSpec, Streams, Usage, Written,
};

fn session(streams: Streams, stdout: Option<Output>, stderr: Option<Output>, exit_code: i32) -> Session {
    Session {
        stdin: streams.stdin.then(|| -> Input { Box::pin(tokio::io::sink()) }),
        stdout,
        stderr,
        terminal: None,
        end: futures::future::ready(Ok(exit_code)).boxed(),
    }
}

#[async_trait]
impl Runtime for Sim {
    fn info(&self) -> Info {
        Info {
            name: "sim".to_owned(),
            version: "0".to_owned(),
        }
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        let mut all: Vec<_> = self.world().sandboxes.values().cloned().collect();
        all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
        Ok(all)
    }

    async fn create_sandbox(&self, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        connected.await.map_err(|_gone| Error::Unconnected(spec.id.clone()))?;
        let mut world = self.world();
        if world.sandboxes.contains_key(&spec.id) {
            return Err(Error::SandboxExists(spec.id));
        }
        let created_at = world.now();
        let (id, pod, attempt) = (spec.id, spec.pod, spec.attempt);
        let sandbox = Sandbox {
            id: id.clone(),
            pod,
            attempt,
            created_at,
            user_ids: spec.user_ids,
            se_linux_level: spec.se_linux_level,
            lost: false,
            containers: Vec::new(),
        };
        world.sandboxes.insert(id, sandbox.clone());
        Ok(sandbox)
    }

    async fn create_container(&self, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error> {
        let behaviour = self.world().behaviour(&spec.name, &spec.image);
        if !behaviour.create_takes.is_zero() {
            tokio::time::sleep(behaviour.create_takes).await;
        }
        match behaviour.create_fails {
            Some(cause) => Err(failed("create container", cause)),
            None => self.world().create(sandbox, spec),
        }
    }

    async fn start_container(&self, sandbox: &str, container: &str) -> Result<Container, Error> {
        let start = || {
            let mut world = self.world();
            let started_at = world.now();
            let found = world.container(sandbox, container)?;
            let (name, image) = (found.name.clone(), found.image.clone());
            let behaviour = world.behaviour(&name, &image);
            let found = world.container(sandbox, container)?;
            if found.state != State::Created {
                return Err(Refusal::wrong_state(found).into());
            }
            if let Some(cause) = &behaviour.start_fails {
                return Err(failed("start container", cause.clone()));
            }
            found.state = State::Running { pid: 4242, started_at };
            Ok((found.clone(), behaviour))
        };
        start().map(|(found, behaviour)| {
            if let Some(after) = behaviour.runs_for {
                self.end_later(after, sandbox, container, behaviour.exit_code, None);
            }
            found
        })
    }

    async fn signal(&self, sandbox: &str, container: &str, signal: i32) -> Result<(), Error> {
        let signalled = || {
            let mut world = self.world();
            let found = world.container(sandbox, container)?;
            let (name, image) = (found.name.clone(), found.image.clone());
            Ok(world.behaviour(&name, &image))
        };
        signalled().map(|behaviour| match (signal, behaviour.stops_within) {
            (SIGKILL, _) => self.end_later(Duration::ZERO, sandbox, container, 128 + SIGKILL, Some(SIGKILL)),
            (SIGTERM, Some(after)) => self.end_later(after, sandbox, container, 128 + SIGTERM, Some(SIGTERM)),
            (_, _) => {}
        })
    }

    async fn exec(&self, sandbox: &str, container: &str, spec: ExecSpec) -> Result<ExecResult, Error> {
        let running = self.world().running(sandbox, container);
        let result = running?.exec;
        if result.timed_out {
            tokio::time::sleep(spec.timeout).await;
        }
        Ok(result)
    }

    async fn exec_stream(&self, sandbox: &str, container: &str, spec: StreamSpec) -> Result<Session, Error> {
        let running = self.world().running(sandbox, container);
        let exec = running?.exec;
        let output = std::io::Cursor::new(exec.output);
        let stdout = spec.streams.stdout.then(|| -> Output { Box::pin(output) });
        let stderr = spec.streams.stderr.then(|| -> Output { Box::pin(tokio::io::empty()) });
        Ok(session(spec.streams, stdout, stderr, exec.exit_code))
    }

    async fn attach(&self, sandbox: &str, container: &str, streams: Streams) -> Result<Session, Error> {
        let running = self.world().running(sandbox, container);
        running?;
        let silence = |wanted: bool| wanted.then(|| -> Output { Box::pin(tokio::io::empty()) });
        Ok(session(streams, silence(streams.stdout), silence(streams.stderr), 0))
    }

    async fn remove_container(&self, sandbox: &str, container: &str) -> Result<(), Error> {
        self.end(sandbox, container, 128 + SIGKILL, Some(SIGKILL), false);
        if let Some(found) = self.world().sandboxes.get_mut(sandbox) {
            found.containers.retain(|existing| existing.id != container);
        }
        Ok(())
    }

    /// The simulation has no files.
    async fn mount_image(&self, sandbox: &str, _image: ImageFiles, _target: PathBuf) -> Result<(), Error> {
        self.world().sandbox(sandbox).map(drop)
    }

    /// The simulation has no processes.
    async fn end_sandbox(&self, _sandbox: &str) -> Result<(), Error> {
        Ok(())
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<(), Error> {
        self.world().sandboxes.remove(sandbox);
        Ok(())
    }

    async fn cleanup(&self) -> Result<(), Error> {
        for sandbox in self.sandboxes().await? {
            self.remove_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    /// The simulation counts no usage.
    fn usage(&self, _of: Option<(&str, Option<&str>)>) -> Usage {
        Usage::default()
    }

    fn usage_of_all(&self) -> Usage {
        Usage::default()
    }

    fn group(&self, sandbox: &str, container: Option<&str>) -> PathBuf {
        Path::new("/").join(sandbox).join(container.unwrap_or_default())
    }

    fn identity(&self, sandbox: &str, container: &str) -> Option<Identity> {
        let known = self.world().container(sandbox, container).is_ok();
        known.then(Identity::default)
    }

    async fn limit(&self, sandbox: &str, container: Option<&str>, _limits: Limits) -> Result<(), Error> {
        match container {
            Some(container) => self.world().container(sandbox, container).map(drop),
            None => self.world().sandbox(sandbox).map(drop),
        }
    }

    async fn arrange(&self, _all: Limits, _burstable: u64) -> Result<(), Error> {
        Ok(())
    }

    async fn answers(&self) -> Result<(), Error> {
        Ok(())
    }

    fn lacking(&self) -> Vec<String> {
        Vec::new()
    }

    fn lacks_users(&self) -> Option<&'static str> {
        None
    }

    async fn written(&self, _sandbox: &str, _container: &str) -> Option<Written> {
        None
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
}
