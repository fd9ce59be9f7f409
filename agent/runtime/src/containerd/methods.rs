//! Methods of the [`crate::Runtime`] trait.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use containerd_client::services::v1::KillRequest;
use nix::libc;
use tokio::sync::{OwnedMutexGuard, broadcast};
use tokio::time::Instant;

use super::client::{CALL, or_gone, within};
use super::container::{creation, handlers};
use super::records::Record;
use super::{Containerd, Shared};
use crate::cgroup::part;
use crate::embedded::{arrange, change, check_id, described};
use crate::error::io_error;
use crate::files::record;
use crate::{
    Connected, Container, ContainerSpec, Error, Event, ExecResult, ExecSpec, Identity, ImageFiles, Info, Limits,
    Refusal, Runtime, Sandbox, SandboxSpec, Session, State, StreamSpec, Streams, Transfers, Usage, Written,
};

/// Time for containerd to clean up a task whose shim has died; calls are repeated that long.
const NOTICED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

#[async_trait]
impl Runtime for Containerd {
    fn info(&self) -> Info {
        self.shared.info().clone()
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        let mut all: Vec<Sandbox> = {
            let records = self.shared.records();
            records.iter().map(|entry| entry.record.sandbox.clone()).collect()
        };
        all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
        Ok(all)
    }

    async fn create_sandbox(&self, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        check_id("sandbox id", &spec.id)?;
        if let Some(first) = spec.user_ids {
            return Err(Error::Invalid {
                what: "first user id",
                value: first.to_string(),
            });
        }
        self.shared.create_sandbox(spec, connected).await
    }

    fn foresee(&self, sandbox: &str, spec: &ContainerSpec, _placed: bool) {
        self.shared.prepare_ahead(sandbox, spec);
    }

    async fn create_container(&self, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error> {
        check_id("container id", &spec.id)?;
        Box::pin(self.shared.create_container(sandbox, spec)).await
    }

    async fn start_container(&self, sandbox: &str, container: &str) -> Result<Container, Error> {
        self.shared.start(sandbox, container).await
    }

    async fn signal(&self, sandbox: &str, container: &str, signal: i32) -> Result<(), Error> {
        let found = self.shared.container(sandbox, container)?;
        if matches!(found.state, State::Exited { .. }) {
            return Ok(());
        }
        if signal == libc::SIGKILL {
            self.shared.unthrottle(&self.shared.group(sandbox).join(container));
        }
        self.shared.kill(container, signal).await
    }

    async fn exec(&self, sandbox: &str, container: &str, spec: ExecSpec) -> Result<ExecResult, Error> {
        self.shared.exec(sandbox, container, spec).await
    }

    async fn exec_stream(&self, sandbox: &str, container: &str, spec: StreamSpec) -> Result<Session, Error> {
        Box::pin(self.shared.exec_stream(sandbox, container, spec)).await
    }

    async fn attach(&self, sandbox: &str, container: &str, streams: Streams) -> Result<Session, Error> {
        self.shared.attach(sandbox, container, streams).await
    }

    async fn remove_container(&self, sandbox: &str, container: &str) -> Result<(), Error> {
        check_id("container id", container)?;
        let removed = self.shared.remove_container(sandbox, container).await;
        if removed.is_err() {
            // It may still run, and the caller does not track it any more.
            self.shared.remove_later(sandbox, container);
        }
        removed
    }

    async fn mount_image(&self, sandbox: &str, image: ImageFiles, target: PathBuf) -> Result<(), Error> {
        self.shared.mount_image(sandbox, image, target).await
    }

    async fn end_sandbox(&self, sandbox: &str) -> Result<(), Error> {
        check_id("sandbox id", sandbox)?;
        self.shared.end(sandbox).await
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<(), Error> {
        check_id("sandbox id", sandbox)?;
        self.shared.remove(sandbox).await
    }

    async fn cleanup(&self) -> Result<(), Error> {
        Self::cleanup(self).await
    }

    fn usage(&self, of: Option<(&str, Option<&str>)>) -> Usage {
        let group = of.map(|(sandbox, container)| part(self.shared.group(sandbox), container));
        self.shared.cgroups.usage(group.as_deref())
    }

    fn transfers(&self, of: Option<(&str, Option<&str>)>) -> BTreeMap<String, Transfers> {
        let group = of.map(|(sandbox, container)| part(self.shared.group(sandbox), container));
        self.shared.cgroups.transfers(group.as_deref())
    }

    fn usage_of_all(&self) -> Usage {
        self.shared.cgroups.usage_of_pods(&self.shared.config.cgroup_root)
    }

    fn group(&self, sandbox: &str, container: Option<&str>) -> PathBuf {
        Path::new("/").join(part(self.shared.group(sandbox), container))
    }

    fn identity(&self, sandbox: &str, container: &str) -> Option<Identity> {
        check_id("sandbox id", sandbox)
            .and(check_id("container id", container))
            .ok()?;
        let directory = self.shared.container_directory(sandbox, container);
        record::identity(&directory.join(creation::PROCESS))
    }

    async fn limit(&self, sandbox: &str, container: Option<&str>, limits: Limits) -> Result<(), Error> {
        let (group, container) = (self.shared.group(sandbox), container.map(str::to_owned));
        change(self.shared.cgroups.clone(), group, container, limits).await
    }

    async fn arrange(&self, all: Limits, burstable: u64) -> Result<(), Error> {
        arrange(
            self.shared.cgroups.clone(),
            &self.shared.config.cgroup_root,
            all,
            burstable,
        )
        .await
    }

    async fn answers(&self) -> Result<(), Error> {
        self.shared.answers().await
    }

    fn lacking(&self) -> Vec<String> {
        self.shared.cgroups.lacking()
    }

    fn has_handler(&self, handler: &str) -> bool {
        handlers::find(handler, &self.shared.config.runtimes).is_some()
    }

    fn lacks_users(&self) -> Option<&'static str> {
        Some("only the agent's embedded runtime has them")
    }

    async fn written(&self, _sandbox: &str, container: &str) -> Option<Written> {
        self.shared.written(container).await
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }
}

impl Shared {
    /// Returns the sandbox's record and locks it for changes.
    pub(super) async fn turn(&self, sandbox: &str) -> Result<(Record, OwnedMutexGuard<()>), Error> {
        let turn = {
            let records = self.records();
            let entry = records.get(sandbox);
            entry.map(|entry| Arc::clone(&entry.turn))
        };
        let turn = turn.ok_or_else(|| Error::SandboxNotFound(sandbox.to_owned()))?;
        let guard = turn.lock_owned().await;
        let records = self.records();
        match records.get(sandbox) {
            None => Err(Error::SandboxNotFound(sandbox.to_owned())),
            Some(entry) if entry.leaving || entry.record.sandbox.lost => Err(Error::SandboxLost(sandbox.to_owned())),
            Some(entry) => Ok((entry.record.clone(), guard)),
        }
    }

