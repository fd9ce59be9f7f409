//! One actor per pod. It holds the observed state of the pod, evaluates the plan, acts, and updates
//! the status.
//!
//! All changes of a pod go through its worker's loop; slow operations run in tasks that report
//! back.
//!
//! * [`act`], [`observe`]: execution of the plan's actions, and their results
//! * [`sandbox`], [`pull`], [`container`]: what a pod is made of
//! * [`room`]: preempted pods and devices, before it is admitted
//! * [`probe`], [`resize`]: while it runs
//! * [`publish`]: its status
//! * [`adopt`], [`refusal`]: pods of an earlier agent, and pods that the node rejects
//! * [`mailbox`]: messages to the worker

mod act;
mod adopt;
mod container;
mod mailbox;
mod observe;
mod probe;
mod publish;
mod pull;
mod refusal;
mod resize;
mod room;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::node::admission;
use agent_plan::pod::action::Plan;
use agent_plan::pod::lifecycle;
use agent_plan::pod::observed::{Sandbox, View};
use agent_plan::pod::resize::{told, wanted};
use agent_plan::pod::termination::Termination;
use agent_plan::pod::{pods, status};
use agent_plan::shift;
use common::task::JoinSet;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Notify, RwLock, Semaphore};
use tracing::{debug, error, warn};

use crate::client::events::Urgent;
use crate::client::objects::{Object, Seen};
use crate::clock::Steps;
use crate::confined::aside;
use crate::context::Context;
use crate::pod::milestones::Step;
use crate::pod::orders::Question;
use crate::probe::Places;

pub(crate) use container::hook::Hook;
pub(crate) use mailbox::Mailbox;
pub(crate) use resize::limits;
pub(crate) use sandbox::removal::remove;

/// Message to a worker.
#[derive(Debug)]
pub(crate) enum Input {
    /// Current pod of the API.
    Pod(Arc<Pod>),
    /// The pod was deleted from the API.
    Gone,
    /// Event of the pod's sandbox.
    Runtime(runtime::Event),
    /// Current sandbox of the runtime, after events were lost.
    Observed(runtime::Sandbox),
    /// Runtime events were lost.
    Missed,
    /// The agent ends the pod.
    End(Termination),
    /// Containers that ended before the newest instances are removed.
    Shed,
    /// Request for a log.
    Question(Question),
}

/// Reason that a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The pod is removed completely, from the API and the node.
    Over,
    /// A task panicked: the worker's state is no longer reliable.
    Broken,
}

/// Result of a task of the worker.
pub(crate) enum Done {
    Prepared {
        sandbox: String,
        outcome: Result<sandbox::prepare::Prepared, sandbox::failure::Failure>,
    },
    Pulled {
        container: String,
        outcomes: Vec<pull::Outcome>,
    },
    Started {
        container: String,
        outcome: Result<container::plan::Started, container::unstarted::Failure>,
    },
    Probed {
        container: String,
        instance: String,
        kind: agent_plan::pod::probe::Kind,
        outcome: probe::Outcome,
    },
    Hooked {
        container: String,
        instance: String,
        hook: Hook,
        outcome: Result<(), String>,
    },
    TornDown(Result<(), String>),
    /// A lost sandbox is removed completely.
    Forgotten(String),
    Published(Box<Result<Pod, kube::Error>>),
    Finished(Result<(), kube::Error>),
    Inspected(Option<runtime::Sandbox>),
    Resized(resize::Resized),
    Changed,
}

/// Concurrent image pulls of one pod.
const PULLS: usize = 2;

