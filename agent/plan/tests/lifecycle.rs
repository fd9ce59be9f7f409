//! The pod state machine, driven by a small world that does what it is told.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may fail like tests"
)]

use agent_plan::action::Action;
use agent_plan::lifecycle::decide;
use agent_plan::observed::{Exit, Image, Instance, Memory, Sandbox, Stage, State, Stopping, Termination, View};
use agent_plan::{Timestamp, after, later, pods, status};
use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;

/// Does what the plan says, at once and without fail, and counts what must never be.
struct World {
    pod: Pod,
    view: View,
    now: Timestamp,
    trace: Vec<String>,
    finished: bool,
}

impl World {
    fn new(spec: &str) -> Self {
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

    /// Takes steps until nothing is left to do now.
    fn settle(&mut self) {
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

    fn store_status(&mut self) {
        self.pod.status = Some(status::build(&self.pod, &self.view, "youki", self.now));
        let over = self.view.sandbox == Sandbox::Removed;
        self.view.final_status_stored = over;
    }

    fn memory(&mut self, container: &str) -> &mut Memory {
        self.view.memory.entry(container.to_owned()).or_default()
    }

    fn act(&mut self, action: Action) {
        self.trace.push(match &action {
            Action::Run { container, attempt } => format!("run {container} {attempt}"),
            Action::Stop { container, grace, .. } => format!("stop {container} {grace}"),
            Action::Kill(container) => format!("kill {container}"),
            Action::Prepare => "prepare".to_owned(),
            Action::TearDown => "tear down".to_owned(),
            Action::Finish => "finish".to_owned(),
            Action::EnsureImage(container) => format!("image {container}"),
            Action::Hasten { container, .. } => format!("hasten {container}"),
            Action::Remove { container, .. } => format!("remove {container}"),
            Action::Signal(container) => format!("signal {container}"),
            Action::Probe { container, .. } => format!("probe {container}"),
        });
        match action {
            Action::Prepare => {
                self.view.sandbox = Sandbox::Ready {
                    addresses: vec!["10.0.0.2".parse().unwrap()],
                }
            }
            Action::EnsureImage(container) => self.memory(&container).image = Image::Present,
            Action::Run { container, attempt } => self.run(&container, attempt),
            Action::Stop { container, grace, .. } => {
                self.view.winding_down.get_or_insert(self.now);
                let deadline = after(self.now, grace);
                self.memory(&container).stopping = Some(Stopping {
                    deadline,
                    stage: Stage::Signalled,
                });
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
            Action::TearDown => self.view.sandbox = Sandbox::Removed,
            Action::Finish => {
                self.finished = true;
                self.view.final_status_stored = false;
            }
            Action::Signal(_) | Action::Probe { .. } => {}
        }
    }

    fn run(&mut self, container: &str, attempt: u32) {
        if let Some(exit) = self.view.latest(container).and_then(Instance::exit) {
            let finished = exit.finished_at;
            let memory = self.memory(container);
            memory.back_off = memory.back_off.next(finished);
        }
        let instances = self.view.instances.entry(container.to_owned()).or_default();
        assert!(
            !instances.iter().any(Instance::is_alive),
            "two running instances of {container}"
        );
        instances.push(Instance {
            id: format!("{container}-{attempt}"),
            attempt,
            image: "i".into(),
            image_id: "sha256:1".into(),
            state: State::Running { since: self.now },
            lost: false,
        });
        self.memory(container).image = Image::Unknown;
    }

    fn exit(&mut self, container: &str, code: i32) {
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
            self.memory(container).stopping = None;
        }
    }

    fn pass(&mut self, seconds: i64) {
        self.now = after(self.now, seconds);
    }

    fn delete(&mut self, grace: i64) {
        self.pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(
            self.now, grace,
        )));
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
    }

    fn check(&mut self, expected: &Expect) {
        let phase = self.pod.status.as_ref().unwrap().phase.clone().unwrap();
        expected.assert_eq(&format!("{} => {phase}", self.trace.join(", ")));
        self.trace.clear();
    }

    fn waiting_reason(&self, container: &str) -> Option<String> {
        pods::stored_status(&self.pod, container)?
            .state
            .as_ref()?
            .waiting
            .as_ref()?
            .reason
            .clone()
    }
}

#[test]
fn a_plain_pod_runs_restarts_and_ends() {
    let mut world = World::new(r#"{"containers":[{"name":"a","image":"i"}]}"#);
    world.settle();
    world.check(&expect!["prepare, image a, run a 0 => Running"]);
    world.exit("a", 1);
    world.settle();
    world.check(&expect!["image a, run a 1 => Running"]);
    world.exit("a", 1);
    world.settle();
    world.check(&expect![" => Running"]);
    assert_eq!(world.waiting_reason("a").as_deref(), Some("CrashLoopBackOff"));
    world.pass(10);
    world.settle();
    world.check(&expect!["image a, run a 2, remove a => Running"]);
    world.delete(30);
    world.settle();
    world.check(&expect!["stop a 30 => Running"]);
    world.pass(30);
    world.settle();
    world.check(&expect!["kill a, tear down, finish => Failed"]);
    assert!(world.finished);
}

#[test]
fn initial_containers_run_in_order_and_sidecars_end_last() {
    let mut world = World::new(
        r#"{"restartPolicy":"Never","containers":[{"name":"main"}],
            "initContainers":[{"name":"one"},{"name":"side","restartPolicy":"Always"},{"name":"two"}]}"#,
    );
    world.settle();
    world.check(&expect![
        "prepare, image one, image side, image two, image main, run one 0 => Pending"
    ]);
    world.exit("one", 0);
    world.settle();
    world.check(&expect!["run side 0, run two 0 => Pending"]);
    world.exit("two", 0);
    world.settle();
    world.check(&expect!["run main 0 => Running"]);
    world.exit("main", 0);
    world.settle();
    world.check(&expect!["stop side 30 => Running"]);
    world.exit("side", 143);
    world.settle();
    world.check(&expect!["tear down => Succeeded"]);
}

