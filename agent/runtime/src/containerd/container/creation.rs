//! Creation of a container: containerd's record and a created task, from the specification.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::{Container as Stored, CreateContainerRequest, CreateTaskRequest};
use containerd_client::types::Mount;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use prost_types::Any;

use super::{handlers, root, sysfs};
use crate::cgroup::{SWAP, TOGETHER};
use crate::containerd::Shared;
use crate::containerd::client::{CALL, TASK, within};
use crate::containerd::logger::{self, Order};
use crate::containerd::records::Record;
use crate::containerd::sandbox::holding;
use crate::containerd::sandbox::pause::Process;
use crate::files::{label, record};
use crate::supervisor::container::spec::{Place, confine, is_closed};
use crate::supervisor::process::user;
use crate::supervisor::rootfs::shm::TARGET;
use crate::{ContainerSpec, Error, Refusal, State, Stdin};

/// Type URL of an OCI configuration.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// Annotation by which the shim puts containers under one process. Not the CRI plugin's annotation:
/// other runtimes would look for a sandbox container.
const GROUPING: &str = "io.containerd.runc.v2.group";
/// OCI process of a container, for execs.
pub(in crate::containerd) const PROCESS: &str = "process.json";
/// Time after which a creation may be waiting for a shim that never answers.
const HANGING: Duration = Duration::from_secs(2);

/// Creates a container's directory with the files of its streams.
fn make_directory(directory: &Path, spec: &ContainerSpec) -> Result<Order, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    // Check the log first: a path that is not a regular file is refused here, instead of a logger
    // that writes nothing.
    drop(crate::supervisor::streams::log::LogFile::open(&spec.log_path).map_err(failed("open the log"))?);
    let made = fs::DirBuilder::new().mode(0o700).create(directory);
    made.map_err(failed("create the container's directory"))?;
    let process = spec.spec.process().as_ref();
    let order = Order {
        log: spec.log_path.clone(),
        stdin: spec.stdin,
        terminal: process.and_then(oci_spec::runtime::Process::terminal) == Some(true),
    };
    record::write(&directory.join(logger::ORDER), &order).map_err(failed("write the order for the container's log"))?;
    make_pipes(directory, &order).map_err(failed("make the container's pipes"))?;
    Ok(order)
}

/// Completes a container's OCI configuration for the runtime.
fn configure(shared: &Shared, record: &Record, spec: &ContainerSpec, mounts: &[Mount]) -> Result<Vec<u8>, Refusal> {
    let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
    let sandbox = shared.directory(&record.sandbox.id);
    let directory = shared.container_directory(&record.sandbox.id, &spec.id);
    let root = root::view(mounts, &directory.join("view")).map_err(failed("read the root file system"))?;
    root::check(&root)?;
    let identity = user::resolve_in(&root, &spec.user)?;
    let memory = if record.spec.host_ipc {
        PathBuf::from(TARGET)
    } else {
        holding::memory(&sandbox)
    };
    if let Some(label) = label::of_mounts(&spec.spec).filter(|_| !record.spec.host_ipc) {
        label::set(&memory, label).map_err(failed("label the pod's shared memory"))?;
    }
    let place = Place {
        // Relative to the bundle that the shim creates.
        rootfs: Path::new("rootfs"),
        cgroup: Path::new("/").join(shared.group(&record.sandbox.id).join(&spec.id)),
        namespaces: namespaces(&sandbox, record, spec.pid_of.as_deref())?,
        memory: &memory,
        grouped: false,
        settled: false,
    };
    let mut config = confine(spec.spec.clone(), &identity, &place)?;
    let volumes = root::volumes(&root, mounts, &directory.join("root"), &spec.volumes)?;
    if is_closed(&config) {
        root::keep_open(&mut config, &volumes);
    }
    forbid_swap(&mut config);
    if !shared.cgroups.has_pages() {
        drop_no_pages(&mut config);
    }
    if shared.cgroups.ends_together() {
        set_unified(&mut config, TOGETHER, "1");
    }
    sysfs::close_alone(&mut config);
    let mut annotations = config.annotations().clone().unwrap_or_default();
    annotations.insert(GROUPING.to_owned(), record.sandbox.id.clone());
    config.set_annotations(Some(annotations));
    replace_bytes(&mut config);
    record::write(&directory.join(PROCESS), &config.process()).map_err(failed("write the container's process"))?;
    serde_json::to_vec(&config).map_err(|error| Refusal::failed("encode the configuration", &error))
}

/// Creates the pipes that the shim opens.
fn make_pipes(directory: &Path, order: &Order) -> io::Result<()> {
    let input = (order.stdin != Stdin::Closed).then_some(logger::INPUT);
    for name in logger::OUTPUTS.into_iter().chain(input) {
        mkfifo(&directory.join(name), Mode::from_bits_truncate(0o600))?;
    }
    Ok(())
}

