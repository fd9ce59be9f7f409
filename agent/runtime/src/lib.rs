//! Container runtimes behind one trait.
//!
//! [`Runtime`] has three implementations: [`Embedded`] creates containers with libcontainer, each
//! pod under a supervisor process that outlives the agent; [`Containerd`] creates them by
//! containerd; [`Sim`] simulates a machine in memory and virtual time, for tests. Methods may be
//! called from many tasks at once. Removal is idempotent in any state.

mod cgroup;
mod clock;
mod containerd;
mod embedded;
mod error;
mod files;
mod model;
mod protocol;
mod session;
mod sim;
pub mod supervisor;
mod sys;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::sync::{broadcast, oneshot};

pub use agent_containerd::Failure as ContainerdFailure;
pub use containerd::{Config as ContainerdConfig, Containerd, end_without_engine};
pub use embedded::{Config, Embedded};
pub use error::{Error, NotRun, Refusal};
pub use files::spares::Spares;
pub use files::spread::spread;
pub use model::{
    Class, Container, ContainerSpec, Details, Event, ExecResult, ExecSpec, Exit, Identity, ImageFiles, Info, Limits,
    PodId, Sandbox, SandboxSpec, Size, Stall, Stalls, State, Stdin, StreamSpec, Streams, Transfers, Usage, User,
    Written,
};
pub use session::{Input, Output, Session, Terminal};
pub use sim::{Behaviour, Sim};
pub use supervisor::streams::log::rotated;

/// Signals [`Runtime::create_sandbox`] that the sandbox's network namespace exists.
pub type Connected = oneshot::Receiver<()>;

/// Runs a helper process of a runtime, if the arguments (without the program's own name) select
/// one; otherwise returns `None`. Must be called before the process has any other thread.
pub fn helper(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let command = arguments.next()?;
    if command == "supervisor" {
        return Some(supervisor::main());
    }
    containerd::helper(&command)
}

