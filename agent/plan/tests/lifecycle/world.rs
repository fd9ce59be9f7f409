//! A simulated node.

use agent_plan::pod::action::{Action, Why};
use agent_plan::pod::lifecycle::{LEAST_GRACE, decide};
use agent_plan::pod::observed::{Exit, Image, Instance, Memory, Sandbox, Stage, State, Stopping, View};
use agent_plan::pod::{pods, status};
use agent_plan::{Timestamp, after};
use api::pod::ending;
use expect_test::Expect;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};

/// Executes the plan's actions, at once and without failures, and counts what must never happen.
pub(crate) struct World {
    pub(crate) pod: Pod,
    pub(crate) view: View,
    pub(crate) now: Timestamp,
    pub(crate) trace: Vec<String>,
    pub(crate) finished: bool,
}

/// An action as the trace has it.
fn told(action: &Action) -> String {
    match action {
        Action::Run { container, attempt } => format!("run {container} {attempt}"),
        Action::Stop { container, grace, .. } => format!("stop {container} {grace}"),
        Action::Kill(container) => format!("kill {container}"),
        Action::Prepare => "prepare".to_owned(),
        Action::Reset => "reset".to_owned(),
        Action::TearDown => "tear down".to_owned(),
        Action::Finish => "finish".to_owned(),
        Action::EnsureImage(container) => format!("image {container}"),
        Action::Hasten { container, .. } => format!("hasten {container}"),
        Action::Remove { container, .. } => format!("remove {container}"),
        Action::Signal(container) => format!("signal {container}"),
        Action::Announce { container, grace } => format!("announce {container} {grace}"),
        Action::Turn(container) => format!("turn {container}"),
        Action::Probe { container, .. } => format!("probe {container}"),
    }
}

impl World {
    pub(crate) fn new(spec: &str) -> Self {
        let text = format!(
            r#"{{"metadata":{{"name":"p","namespace":"default","uid":"u"}},"spec":{spec},"status":{{"phase":"Pending"}}}}"#
        );
        let start = Timestamp::from_second(1_000_000).unwrap();
        Self {
            pod: serde_json::from_str(&text).unwrap(),
            view: View::new(start, vec!["192.0.2.1".parse().unwrap()]),
            now: start,
            trace: Vec::new(),
            finished: false,
        }
    }

