//! Methods of the [`crate::Runtime`] trait: requests to a supervisor, and local work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::broadcast;

use super::run::as_container;
use super::{Embedded, check_id, unexpected};
use crate::cgroup::{Cgroups, part};
use crate::clock::now;
use crate::error::io_error;
use crate::files::{overlay, record};
use crate::protocol::{Answer, Call, Stdio};
use crate::{
    Connected, Container, ContainerSpec, Error, Event, ExecResult, ExecSpec, Identity, ImageFiles, Info, Limits,
    NotRun, Refusal, Runtime, Sandbox, SandboxSpec, Session, State, StreamSpec, Streams, Transfers, Usage, Written,
};

/// Version of libcontainer, which is youki's.
const VERSION: &str = "0.7.0";

pub(crate) fn described(spec: &ContainerSpec) -> Container {
    Container {
        id: spec.id.clone(),
        name: spec.name.clone(),
        attempt: spec.attempt,
        image: spec.image.clone(),
        image_id: spec.image_id.clone(),
        log_path: spec.log_path.clone(),
        annotations: spec.annotations.clone(),
        created_at: now(),
        state: State::Created,
    }
}

/// Limits of a configuration, which the supervisor sets.
fn limits(spec: &oci_spec::runtime::Spec) -> Limits {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let cpu = resources.and_then(|resources| resources.cpu().as_ref());
    Limits {
        cpu_shares: cpu.and_then(oci_spec::runtime::LinuxCpu::shares),
        cpu_quota: cpu.and_then(oci_spec::runtime::LinuxCpu::quota),
        cpu_period: cpu.and_then(oci_spec::runtime::LinuxCpu::period),
        memory: resources
            .and_then(|resources| resources.memory().as_ref())
            .and_then(oci_spec::runtime::LinuxMemory::limit),
        pids: resources
            .and_then(|resources| resources.pids().as_ref())
            .map(oci_spec::runtime::LinuxPids::limit),
        hugepages: resources
            .and_then(|resources| resources.hugepage_limits().as_ref())
            .into_iter()
            .flatten()
            .map(|limit| (limit.page_size().clone(), limit.limit()))
            .collect(),
    }
}

/// The container's own streams.
pub(super) fn stdio(spec: &ContainerSpec) -> Stdio {
    let process = spec.spec.process().as_ref();
    let terminal = process.and_then(oci_spec::runtime::Process::terminal);
    Stdio {
        stdin: spec.stdin,
        terminal: terminal == Some(true),
    }
}

/// Request body for the creation of a container.
pub(super) fn body(spec: &ContainerSpec) -> Result<Vec<u8>, Error> {
    check_id("container id", &spec.id)?;
    if spec.layers.is_empty() {
        return Err(Error::Invalid {
            what: "layers",
            value: String::new(),
        });
    }
    let body = serde_json::to_vec(spec).map_err(|error| Refusal::failed("encode the container", &error))?;
    Ok(body)
}

/// Request to create a container, and its body.
fn create(spec: ContainerSpec) -> Result<(Call, Vec<u8>), Error> {
    let (body, stdio) = (body(&spec)?, stdio(&spec));
    let call = Call::Create {
        container: Box::new(described(&spec)),
        limits: limits(&spec.spec),
        pid_of: spec.pid_of,
        stdio,
    };
    Ok((call, body))
}

/// Changes the limits of a pod's group, or of one of its containers; may block while the kernel
/// reclaims memory.
pub(crate) async fn change(
    cgroups: Cgroups,
    pod: PathBuf,
    container: Option<String>,
    limits: Limits,
) -> Result<(), Error> {
    let failed = io_error(
        "limit the control group",
        &pod.join(container.as_deref().unwrap_or_default()),
    );
    let changed = tokio::task::spawn_blocking(move || cgroups.change_limits(&pod, container.as_deref(), &limits)).await;
    changed
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(failed)
}

/// Limits the groups that pods share.
pub(crate) async fn arrange(cgroups: Cgroups, root: &str, all: Limits, burstable: u64) -> Result<(), Error> {
    let root = PathBuf::from(root);
    let failed = io_error("arrange the control groups below", &root);
    let arranged = tokio::task::spawn_blocking(move || cgroups.arrange(&root, &all, burstable)).await;
    arranged
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(failed)
}

#[async_trait]
impl Runtime for Embedded {
    fn info(&self) -> Info {
        Info {
            name: "youki".to_owned(),
            version: VERSION.to_owned(),
        }
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        let known = self.shared.known()?;
        let found = futures::future::try_join_all(known.iter().map(|id| self.shared.inspect(id))).await?;
        let mut all: Vec<Sandbox> = found.into_iter().flatten().collect();
        all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
        Ok(all)
    }