/// Container runtime of the agent.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Returns name and version.
    fn info(&self) -> Info;

    /// Lists all sandboxes of this runtime's state directory, in order of creation, for a restarted
    /// agent to adopt.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, Error>;

    /// Creates a sandbox: the pod's shared namespaces, cgroup and supervisor. A failure leaves
    /// nothing.
    ///
    /// All that does not need the network is set up before `connected` signals that the network
    /// namespace exists; if its sender is dropped instead, this fails with [`Error::Unconnected`].
    async fn create_sandbox(&self, spec: SandboxSpec, connected: Connected) -> Result<Sandbox, Error>;

    /// Announces a container that will probably be requested in a sandbox that is being, or about
    /// to be, created: parts of it may be created ahead, and are removed with the sandbox at the
    /// latest. `placed`: all sources of its mounts exist, though their contents may be missing
    /// until the request.
    fn foresee(&self, _sandbox: &str, _spec: &ContainerSpec, _placed: bool) {}

    /// Creates a container without starting its program. A failure leaves nothing.
    async fn create_container(&self, sandbox: &str, spec: ContainerSpec) -> Result<Container, Error>;

    /// Starts a created container's program.
    async fn start_container(&self, sandbox: &str, container: &str) -> Result<Container, Error>;

    /// Creates a container and starts its program; `created` is called in between.
    fn run_container<'a>(
        &'a self,
        sandbox: &'a str,
        spec: ContainerSpec,
        created: Box<dyn FnOnce() + Send + 'a>,
    ) -> BoxFuture<'a, Result<Container, NotRun>> {
        Box::pin(async move {
            let id = spec.id.clone();
            self.create_container(sandbox, spec).await.map_err(NotRun::Made)?;
            created();
            self.start_container(sandbox, &id).await.map_err(NotRun::Started)
        })
    }

    /// Sends a signal to a container's init process; SIGKILL reaches all its processes. Does
    /// nothing, successfully, if the container has exited.
    async fn signal(&self, sandbox: &str, container: &str, signal: i32) -> Result<(), Error>;

    /// Runs a program in a running container, waits for its exit and kills the processes that it
    /// left behind.
    async fn exec(&self, sandbox: &str, container: &str, spec: ExecSpec) -> Result<ExecResult, Error>;

    /// Starts a program in a running container with streams of its own. A program that cannot be
    /// executed is an error, here or of [`Session::end`]. Processes that it leaves running stay.
    async fn exec_stream(&self, sandbox: &str, container: &str, spec: StreamSpec) -> Result<Session, Error>;

    /// Attaches to the streams of a running container: output from now on, which is also logged. A
    /// container with a terminal has no standard error. [`Session::end`] resolves with the
    /// container's end, or with that of the session's input unless the container's own input ends
    /// with it ([`Stdin::Once`]).
    async fn attach(&self, sandbox: &str, container: &str, streams: Streams) -> Result<Session, Error>;

    /// Kills a container if it runs and removes all traces of it except the log. Succeeds if it
    /// does not exist.
    async fn remove_container(&self, sandbox: &str, container: &str) -> Result<(), Error>;

    /// Mounts an image's files, read-only, at an existing directory whose name is unique in the
    /// sandbox. The image's files stay in use as long as the sandbox exists; the caller unmounts
    /// them.
    async fn mount_image(&self, sandbox: &str, image: ImageFiles, target: PathBuf) -> Result<(), Error>;

    /// Kills all processes of a sandbox, permanently. Succeeds if it does not exist. Its files and
    /// cgroups stay until its removal.
    async fn end_sandbox(&self, sandbox: &str) -> Result<(), Error>;

    /// Removes a sandbox with all its containers, in any state. Succeeds if it does not exist;
    /// continues after failures.
    async fn remove_sandbox(&self, sandbox: &str) -> Result<(), Error>;

    /// Removes everything that this runtime created on the machine. Continues after failures;
    /// succeeds if there is nothing.
    async fn cleanup(&self) -> Result<(), Error>;

    /// Usage of a sandbox, with a name of one of its containers, or of the whole machine. Reads a
    /// few files of the kernel and does not block; values that are not available are `None`.
    fn usage(&self, of: Option<(&str, Option<&str>)>) -> Usage;

    /// Transfers from and to disks, by device, of the same subjects as [`Self::usage`].
    fn transfers(&self, _of: Option<(&str, Option<&str>)>) -> BTreeMap<String, Transfers> {
        BTreeMap::new()
    }

    /// Usage of all sandboxes together, including removed ones.
    fn usage_of_all(&self) -> Usage;

    /// Returns the cgroup of a sandbox (with a name, of one of its containers), from the root of
    /// the hierarchies.
    fn group(&self, sandbox: &str, container: Option<&str>) -> PathBuf;

    /// User and groups of a container's init process at its start; `None` if not known. Reads a
    /// file.
    fn identity(&self, sandbox: &str, container: &str) -> Option<Identity>;

    /// Changes the limits of a sandbox, or with a name of one of its containers; those of a
    /// container hold until it exits.
    async fn limit(&self, sandbox: &str, container: Option<&str>, limits: Limits) -> Result<(), Error>;

    /// Limits all pods together, and sets the CPU shares of class Burstable as a whole; class
    /// `BestEffort` gets the least.
    async fn arrange(&self, all: Limits, burstable: u64) -> Result<(), Error>;

    /// Usage of a container's writable layer; `None` if it is not on a disk of this machine or not
    /// available.
    async fn written(&self, sandbox: &str, container: &str) -> Option<Written>;

    /// Checks that the backend of this runtime, such as containerd, answers.
    async fn answers(&self) -> Result<(), Error>;

    /// Lists missing cgroup controllers that pods need, with how to enable each.
    fn lacking(&self) -> Vec<String>;

    /// True if there is a runtime for a handler of a `RuntimeClass`.
    fn has_handler(&self, handler: &str) -> bool {
        ["runc", "youki"].contains(&handler)
    }

    /// Reason why pods cannot have user namespaces ([`SandboxSpec::user_ids`]) here, if so.
    fn lacks_users(&self) -> Option<&'static str>;

    /// Subscribes to events. A receiver that lags must read [`Runtime::sandboxes`] instead: the
    /// state there is never behind.
    fn events(&self) -> broadcast::Receiver<Event>;
}
