//! The trait's methods.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::services::v1::KillRequest;
use futures::FutureExt;
use futures::future::BoxFuture;
use nix::libc;
use tokio::sync::{OwnedMutexGuard, broadcast};

use super::client::{CALL, or_gone, within};
use super::records::Record;
use super::{Containerd, Shared, creation, holding, pause, records};
use crate::cgroup::part;
use crate::clock::now;
use crate::embedded::{arrange, change, check_id, described, io_error};
use crate::record;
use crate::{
    Connected, Container, ContainerSpec, Error, Event, ExecResult, ExecSpec, Identity, ImageFiles, Info, Limits,
    Refusal, Runtime, Sandbox, SandboxSpec, Session, State, StreamSpec, Streams, Usage, Written,
};

impl Runtime for Containerd {
    fn info(&self) -> Info {
        self.shared.info.clone()
    }

    fn sandboxes(&self) -> BoxFuture<'_, Result<Vec<Sandbox>, Error>> {
        async {
            let mut all: Vec<Sandbox> = {
                let records = self.shared.records();
                records.iter().map(|entry| entry.record.sandbox.clone()).collect()
            };
            all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
            Ok(all)
        }
        .boxed()
    }

    fn create_sandbox(&self, spec: SandboxSpec, connected: Connected) -> BoxFuture<'_, Result<Sandbox, Error>> {
        async move {
            check_id("sandbox id", &spec.id)?;
            if let Some(first) = spec.user_ids {
                return Err(Error::Invalid {
                    what: "first user id",
                    value: first.to_string(),
                });
            }
            self.shared.create_sandbox(spec, connected).await
        }
        .boxed()
    }

    fn foresee(&self, sandbox: &str, spec: &ContainerSpec) {
        self.shared.prepare_ahead(sandbox, spec);
    }

    fn create_container(&self, sandbox: &str, spec: ContainerSpec) -> BoxFuture<'_, Result<Container, Error>> {
        let sandbox = sandbox.to_owned();
        async move {
            check_id("container id", &spec.id)?;
            Box::pin(self.shared.create_container(&sandbox, spec)).await
        }
        .boxed()
    }

    fn start_container(&self, sandbox: &str, container: &str) -> BoxFuture<'_, Result<Container, Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move { self.shared.start(&sandbox, &container).await }.boxed()
    }

    fn signal(&self, sandbox: &str, container: &str, signal: i32) -> BoxFuture<'_, Result<(), Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move {
            let found = self.shared.container(&sandbox, &container)?;
            if matches!(found.state, State::Exited { .. }) {
                return Ok(());
            }
            if signal == libc::SIGKILL {
                self.shared.settle_oom_kills(&sandbox, &container);
                self.shared.unthrottle(&self.shared.group(&sandbox).join(&container));
            }
            self.shared.kill(&container, signal).await
        }
        .boxed()
    }

    fn exec(&self, sandbox: &str, container: &str, spec: ExecSpec) -> BoxFuture<'_, Result<ExecResult, Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move { self.shared.exec(&sandbox, &container, spec).await }.boxed()
    }

    fn exec_stream(&self, sandbox: &str, container: &str, spec: StreamSpec) -> BoxFuture<'_, Result<Session, Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move { Box::pin(self.shared.exec_stream(&sandbox, &container, spec)).await }.boxed()
    }

    fn attach(&self, sandbox: &str, container: &str, streams: Streams) -> BoxFuture<'_, Result<Session, Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move { self.shared.attach(&sandbox, &container, streams).await }.boxed()
    }

    fn remove_container(&self, sandbox: &str, container: &str) -> BoxFuture<'_, Result<(), Error>> {
        let (sandbox, container) = (sandbox.to_owned(), container.to_owned());
        async move {
            check_id("container id", &container)?;
            let removed = self.shared.remove_container(&sandbox, &container).await;
            if removed.is_err() {
                // It may run, and who asked for this counts it no longer.
                self.shared.remove_later(&sandbox, &container);
            }
            removed
        }
        .boxed()
    }

    fn mount_image(&self, sandbox: &str, image: ImageFiles, target: PathBuf) -> BoxFuture<'_, Result<(), Error>> {
        let sandbox = sandbox.to_owned();
        async move { self.shared.mount_image(&sandbox, image, target).await }.boxed()
    }

    fn end_sandbox(&self, sandbox: &str) -> BoxFuture<'_, Result<(), Error>> {
        let sandbox = sandbox.to_owned();
        async move {
            check_id("sandbox id", &sandbox)?;
            self.shared.end(&sandbox).await
        }
        .boxed()
    }

    fn remove_sandbox(&self, sandbox: &str) -> BoxFuture<'_, Result<(), Error>> {
        let sandbox = sandbox.to_owned();
        async move {
            check_id("sandbox id", &sandbox)?;
            self.shared.remove(&sandbox).await
        }
        .boxed()
    }

    fn cleanup(&self) -> BoxFuture<'_, Result<(), Error>> {
        Self::cleanup(self).boxed()
    }

    fn usage(&self, of: Option<(&str, Option<&str>)>) -> Usage {
        let group = of.map(|(sandbox, container)| part(self.shared.group(sandbox), container));
        self.shared.cgroups.usage(group.as_deref())
    }

    fn usage_of_all(&self) -> Usage {
        self.shared
            .cgroups
            .usage(Some(Path::new(&self.shared.config.cgroup_root)))
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

    fn limit(&self, sandbox: &str, container: Option<&str>, limits: Limits) -> BoxFuture<'_, Result<(), Error>> {
        let group = self.shared.group(sandbox).join(container.unwrap_or_default());
        change(self.shared.cgroups.clone(), group, limits).boxed()
    }

    fn arrange(&self, all: Limits, burstable: u64) -> BoxFuture<'_, Result<(), Error>> {
        arrange(
            self.shared.cgroups.clone(),
            &self.shared.config.cgroup_root,
            all,
            burstable,
        )
        .boxed()
    }

    fn answers(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.shared.answers().boxed()
    }

    fn lacking(&self) -> Vec<String> {
        self.shared.cgroups.lacking()
    }

    fn lacks_users(&self) -> Option<&'static str> {
        Some("only the agent's embedded runtime has them")
    }

    fn written(&self, _sandbox: &str, container: &str) -> BoxFuture<'_, Option<Written>> {
        let container = container.to_owned();
        async move { self.shared.written(&container).await }.boxed()
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }
}

