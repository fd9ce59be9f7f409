//! The pod state machine, driven by a simulated node.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may fail like tests"
)]

use std::collections::BTreeMap;

use agent_plan::pod::lifecycle::decide;
use agent_plan::pod::termination::Termination;
use agent_plan::{after, later};
use expect_test::expect;
use proptest::prelude::*;

use world::World;

#[path = "lifecycle/ended.rs"]
mod ended;
#[path = "lifecycle/hooks.rs"]
mod hooks;
#[path = "lifecycle/image.rs"]
mod image;
#[path = "lifecycle/probes.rs"]
mod probes;
#[path = "lifecycle/world.rs"]
mod world;

#[test]
fn a_plain_pod_runs_restarts_and_ends() {
    let mut world = World::new(r#"{"containers":[{"name":"a","image":"i"}]}"#);
    world.settle();
    world.check(&expect!["image a, prepare, run a 0 => Running"]);
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
        "image one, image side, image two, image main, prepare, run one 0 => Pending"
    ]);
    world.exit("one", 0);
    world.settle();
    world.check(&expect!["run side 0, run two 0 => Pending"]);
    world.exit("two", 0);
    world.settle();
    world.check(&expect!["run main 0 => Running"]);
    world.exit("main", 0);
    world.settle();
    world.check(&expect!["announce side 30, turn side => Running"]);
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
    world.check(&expect![
        "stop main 30, announce b 30, announce a 30, turn b => Running"
    ]);
    world.pass(20);
    world.settle();
    world.check(&expect!["kill b, signal a => Running"]);
}

#[test]
fn a_pod_that_has_no_time_has_a_second() {
    let mut world =
        World::new(r#"{"containers":[{"name":"main"}],"initContainers":[{"name":"side","restartPolicy":"Always"}]}"#);
    world.settle();
    world.delete(0);
    world.trace.clear();
    world.settle();
    world.check(&expect!["stop main 1, announce side 1 => Running"]);
    world.pass(1);
    world.settle();
    world.check(&expect!["signal side => Running"]);
}

#[test]
fn a_failed_initial_container_fails_a_pod_that_never_restarts() {
    let mut world =
        World::new(r#"{"restartPolicy":"Never","containers":[{"name":"main"}],"initContainers":[{"name":"one"}]}"#);
    world.settle();
    world.exit("one", 3);
    world.settle();
    world.check(&expect![
        "image one, image main, prepare, run one 0, tear down => Failed"
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
    world.check(&expect!["image a, prepare, run a 0, stop a 30 => Running"]);
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
        disruption: Some("The node was low on resource: memory. ".to_owned()),
        annotations: BTreeMap::new(),
    });
    world.settle();
    world.check(&expect!["image a, prepare, run a 0, stop a 1 => Running"]);
    world.pass(2);
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
    // However short the grace period is, there are two seconds between the two signals.
    world.check(&expect!["image a, prepare, run a 0, stop a 30, hasten a => Running"]);
    world.pass(1);
    world.settle();
    world.check(&expect!["kill a, tear down, finish => Failed"]);
}

#[test]
fn a_lost_sandbox_runs_initial_containers_again() {
    let mut world = World::new(r#"{"containers":[{"name":"a"}],"initContainers":[{"name":"one"}]}"#);
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.trace.clear();
    world.lose();
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.check(&expect!["image one, image a, prepare, run one 1, run a 1 => Running"]);
}

#[derive(Clone, Debug)]
enum Step {
    Exit(usize, i32),
    Pass(i64),
    Delete(i64),
    Lose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..3, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(container, code)| Step::Exit(container, code)),
        3 => (0_i64..400).prop_map(Step::Pass),
        1 => (0_i64..40).prop_map(Step::Delete),
        1 => Just(Step::Lose),
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
                Step::Lose => world.lose(),
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

const ALL: &str = r#""restartPolicy":"Never","restartPolicyRules":[
    {"action":"Restart","exitCodes":{"operator":"In","values":[7]}},
    {"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[7,42]}}]"#;

fn condition(world: &World, name: &str) -> (String, String) {
    let status = world.pod.status.as_ref().unwrap();
    let found = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == name);
    let found = found.unwrap_or_else(|| panic!("no condition {name}"));
    (found.status.clone(), found.reason.clone().unwrap_or_default())
}

#[test]
fn a_rule_restarts_all_containers() {
    let mut world = World::new(&format!(
        r#"{{"restartPolicy":"Never","initContainers":[{{"name":"one"}},{{"name":"side","restartPolicy":"Always"}}],
            "containers":[{{"name":"source",{ALL}}},{{"name":"other"}}]}}"#
    ));
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.trace.clear();
    world.exit("source", 7);
    world.settle();
    world.check(&expect!["image source, run source 1 => Running"]);
    assert_eq!(
        condition(&world, "AllContainersRestarting"),
        ("False".to_owned(), String::new())
    );

    world.exit("source", 42);
    world.settle();
    world.check(&expect!["stop side 0, stop other 0 => Running"]);
    let begun = ("True".to_owned(), "RestartAllContainersStarted".to_owned());
    assert_eq!(condition(&world, "AllContainersRestarting"), begun);
    world.exit("other", 137);
    world.settle();
    world.check(&expect![" => Running"]);
    world.exit("side", 137);
    world.settle();
    world.check(&expect![
        "reset, image one, image side, image other, run one 1 => Running"
    ]);
    assert!(world.was_reset("source") && world.was_reset("other"));
    assert_eq!(condition(&world, "AllContainersRestarting").0, "False");
    world.exit("one", 0);
    world.settle();
    world.check(&expect!["run side 1, run other 1 => Running"]);
    // It has been restarted twice by now, so it has a back-off.
    world.pass(10);
    world.settle();
    world.check(&expect!["image source, run source 2, remove source => Running"]);

    world.exit("other", 0);
    world.exit("source", 0);
    world.settle();
    world.check(&expect!["announce side 30, turn side => Running"]);
}

#[test]
fn a_rule_of_an_initial_container_restarts_those_before_it() {
    let mut world = World::new(&format!(
        r#"{{"restartPolicy":"Never","containers":[{{"name":"main"}}],
            "initContainers":[{{"name":"side","restartPolicy":"Always"}},{{"name":"one",{ALL}}}]}}"#
    ));
    world.settle();
    world.trace.clear();
    world.exit("one", 42);
    world.settle();
    world.exit("side", 137);
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.check(&expect![
        "stop side 0, reset, image side, image one, run side 1, run one 1, run main 0 => Running"
    ]);
}