    /// Takes steps until no action is left.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100 {
            let plan = decide(&self.pod, &self.view, self.now);
            if plan.actions.is_empty() {
                self.store_status();
                if decide(&self.pod, &self.view, self.now).actions.is_empty() {
                    return;
                }
                continue;
            }
            for action in plan.actions {
                self.act(action);
            }
            self.store_status();
            if self.finished {
                return;
            }
        }
        panic!("never settles: {:?}", self.trace);
    }

    pub(crate) fn store_status(&mut self) {
        let new = status::build(&self.pod, &self.view, "youki", self.now);
        self.check_ends(&new);
        self.pod.status = Some(new);
        let over = self.view.sandbox == Sandbox::Removed;
        self.view.final_status_stored = over;
    }

    /// Checks what the API server validates: a final end stays.
    fn check_ends(&self, new: &PodStatus) {
        let main = new.container_statuses.iter().flatten();
        let initial = new.init_container_statuses.iter().flatten();
        let added = new.ephemeral_container_statuses.iter().flatten();
        for status in main.chain(initial).chain(added) {
            let old = pods::stored_status(&self.pod, &status.name).and_then(ending::code);
            if let (Some(code), None) = (old, ending::code(status)) {
                let group = pods::group(&self.pod, &status.name);
                let spec = self.pod.spec.as_ref().unwrap();
                let leaving = ending::Leaving::of(spec, group);
                assert!(leaving.allows(0, &status.name, code), "{status:?}");
            }
        }
    }

    /// The node reboots: everything in the sandbox is lost.
    pub(crate) fn lose(&mut self) {
        let names: Vec<String> = self.view.instances.keys().cloned().collect();
        for name in names {
            self.exit(&name, 137);
        }
        for instance in self.view.instances.values_mut().flatten() {
            instance.lost = true;
        }
        if let Sandbox::Ready { .. } = self.view.sandbox {
            self.view.sandbox = Sandbox::Absent;
        }
    }

    pub(crate) fn memory(&mut self, container: &str) -> &mut Memory {
        self.view.memory.entry(container.to_owned()).or_default()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.trace.push(told(&action));
        match action {
            Action::Prepare => {
                self.view.sandbox = Sandbox::Ready {
                    addresses: vec!["10.0.0.2".parse().unwrap()],
                }
            }
            Action::EnsureImage(container) => self.memory(&container).image = Image::Present,
            Action::Run { container, attempt } => self.run(&container, attempt),
            Action::Stop { container, why, grace } => {
                if why == Why::Pod {
                    self.view.winding_down.get_or_insert(self.now);
                }
                self.memory(&container).renewal |= why == Why::Image;
                if matches!(why, Why::Liveness | Why::Startup) {
                    self.memory(&container).revival = pods::revives(&self.pod, &container);
                }
                let (deadline, stage) = (after(self.now, grace.max(LEAST_GRACE)), Stage::Signalled);
                self.memory(&container).stopping = Some(Stopping { deadline, stage });
            }
            Action::Announce { container, grace } => {
                self.view.winding_down.get_or_insert(self.now);
                let deadline = after(self.now, grace);
                self.memory(&container).stopping = Some(Stopping {
                    deadline,
                    stage: Stage::Waiting,
                });
            }
            Action::Turn(container) => {
                let least = after(self.now, 2);
                let stopping = self.memory(&container).stopping.as_mut().unwrap();
                stopping.stage = Stage::Signalled;
                stopping.deadline = stopping.deadline.max(least);
            }
            Action::Kill(container) => self.exit(&container, 137),
            Action::Hasten { container, deadline } => {
                self.memory(&container).stopping.as_mut().unwrap().deadline = deadline;
            }
            Action::Remove { container, id } => {
                self.view
                    .instances
                    .get_mut(&container)
                    .unwrap()
                    .retain(|instance| instance.id != id);
            }
            Action::Reset => {
                for instances in self.view.instances.values_mut() {
                    instances.last_mut().unwrap().reset = true;
                }
            }
            Action::TearDown => self.view.sandbox = Sandbox::Removed,
            Action::Finish => {
                self.finished = true;
                self.view.final_status_stored = false;
            }
            Action::Signal(container) => {
                let deadline = after(self.now, 2);
                self.memory(&container).stopping = Some(Stopping {
                    deadline,
                    stage: Stage::Signalled,
                });
            }
            Action::Probe { .. } => {}
        }
    }

    pub(crate) fn run(&mut self, container: &str, attempt: u32) {
        if let Some(exit) = self.view.latest(container).and_then(Instance::exit) {
            let finished = exit.finished_at;
            let memory = self.memory(container);
            memory.back_off = memory.back_off.next(finished);
        }
        let image = pods::container(&self.pod, container).and_then(|found| found.image.clone());
        let instances = self.view.instances.entry(container.to_owned()).or_default();
        assert!(
            !instances.iter().any(Instance::is_alive),
            "two running instances of {container}"
        );
        instances.push(Instance {
            id: format!("{container}-{attempt}"),
            attempt,
            image: image.unwrap_or_default(),
            image_id: "sha256:1".into(),
            state: State::Running { since: self.now },
            lost: false,
            reset: false,
        });
        let wanted = pods::container(&self.pod, container);
        let hooks = wanted.and_then(|wanted| wanted.lifecycle.clone());
        let memory = self.memory(container);
        memory.image = Image::Unknown;
        (memory.renewal, memory.revival) = (false, false);
        memory.post_start = hooks.is_some_and(|hooks| hooks.post_start.is_some());
    }

    pub(crate) fn exit(&mut self, container: &str, code: i32) {
        let now = self.now;
        let Some(instance) = self
            .view
            .instances
            .get_mut(container)
            .and_then(|instances| instances.last_mut())
        else {
            return;
        };
        if instance.is_alive() {
            instance.state = State::Exited(Exit {
                code,
                reason: if code == 0 { "Completed".into() } else { "Error".into() },
                message: String::new(),
                started_at: Some(now),
                finished_at: now,
            });
            let memory = self.memory(container);
            memory.stopping = None;
            memory.post_start = false;
        }
    }

    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now = after(self.now, seconds);
    }

    pub(crate) fn delete(&mut self, grace: i64) {
        self.pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(
            self.now, grace,
        )));
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
    }

    pub(crate) fn check(&mut self, expected: &Expect) {
        let phase = self.pod.status.as_ref().unwrap().phase.clone().unwrap();
        expected.assert_eq(&format!("{} => {phase}", self.trace.join(", ")));
        self.trace.clear();
    }

    pub(crate) fn state(&self, container: &str) -> ContainerState {
        let status = pods::stored_status(&self.pod, container).unwrap();
        status.state.clone().unwrap()
    }

    /// True if a container waits for the restart of all containers and its last end is only in
    /// `lastState`.
    pub(crate) fn was_reset(&self, container: &str) -> bool {
        let reason = Some("RestartingAllContainers");
        let last = pods::stored_status(&self.pod, container).unwrap().last_state.clone();
        let last = last.unwrap().terminated.unwrap();
        let nothing = last.container_id.is_none() && last.started_at.is_none() && last.finished_at.is_none();
        self.waiting_reason(container).as_deref() == reason
            && (last.exit_code, last.reason.as_deref()) == (137, reason)
            && nothing
    }

    pub(crate) fn waiting_reason(&self, container: &str) -> Option<String> {
        self.state(container).waiting?.reason
    }
}