fn namespaces(
    sandbox: &Path,
    record: &Record,
    target: Option<&str>,
) -> Result<Vec<(LinuxNamespaceType, Option<PathBuf>)>, Refusal> {
    let shared = record.pause.as_ref().map(Process::namespace);
    let Some(target) = target else {
        return Ok(holding::namespaces(sandbox, &record.spec, shared));
    };
    let missing = || Refusal::ContainerNotFound(target.to_owned());
    let found = record.containers().iter().find(|known| known.id == target);
    match &found.ok_or_else(missing)?.state {
        State::Running { pid, .. } => {
            let of_target = PathBuf::from(format!("/proc/{pid}/ns/pid"));
            Ok(holding::namespaces(sandbox, &record.spec, Some(of_target)))
        }
        State::Created | State::Exited { .. } => Err(Refusal::WrongState {
            id: target.to_owned(),
            state: "not running".to_owned(),
        }),
    }
}

/// Keeps a container from swap, if the kernel counts it. On v1 its limit is one of memory and swap
/// together, so that a container without a memory limit may swap
/// (`ConfigureNoSwap`, `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
fn forbid_swap(config: &mut Spec) {
    // The root of v2 does not have the file.
    if Path::new("/sys/fs/cgroup/init.scope").join(SWAP).exists() {
        return set_unified(config, SWAP, "0");
    }
    let counted = Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes");
    let mut linux = config.linux().clone().unwrap_or_default();
    let Some(mut resources) = linux.resources().clone() else {
        return;
    };
    let Some(mut memory) = *resources.memory() else { return };
    if let Some(limit) = memory.limit().filter(|limit| *limit > 0)
        && counted.exists()
    {
        memory.set_swap(Some(limit));
        resources.set_memory(Some(memory));
        linux.set_resources(Some(resources));
        config.set_linux(Some(linux));
    }
}

/// Sets a file of the container's group on v2.
fn set_unified(config: &mut Spec, file: &str, value: &str) {
    let mut linux = config.linux().clone().unwrap_or_default();
    let mut resources = linux.resources().clone().unwrap_or_default();
    let mut unified = resources.unified().clone().unwrap_or_default();
    unified.insert(file.to_owned(), value.to_owned());
    resources.set_unified(Some(unified));
    linux.set_resources(Some(resources));
    config.set_linux(Some(linux));
}

/// Replaces the placeholders of bytes that are not UTF-8 by U+FFFD, as Go does in other CRI
/// runtimes: runc reads its configuration as JSON.
fn replace_bytes(config: &mut Spec) {
    let Some(mut process) = config.process().clone() else {
        return;
    };
    let replaced = |all: &Vec<String>| -> Vec<String> {
        let each = all.iter();
        each.map(|text| text.replace(|character: char| character >= '\u{10ff80}', "\u{fffd}"))
            .collect()
    };
    let (args, env) = (
        process.args().as_ref().map(replaced),
        process.env().as_ref().map(replaced),
    );
    process.set_args(args).set_env(env);
    config.set_process(Some(process));
}

/// Drops limits of zero huge pages, which runc cannot represent.
fn drop_no_pages(config: &mut Spec) {
    let mut linux = config.linux().clone().unwrap_or_default();
    let Some(mut resources) = linux.resources().clone() else {
        return;
    };
    let limits = resources.hugepage_limits().clone().map(|mut limits| {
        limits.retain(|limit| limit.limit() > 0);
        limits
    });
    resources.set_hugepage_limits(limits);
    linux.set_resources(Some(resources));
    config.set_linux(Some(linux));
}

impl Shared {
    /// Creates a container with its task; returns the PID of its init process.
    pub(in crate::containerd) async fn make_container(
        self: &Arc<Self>,
        record: Record,
        spec: ContainerSpec,
    ) -> Result<i32, Error> {
        let directory = self.container_directory(&record.sandbox.id, &spec.id);
        let (making, own) = (directory.clone(), spec.clone());
        let made = self.blocking("make the container's directory", move |_| make_directory(&making, &own));
        let order = made.await??;
        let starting = self.blocking("start the log's writer", move |shared| shared.start_logger(&directory));
        let (written, stored) = tokio::join!(starting, self.store_container(&record, &spec));
        written?.map_err(|error| Refusal::failed("start the log's writer", &error))?;
        self.make_task(&record, &spec, &order, stored?).await
    }