#[test]
fn sidecars_share_the_time_of_their_pod() {
    let mut world = World::new(
        r#"{"containers":[{"name":"main"}],"terminationGracePeriodSeconds":30,
            "initContainers":[{"name":"a","restartPolicy":"Always"},{"name":"b","restartPolicy":"Always"}]}"#,
    );
    world.settle();
    world.delete(30);
    world.trace.clear();
    world.settle();
    world.pass(10);
    world.exit("main", 0);
    world.settle();
    world.check(&expect!["stop main 30, stop b 20 => Running"]);
    world.pass(20);
    world.settle();
    world.check(&expect!["kill b, stop a 2 => Running"]);
}

#[test]
fn a_failed_initial_container_fails_a_pod_that_never_restarts() {
    let mut world =
        World::new(r#"{"restartPolicy":"Never","containers":[{"name":"main"}],"initContainers":[{"name":"one"}]}"#);
    world.settle();
    world.exit("one", 3);
    world.settle();
    world.check(&expect![
        "prepare, image one, image main, run one 0, tear down => Failed"
    ]);
}

#[test]
fn a_deadline_fails_the_pod() {
    let mut world = World::new(r#"{"activeDeadlineSeconds":5,"restartPolicy":"Never","containers":[{"name":"a"}]}"#);
    world.settle();
    let wake = decide(&world.pod, &world.view, world.now).wake;
    assert_eq!(wake, Some(after(world.now, 5)));
    world.pass(5);
    world.settle();
    world.check(&expect!["prepare, image a, run a 0, stop a 30 => Running"]);
    world.exit("a", 0);
    world.settle();
    world.check(&expect!["tear down => Failed"]);
    assert_eq!(
        world.pod.status.as_ref().unwrap().reason.as_deref(),
        Some("DeadlineExceeded")
    );
}

#[test]
fn a_pod_that_the_agent_ends_has_failed_when_nothing_of_it_runs() {
    let mut world = World::new(r#"{"containers":[{"name":"a"}]}"#);
    world.settle();
    world.view.termination = Some(Termination {
        reason: "Evicted",
        message: "The node was low on resource: memory. ".to_owned(),
        grace: 1,
        disruption: true,
    });
    world.settle();
    world.check(&expect!["prepare, image a, run a 0, stop a 1 => Running"]);
    world.pass(1);
    world.settle();
    world.check(&expect!["kill a, tear down => Failed"]);
    let status = world.pod.status.as_ref().unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(
        status.message.as_deref(),
        Some("The node was low on resource: memory. ")
    );
    let told = status.conditions.iter().flatten();
    let told: Vec<_> = told.filter(|own| own.type_ == "DisruptionTarget").collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].reason.as_deref(), Some("TerminationByKubelet"));
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert!(container.state.as_ref().unwrap().terminated.is_some(), "{container:?}");
}

#[test]
fn a_shorter_grace_hastens_the_end() {
    let mut world = World::new(r#"{"containers":[{"name":"a"}]}"#);
    world.settle();
    world.delete(30);
    world.settle();
    world.delete(1);
    world.settle();
    world.pass(1);
    world.settle();
    world.check(&expect![
        "prepare, image a, run a 0, stop a 30, hasten a, kill a, tear down, finish => Failed"
    ]);
}

#[test]
fn a_lost_sandbox_runs_initial_containers_again() {
    let mut world = World::new(r#"{"containers":[{"name":"a"}],"initContainers":[{"name":"one"}]}"#);
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.trace.clear();
    world.exit("a", 137);
    for instance in world.view.instances.values_mut().flatten() {
        instance.lost = true;
    }
    world.view.sandbox = Sandbox::Absent;
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.check(&expect!["prepare, image one, image a, run one 1, run a 1 => Running"]);
}

#[derive(Clone, Debug)]
enum Step {
    Exit(usize, i32),
    Pass(i64),
    Delete(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..3, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(container, code)| Step::Exit(container, code)),
        3 => (0_i64..400).prop_map(Step::Pass),
        1 => (0_i64..40).prop_map(Step::Delete),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #[test]
    fn never_two_instances_and_never_back_from_the_end(steps in steps(), policy in "Always|OnFailure|Never") {
        let mut world = World::new(&format!(
            r#"{{"restartPolicy":"{policy}","containers":[{{"name":"a"}},{{"name":"b"}}],"initContainers":[{{"name":"i"}}]}}"#
        ));
        let mut terminal: Option<String> = None;
        let mut restarts = 0;
        for step in steps {
            if world.finished { break }
            match step {
                Step::Exit(index, code) => { let name = ["a", "b", "i"][index]; world.exit(name, code) }
                Step::Pass(seconds) => world.pass(seconds),
                Step::Delete(grace) => world.delete(grace),
            }
            world.settle();
            let phase = world.pod.status.as_ref().unwrap().phase.clone().unwrap();
            if let Some(terminal) = &terminal {
                prop_assert_eq!(terminal, &phase, "a terminal phase was left");
            }
            if matches!(phase.as_str(), "Succeeded" | "Failed") {
                terminal = Some(phase);
            }
            let count: i32 = world.pod.status.as_ref().unwrap().container_statuses.iter().flatten()
                .map(|status| status.restart_count).sum();
            prop_assert!(count >= restarts, "a restart count went back");
            restarts = count;
        }
        world.now = later(world.now, 1);
    }
}