    async fn create_container(self: &Arc<Self>, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error> {
        let (record, _guard) = self.turn(sandbox).await?;
        if self.records().owner(&spec.id).is_some() {
            return Err(Refusal::ContainerExists(spec.id).into());
        }
        let container = described(&spec);
        match self.try_container(&record, &container, &spec).await {
            // The next attempt starts a new shim, unless containers of the first one are left:
            // those are removed first.
            Err(Error::Containerd { source, .. })
                if source.is_end_of_shim() && self.records().owner(&spec.id).is_none() =>
            {
                tracing::warn!(
                    container = spec.id,
                    "its shim ended over its creation; it is made again"
                );
                self.try_container(&record, &container, &spec).await
            }
            made => made,
        }
        .map(|()| container)
    }

    /// Tries to create a container. A failure leaves nothing, at once or soon.
    async fn try_container(
        self: &Arc<Self>,
        record: &Record,
        container: &Container,
        spec: &ContainerSpec,
    ) -> Result<(), Error> {
        let (sandbox, id) = (&record.sandbox.id, &spec.id);
        // Recorded before it exists, so that the sandbox's removal finds it in any case.
        self.change(sandbox, |containers| containers.push(container.clone()))?;
        let Err(error) = Box::pin(self.make_container(record.clone(), spec.clone())).await else {
            return Ok(());
        };
        if let Err(failure) = self.take_apart(sandbox, id).await {
            tracing::warn!(container = id, %failure, "what a failed creation left will be removed later");
            self.remove_later(sandbox, id);
        }
        if matches!(error, Error::Containerd { .. }) {
            // A hanging shim would block the next attempt too.
            self.end_orphans().await?;
        }
        Err(error)
    }

    /// Sends a signal; succeeds if the process is gone.
    pub(super) async fn kill(&self, container: &str, signal: i32) -> Result<(), Error> {
        let number = u32::try_from(signal).map_err(|error| Refusal::failed("send a signal", &error))?;
        let deadline = Instant::now() + NOTICED;
        loop {
            let request = self.client.request(KillRequest {
                container_id: container.to_owned(),
                exec_id: String::new(),
                signal: number,
                // Without a PID namespace of its own, the other processes outlive the init process.
                all: signal == libc::SIGKILL,
            });
            let killed = within(CALL, "send a signal", self.client.tasks().kill(request)).await;
            match or_gone(killed) {
                // The task is deleted with its shim, as soon as containerd has noticed.
                Err(Error::Containerd { source, .. }) if source.is_end_of_shim() && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                killed => return killed.map(drop),
            }
        }
    }

    /// Lifts the CPU quota, so that processes can die: under a quota, thousands of them would take
    /// minutes.
    pub(super) fn unthrottle(&self, group: &Path) {
        let limits = Limits {
            cpu_quota: Some(-1),
            ..Limits::default()
        };
        if self.cgroups.exists(group) {
            // They die without it, too, but more slowly.
            drop(self.cgroups.limit(group, &limits));
        }
    }

    pub(super) fn container(&self, sandbox: &str, container: &str) -> Result<Container, Error> {
        let records = self.records();
        if records.get(sandbox).is_none() {
            return Err(Error::SandboxNotFound(sandbox.to_owned()));
        }
        let found = records.container(sandbox, container).cloned();
        found.ok_or_else(|| Refusal::ContainerNotFound(container.to_owned()).into())
    }

    pub(super) fn change<T>(&self, sandbox: &str, change: impl FnOnce(&mut Vec<Container>) -> T) -> Result<T, Error> {
        let changed = self.records().change(sandbox, change);
        match changed {
            Some(written) => written.map_err(io_error("write the record of", &self.directory(sandbox))),
            None => Err(Error::SandboxNotFound(sandbox.to_owned())),
        }
    }
}