    /// Prepares a container's snapshot and registers the container; returns the mounts of the
    /// snapshot.
    async fn store_container(self: &Arc<Self>, record: &Record, spec: &ContainerSpec) -> Result<Vec<Mount>, Error> {
        let mounts = if let Some(mounts) = self.prepared_ahead(&spec.id).await {
            mounts
        } else {
            let snapshot = spec.snapshot.as_deref().unwrap_or_default();
            self.prepare_root(&spec.id, snapshot).await?
        };
        failpoint::reach("snapshot made");
        let (own, own_spec) = (record.clone(), spec.clone());
        let configuring = self.blocking("prepare the container", move |shared| {
            let config = configure(shared, &own, &own_spec, &mounts);
            config.map(|config| (config, root::for_task(mounts, label::of_mounts(&own_spec.spec))))
        });
        let (config, mounts) = configuring.await?.map_err(|refusal| {
            if refusal == Refusal::RunsAsRoot {
                Error::RunsAsRoot
            } else {
                refusal.into()
            }
        })?;
        self.store(record, spec, config).await?;
        Ok(mounts)
    }

    /// Registers a container with containerd.
    async fn store(&self, record: &Record, spec: &ContainerSpec, config: Vec<u8>) -> Result<(), Error> {
        let handler = &record.spec.handler;
        let runtime = handlers::find(handler, &self.config.runtimes);
        let missing = || Refusal::Failed {
            doing: "get sandbox runtime".to_owned(),
            cause: format!("no runtime for {handler:?} is configured"),
        };
        let stored = Stored {
            id: spec.id.clone(),
            labels: self.labels(record, spec),
            image: spec.image.clone(),
            runtime: Some(runtime.ok_or_else(missing)?),
            spec: Some(Any {
                type_url: SPEC.to_owned(),
                value: config,
            }),
            snapshotter: self.config.snapshotter.clone(),
            snapshot_key: spec.id.clone(),
            ..Stored::default()
        };
        let request = self.client.request(CreateContainerRequest {
            container: Some(stored),
        });
        within(CALL, "create container", self.client.containers().create(request)).await?;
        failpoint::reach("container stored");
        Ok(())
    }

    /// Creates the task of a stored container; returns the PID of its init process.
    async fn make_task(
        self: &Arc<Self>,
        record: &Record,
        spec: &ContainerSpec,
        order: &Order,
        mounts: Vec<Mount>,
    ) -> Result<i32, Error> {
        let directory = self.container_directory(&record.sandbox.id, &spec.id);
        let pipe = |name: &str| directory.join(name).display().to_string();
        let [stdout, stderr] = logger::OUTPUTS.map(pipe);
        let request = self.client.request(CreateTaskRequest {
            container_id: spec.id.clone(),
            rootfs: mounts,
            // The shim keeps it open, so that the container's input does not end.
            stdin: if order.stdin == Stdin::Closed {
                String::new()
            } else {
                pipe(logger::INPUT)
            },
            stdout,
            // A terminal has a single output.
            stderr: if order.terminal { String::new() } else { stderr },
            terminal: order.terminal,
            ..CreateTaskRequest::default()
        });
        let mut tasks = self.client.tasks();
        let making = Box::pin(within(TASK, "create containerd task", tasks.create(request)));
        let made = self.unless_it_hangs(making).await;
        let pid = made.map_err(program)?.pid;
        failpoint::reach("task made");
        i32::try_from(pid).map_err(|error| Refusal::failed("create containerd task", &error).into())
    }

    /// Awaits a creation, and kills orphaned shims while it hangs: an orphan holds the pod's
    /// address but does not answer there, and containerd's call returns only when it is gone.
    async fn unless_it_hangs<T>(
        self: &Arc<Self>,
        mut making: impl Future<Output = Result<T, Error>> + Unpin,
    ) -> Result<T, Error> {
        loop {
            tokio::select! {
                made = &mut making => return made,
                () = tokio::time::sleep(HANGING) => self.end_orphans().await?,
            }
        }
    }

    /// Labels for users and tools that list containerd's containers. The CRI plugin's own labels
    /// are not among them: in its namespace it would treat the container as a broken one of its
    /// own.
    fn labels(&self, record: &Record, spec: &ContainerSpec) -> HashMap<String, String> {
        let pod = &record.sandbox.pod;
        let pairs = [
            (agent_containerd::OWNER, self.owner()),
            ("io.kubernetes.container.name", spec.name.clone()),
            ("io.kubernetes.pod.name", pod.name.clone()),
            ("io.kubernetes.pod.namespace", pod.namespace.clone()),
            ("io.kubernetes.pod.uid", pod.uid.clone()),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// runc looks for the program and the working directory during the creation; these errors are
/// distinguished.
pub(in crate::containerd) fn program(error: Error) -> Error {
    const WORDS: &str = "unable to start container process: ";
    let Error::Containerd { source, .. } = &error else {
        return error;
    };
    match source.to_string().split_once(WORDS) {
        Some((_, why)) => {
            // Code of Go errors without a gRPC status.
            Refusal::Program(why.trim_end_matches(": unknown").to_owned()).into()
        }
        None => error,
    }
}