    async fn create_sandbox(&self, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error> {
        check_id("sandbox id", &spec.id)?;
        self.shared.create(spec, connected).await
    }

    fn foresee(&self, sandbox: &str, spec: &ContainerSpec, placed: bool) {
        self.shared.foresee(sandbox, spec, placed);
    }

    async fn create_container(&self, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error> {
        let (call, body) = create(spec)?;
        self.shared.call(sandbox, call, &body).await.and_then(as_container)
    }

    /// Sends both requests at once, so that the start does not wait for this process.
    fn run_container<'a>(
        &'a self,
        sandbox: &'a str,
        spec: ContainerSpec,
        created: Box<dyn FnOnce() + Send + 'a>,
    ) -> BoxFuture<'a, Result<Container, NotRun>> {
        async move {
            let connection = self.shared.connection(sandbox).map_err(NotRun::Made)?;
            let id = spec.id.clone();
            let (call, body) = create(spec).map_err(NotRun::Made)?;
            super::run::run(&connection, &id, call, &body, created).await
        }
        .boxed()
    }

    async fn start_container(&self, sandbox: &str, container: &str) -> Result<Container, Error> {
        let call = Call::Start(container.to_owned());
        self.shared.call(sandbox, call, &[]).await.and_then(as_container)
    }

    async fn signal(&self, sandbox: &str, container: &str, signal: i32) -> Result<(), Error> {
        let call = Call::Signal(container.to_owned(), signal);
        self.shared.call(sandbox, call, &[]).await.map(drop)
    }

    async fn exec(&self, sandbox: &str, container: &str, spec: ExecSpec) -> Result<ExecResult, Error> {
        let call = Call::Exec(container.to_owned(), spec);
        let (answer, output) = self.shared.call(sandbox, call, &[]).await?;
        match answer {
            Answer::Exec {
                exit_code,
                truncated,
                timed_out,
            } => Ok(ExecResult {
                exit_code,
                output,
                truncated,
                timed_out,
            }),
            Answer::Done | Answer::Container(_) | Answer::Sandbox(_) | Answer::Ready { .. } => Err(unexpected()),
        }
    }

    async fn exec_stream(&self, sandbox: &str, container: &str, spec: StreamSpec) -> Result<Session, Error> {
        self.shared.exec_stream(sandbox, container.to_owned(), spec).await
    }

    async fn attach(&self, sandbox: &str, container: &str, streams: Streams) -> Result<Session, Error> {
        self.shared.attach(sandbox, container.to_owned(), streams).await
    }

    async fn remove_container(&self, sandbox: &str, container: &str) -> Result<(), Error> {
        check_id("container id", container)?;
        match self.shared.call(sandbox, Call::Remove(container.to_owned()), &[]).await {
            Ok(_) | Err(Error::SandboxNotFound(_)) => Ok(()),
            Err(Error::SandboxLost(_)) => self.shared.remove_lost_container(sandbox, container).await,
            Err(error) => Err(error),
        }
    }

    async fn mount_image(&self, _sandbox: &str, image: ImageFiles, target: PathBuf) -> Result<(), Error> {
        let path = target.clone();
        let mounting = tokio::task::spawn_blocking(move || overlay::attach_fixed(&image.layers, &target));
        let mounted = mounting.await.unwrap_or_else(|error| Err(error.into()));
        mounted.map_err(io_error("mount an image at", &path))
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
        let containers = self.shared.directory(sandbox).join(crate::supervisor::CONTAINERS);
        record::identity(&containers.join(container).join(crate::supervisor::CONFIG))
    }

    async fn limit(&self, sandbox: &str, container: Option<&str>, limits: Limits) -> Result<(), Error> {
        let container = container.map(str::to_owned);
        if container.is_none() {
            // The supervisor sets the pod's limits at each start of a container.
            self.shared.call(sandbox, Call::Limit(limits.clone()), &[]).await?;
        }
        let group = self.shared.group(sandbox);
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
        Ok(())
    }

    fn lacking(&self) -> Vec<String> {
        self.shared.cgroups.lacking()
    }

    fn lacks_users(&self) -> Option<&'static str> {
        // tmpfs, which holds secrets above all, supports ID-mapped mounts since Linux 6.3.
        (!crate::sys::kernel_since((6, 3))).then_some("Linux 6.3 or later is needed")
    }

    async fn written(&self, sandbox: &str, container: &str) -> Option<Written> {
        let containers = self.shared.directory(sandbox).join(crate::supervisor::CONTAINERS);
        let known = check_id("container id", container).is_ok();
        known.then(|| Written::In(containers.join(container).join("upper")))
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }
}