#[test]
fn a_rule_of_a_sidecar_restarts_those_that_never_would_and_is_deaf_at_the_end() {
    let mut world = World::new(&format!(
        r#"{{"restartPolicy":"Never","containers":[{{"name":"main"}}],
            "initContainers":[{{"name":"side",{}}},{{"name":"last","restartPolicy":"Always"}}]}}"#,
        ALL.replacen("Never", "Always", 1)
    ));
    world.settle();
    world.trace.clear();
    world.exit("side", 42);
    world.settle();
    world.exit("main", 137);
    world.settle();
    world.check(&expect!["stop last 0, stop main 0 => Running"]);
    world.exit("last", 137);
    world.settle();
    world.check(&expect![
        "reset, image side, image last, image main, run side 1, run last 1, run main 1 => Running"
    ]);
    world.exit("main", 0);
    world.settle();
    world.exit("last", 0);
    world.settle();
    world.exit("side", 42);
    world.settle();
    world.check(&expect![
        "announce last 30, announce side 30, turn last, turn side, tear down => Succeeded"
    ]);
}

#[test]
fn an_agent_that_ended_during_a_restart_of_all_goes_on_with_it() {
    let mut world = World::new(&format!(
        r#"{{"restartPolicy":"Never","containers":[{{"name":"source",{ALL}}},{{"name":"other"}}]}}"#
    ));
    world.settle();
    world.pass(1);
    world.exit("source", 42);
    world.settle();
    world.exit("other", 137);
    world.settle();
    world.pass(1);
    // The runtime knows which instances exited, but not that they were to be restarted.
    world.trace.clear();
    world.view.instances.get_mut("other").unwrap().truncate(1);
    for instances in world.view.instances.values_mut() {
        for instance in instances {
            instance.reset = false;
        }
    }
    agent_plan::pod::lifecycle::resume_reset(&world.pod, &mut world.view);
    world.settle();
    world.check(&expect!["image other, run other 1 => Running"]);
}

#[test]
fn readiness_is_asked_until_the_end_and_life_is_not() {
    let mut world = World::new(
        r#"{"containers":[{"name":"a","readinessProbe":{"periodSeconds":5},"livenessProbe":{"periodSeconds":5}}]}"#,
    );
    world.settle();
    let started = world.now;
    let probe = |kind| agent_plan::pod::probe::Probe::new(kind, &k8s_openapi::api::core::v1::Probe::default(), started);
    world.memory("a").readiness = Some(probe(agent_plan::pod::probe::Kind::Readiness));
    world.memory("a").liveness = Some(probe(agent_plan::pod::probe::Kind::Liveness));
    let asked = |world: &World| {
        let plan = decide(&world.pod, &world.view, world.now);
        let actions = plan.actions.into_iter();
        let asked = actions.filter(|action| matches!(action, agent_plan::pod::action::Action::Probe { .. }));
        asked.map(|action| format!("{action:?}")).collect::<Vec<_>>()
    };
    let readiness = r#"Probe { container: "a", kind: Readiness }"#;
    assert_eq!(asked(&world), [readiness], "nobody is asked for life at once");
    world.delete(30);
    world.act(decide(&world.pod, &world.view, world.now).actions.remove(0));
    world.pass(10);
    assert_eq!(asked(&world), [readiness]);
    world.memory("a").stopping.as_mut().unwrap().stage = agent_plan::pod::observed::Stage::Killed;
    assert!(asked(&world).is_empty());
}