/// Worker of a pod.
pub(crate) struct Worker {
    context: Arc<Context>,
    pod: Arc<Pod>,
    view: View,
    /// Pods that are preempted for this one.
    preempts: Vec<Arc<Pod>>,
    /// Attempt number of the current or next sandbox.
    sandbox_attempt: u32,
    /// Previous sandboxes that may not be removed completely.
    earlier: BTreeSet<String>,
    images: BTreeMap<String, Arc<image::Image>>,
    /// Images of volumes, by the volumes' names.
    volume_images: BTreeMap<String, Arc<image::Image>>,
    /// Events for images that were present, by the containers that will start with them; true for a
    /// container's own image.
    present: BTreeMap<String, Vec<(bool, String)>>,
    /// Limits concurrent image pulls of the pod.
    pulls: Arc<Semaphore>,
    /// Limits concurrent probes of the pod.
    places: Places,
    tasks: JoinSet<Done>,
    publisher: publish::Publisher,
    watching: bool,
    /// Serializes writes to the pod's volumes.
    turns: Arc<volume::Turns>,
    /// Held while a container is created.
    creation_lock: Arc<RwLock<()>>,
    /// Wakes the task that updates volumes.
    stale: Arc<Notify>,
    /// Objects that the pod's volumes show; watched while they are held here.
    sources: Vec<(Arc<Object>, tokio::sync::watch::Receiver<Seen>)>,
    gone: bool,
    /// Time of the next attempt of the teardown or deletion.
    patience: Option<Timestamp>,
    clock: Steps,
    finishing: bool,
    resize: resize::Turn,
    /// Configurations of containers that are started once the sandbox is ready.
    drafts: container::draft::Drafts,
    /// Exits of containers whose start was not reported yet.
    early_exits: BTreeMap<String, runtime::Exit>,
    /// Held while the pod is in an urgent operation.
    urgent: Option<Urgent>,
}

impl Worker {
    pub(crate) fn new(context: Arc<Context>, pod: Arc<Pod>) -> Self {
        let stored = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        // For a pod that an earlier process started, the steps are not known.
        if stored.is_none() {
            context.reached(pods::uid(&pod), Step::Seen);
        }
        let start_time = stored.map_or_else(|| context.now(), |time| time.0);
        let mut view = View::new(start_time, context.config.host_addresses());
        view.allocated = match stored {
            Some(_) => told(&pod),
            None => wanted(&pod),
        };
        view.actual = view.allocated.clone();
        context.allocations.note(pods::uid(&pod), &view.allocated);
        let mut preempts = Vec::new();
        // Pods that an agent of this node has admitted before are not checked again.
        if pods::terminal_phase(&pod).is_none() && stored.is_none() {
            match admission::check(&pod, &context.host(&pod)) {
                Ok(others) => preempts = room::counted(&context, &pod, others),
                Err(rejection) => {
                    refusal::tell(&context, &pod, &rejection);
                    view.rejection = Some(rejection);
                }
            }
        }
        let clock = Steps::new(context.now());
        Self {
            turns: context.volumes.turns(pods::uid(&pod)),
            pulls: Arc::new(Semaphore::new(PULLS)),
            places: Places::default(),
            context,
            pod,
            view,
            preempts,
            sandbox_attempt: 0,
            earlier: BTreeSet::new(),
            images: BTreeMap::new(),
            volume_images: BTreeMap::new(),
            present: BTreeMap::new(),
            tasks: JoinSet::new(),
            publisher: publish::Publisher::default(),
            watching: false,
            stale: Arc::default(),
            sources: Vec::new(),
            gone: false,
            patience: None,
            clock,
            finishing: false,
            resize: resize::Turn::default(),
            drafts: container::draft::Drafts::new(),
            early_exits: BTreeMap::new(),
            urgent: None,
            creation_lock: Arc::default(),
        }
    }

    /// Returns the ID of the current or next sandbox.
    pub(crate) fn sandbox_id(&self) -> String {
        format!("{}-{}", pods::uid(&self.pod), self.sandbox_attempt)
    }