impl Shared {
    /// Makes a sandbox. A failure leaves nothing.
    async fn create_sandbox(self: &Arc<Self>, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        let (id, directory) = (spec.id.clone(), self.directory(&spec.id));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(Error::SandboxExists(id)),
            result => result.map_err(io_error("create", &directory))?,
        }
        failpoint::reach("directory made");
        let own = spec.clone();
        let furnished = self.blocking("make the sandbox", move |shared| shared.furnish(&own));
        // Both to their ends: what a failure leaves is removed then.
        let (furnished, connected) = tokio::join!(furnished, connected);
        let made = furnished.flatten().and_then(|pause| {
            connected.map_err(|_gone| Error::Unconnected(id.clone()))?;
            self.record_sandbox(spec, pause)
        });
        match made {
            Ok(sandbox) => {
                self.watch_pause(&id);
                Ok(sandbox)
            }
            Err(error) => {
                if let Err(failure) = self.remove(&id).await {
                    tracing::warn!(sandbox = id, %failure, "what a failed creation left is not all removed");
                }
                Err(error)
            }
        }
    }

    /// Makes what a sandbox has besides its network; answers the first process of its pid namespace, if it has one.
    fn furnish(&self, spec: &SandboxSpec) -> Result<Option<pause::Process>, Error> {
        let directory = self.directory(&spec.id);
        let containers = directory.join(records::CONTAINERS);
        fs::create_dir(&containers).map_err(io_error("create", &containers))?;
        let group = Path::new(&self.config.cgroup_root)
            .join(spec.class.folder())
            .join(&spec.id);
        let grouped = self
            .cgroups
            .create(&group)
            .and_then(|()| self.cgroups.limit(&group, &spec.limits));
        grouped.map_err(io_error("make the pod's cgroup", &group))?;
        holding::make(&directory, spec).map_err(io_error("make the namespaces of", &directory))?;
        failpoint::reach("group made");
        if spec.share_process_namespace && !spec.host_pid {
            return self.start_pause(&group).map(Some);
        }
        Ok(None)
    }

    fn record_sandbox(&self, spec: SandboxSpec, pause: Option<pause::Process>) -> Result<Sandbox, Error> {
        let directory = self.directory(&spec.id);
        if let Some(netns) = &spec.netns {
            fs::File::open(netns).map_err(io_error("open the network namespace", netns))?;
        }
        let sandbox = Sandbox {
            id: spec.id.clone(),
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            created_at: now(),
            user_ids: None,
            lost: false,
            containers: Vec::new(),
        };
        let record = Record {
            sandbox: sandbox.clone(),
            spec,
            pause,
            starting: BTreeSet::new(),
        };
        let recorded = self.records().insert(record);
        recorded.map_err(io_error("write the record of", &directory))?;
        failpoint::reach("sandbox recorded");
        Ok(sandbox)
    }

    /// In a group of its own below the pod's, so that the end of that is its end in any case.
    fn start_pause(&self, group: &Path) -> Result<pause::Process, Error> {
        let failed = || io_error("make the shared pid namespace of", group);
        let process = pause::Process::start(&self.program).map_err(failed())?;
        let own = group.join("pause");
        let placed = self
            .cgroups
            .create(&own)
            .and_then(|()| self.cgroups.attach(&own, process.pid));
        if placed.is_err() {
            process.end();
        }
        placed.map_err(failed())?;
        Ok(process)
    }

    /// The sandbox's record and its turn, for who makes something in it.
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
            // The next try starts a shim of its own. Not while something of the first one is left: that is still to be removed.
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

    /// A failure leaves nothing, now or soon.
    async fn try_container(
        self: &Arc<Self>,
        record: &Record,
        container: &Container,
        spec: &ContainerSpec,
    ) -> Result<(), Error> {
        let (sandbox, id) = (&record.sandbox.id, &spec.id);
        // Known before it exists: whatever happens now, the sandbox's removal finds it.
        self.change(sandbox, |containers| containers.push(container.clone()))?;
        let Err(error) = Box::pin(self.make_container(record.clone(), spec.clone())).await else {
            return Ok(());
        };
        if let Err(failure) = self.take_apart(sandbox, id).await {
            tracing::warn!(container = id, %failure, "what a failed creation left will be removed later");
            self.remove_later(sandbox, id);
        }
        if matches!(error, Error::Containerd { .. }) {
            // A shim that hangs would hold up the next try too.
            self.end_orphans().await?;
        }
        Err(error)
    }

    /// Sends a signal; success when there is nobody to send it to.
    pub(super) async fn kill(&self, container: &str, signal: i32) -> Result<(), Error> {
        let number = u32::try_from(signal).map_err(|error| Refusal::failed("send a signal", &error))?;
        let request = self.client.request(KillRequest {
            container_id: container.to_owned(),
            exec_id: String::new(),
            signal: number,
            // Other processes outlive the first one where the pid namespace is not the container's own.
            all: signal == libc::SIGKILL,
        });
        let killed = within(CALL, "send a signal", self.client.tasks().kill(request)).await;
        or_gone(killed).map(drop)
    }

    /// Who is to die needs the processor for it: thousands of processes would wait for minutes for what a quota gives them.
    pub(super) fn unthrottle(&self, group: &Path) {
        let limits = Limits {
            cpu_quota: Some(-1),
            ..Limits::default()
        };
        if self.cgroups.exists(group) {
            // They die without it, too.
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