    /// Runs until the pod is removed from the API and the node.
    pub(crate) async fn run(mut self, inputs: Arc<Mailbox>) -> End {
        self.wait_for_room(&inputs).await;
        self.allocate_devices(&inputs).await;
        loop {
            let wake = self.step();
            self.hurry();
            if self.is_over() {
                debug!(pod = %self.id(), "nothing is left");
                self.remove_logs().await;
                self.leave_sources();
                return End::Over;
            }
            let now = self.context.now();
            let left = wake.map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or_default());
            let sleep = left.map(|left| left.max(Duration::from_millis(1)));
            tokio::select! {
                input = inputs.next() => {
                    self.now();
                    self.hear(input);
                }
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => {
                        self.now();
                        self.conclude(done);
                    }
                    Err(error) => {
                        error!(pod = %self.id(), %error, "a task of a pod ended badly");
                        return End::Broken;
                    }
                },
                () = sleep_for(sleep) => {}
            }
        }
    }

    pub(crate) fn id(&self) -> String {
        format!("{}/{}", pods::namespace(&self.pod), pods::name(&self.pod))
    }

    async fn remove_logs(&self) {
        let (context, pod) = (Arc::clone(&self.context), Arc::clone(&self.pod));
        if let Err(error) = aside(move || context.config.logs.remove(&pod)).await {
            warn!(pod = %self.id(), %error, "logs could not be removed");
        }
    }

    fn is_over(&self) -> bool {
        self.gone && self.view.sandbox == Sandbox::Removed && self.earlier.is_empty() && !self.view.any_alive()
    }

    /// Marks the pod as urgent while it starts or a status update is pressing.
    fn hurry(&mut self) {
        let starting = self.view.memory.values().any(|memory| memory.starting);
        let urgent = starting || self.view.sandbox == Sandbox::Preparing || self.publisher.is_pressing();
        if urgent != self.urgent.is_some() {
            self.urgent = urgent.then(|| self.context.recorder.urgent());
        }
    }

    /// Returns the time. After a clock step, deadlines are shifted by it.
    fn now(&mut self) -> Timestamp {
        let now = self.context.now();
        if let Some(step) = self.clock.step(now) {
            self.view.shift(step, now);
            shift(&mut self.patience, step);
            self.publisher.shift(step);
            self.resize.shift(step);
            if step.is_negative() {
                // Tokens of the pod may not be valid yet.
                self.stale.notify_one();
            }
        }
        now
    }

    /// Acts until the plan has no further action; returns when to evaluate it again.
    fn step(&mut self) -> Option<Timestamp> {
        loop {
            let now = self.now();
            let look = self.look_for_images(now);
            let Plan { actions, wake } = if self.gone {
                lifecycle::abandon(&self.pod, &self.view, now)
            } else {
                lifecycle::decide(&self.pod, &self.view, now)
            };
            let mut again = false;
            for action in actions {
                again |= self.act(action, now);
            }
            if again {
                continue;
            }
            let publish = self.publish(now);
            let resize = self.retry_resize(now);
            let patience = self.patience.filter(|patience| *patience > now);
            let wakes = [wake, look, publish, resize, patience];
            self.give_room(now);
            if self.settle_final_status() {
                continue;
            }
            return wakes.into_iter().flatten().min();
        }
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Pod(pod) => self.see(pod),
            Input::Gone => self.gone = true,
            Input::Runtime(event) => self.notice(event),
            Input::Observed(sandbox) => self.compare(&sandbox),
            Input::Missed => self.inspect(),
            Input::End(termination) => self.terminate(termination),
            Input::Shed => self.shed(),
            Input::Question(question) => self.answer(question),
        }
    }

    /// The receiver may be closed.
    fn answer(&self, question: Question) {
        let Question {
            container,
            previous,
            answer,
        } = question;
        let logged = status::logged(&self.pod, &self.view, &container, previous, self.context.now());
        answer.send(logged).ok();
    }

    /// Applies a newer version of the pod.
    fn see(&mut self, pod: Arc<Pod>) {
        if version(&pod) >= version(&self.pod) {
            let before = std::mem::replace(&mut self.pod, pod);
            self.update_volumes(&before);
            self.forget_images(&before);
            if before.spec != self.pod.spec {
                self.consider_resize();
            }
        }
    }
}

async fn sleep_for(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Returns the `resourceVersion`, a number in our server, for comparison.
fn version(pod: &Pod) -> u64 {
    pod.metadata
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(u64::MAX)
}

/// Creates a directory in a directory of the pod, which is also created if it is absent.
fn create_within(context: &Context, directory: &Path, name: &str) -> std::io::Result<()> {
    if !directory.try_exists()? {
        match context.spares.make(directory, 0o750) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    create_directories(&directory.join(name))
}

fn create_directories(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}
