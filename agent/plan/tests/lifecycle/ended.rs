//! Ends that are final in the status.

use agent_plan::pod::observed::Image;
use agent_plan::pod::pods;
use expect_test::expect;

use crate::world::World;

#[test]
fn what_is_to_run_again_is_never_told_to_have_ended() {
    for policy in ["Never", "OnFailure"] {
        let mut world = World::new(&format!(
            r#"{{"restartPolicy":"{policy}","containers":[{{"name":"a"}},{{"name":"b"}}]}}"#
        ));
        world.settle();
        for count in 1..3 {
            world.memory("a").renewal = true;
            world.settle();
            world.exit("a", 0);
            world.store_status();
            assert_eq!(
                world.waiting_reason("a").as_deref(),
                Some("ContainerCreating"),
                "{policy}"
            );
            let last = pods::stored_status(&world.pod, "a")
                .unwrap()
                .last_state
                .clone()
                .unwrap();
            assert_eq!(last.terminated.unwrap().exit_code, 0);
            world.settle();
            assert!(world.state("a").running.is_some(), "{policy}");
            assert_eq!(pods::stored_status(&world.pod, "a").unwrap().restart_count, count);
        }
    }
}

#[test]
fn a_container_whose_pod_ends_is_not_waited_for() {
    let mut world = World::new(r#"{"restartPolicy":"Never","containers":[{"name":"a"}],"activeDeadlineSeconds":5}"#);
    world.settle();
    world.memory("a").renewal = true;
    world.settle();
    world.pass(5);
    world.exit("a", 0);
    world.settle();
    world.check(&expect!["image a, prepare, run a 0, stop a 30, tear down => Failed"]);
    assert!(world.state("a").terminated.is_some());
}

/// The restart policy that makes an init container a sidecar has no such meaning on a main
/// container.
#[test]
fn a_main_container_of_its_own_policy_ends_with_its_pod() {
    let mut world = World::new(
        r#"{"restartPolicy":"Never","containers":[{"name":"a","restartPolicy":"Always"},{"name":"b"}],"activeDeadlineSeconds":5}"#,
    );
    world.settle();
    world.trace.clear();
    world.pass(5);
    world.settle();
    world.exit("a", 137);
    world.exit("b", 137);
    world.settle();
    world.check(&expect!["stop a 30, stop b 30, tear down => Failed"]);
}

#[test]
fn initial_containers_are_shown_as_ended_while_they_run_again() {
    let spec = r#"{"restartPolicy":"OnFailure","containers":[{"name":"a"}],"initContainers":[{"name":"one"}]}"#;
    let mut world = World::new(spec);
    world.settle();
    world.exit("one", 0);
    world.settle();
    world.lose();
    world.trace.clear();
    world.settle();
    world.check(&expect!["image one, image a, prepare, run one 1 => Pending"]);
    assert!(world.view.is_running("one"));
    assert_eq!(world.state("one").terminated.unwrap().exit_code, 0);
    assert!(world.state("a").running.is_none());
    // Its end is reported as usual, and a failure counts.
    world.exit("one", 3);
    world.store_status();
    assert_eq!(world.state("one").terminated.unwrap().exit_code, 3);
    world.store_status();
    assert_eq!(world.waiting_reason("one").as_deref(), Some("CrashLoopBackOff"));
    world.pass(10);
    world.settle();
    world.exit("one", 0);
    world.settle();
    assert_eq!(world.state("one").terminated.unwrap().exit_code, 0);
    assert!(world.state("a").running.is_some());
}

#[test]
fn what_was_added_runs_once() {
    let mut world = World::new(
        r#"{"containers":[{"name":"a"}],"ephemeralContainers":[{"name":"dead","image":"i"},{"name":"busy","image":"i"}]}"#,
    );
    world.settle();
    world.exit("dead", 3);
    world.settle();
    world.check(&expect![
        "image dead, image busy, image a, prepare, run dead 0, run busy 0, run a 0 => Running"
    ]);
    world.lose();
    world.settle();
    world.check(&expect!["image a, prepare, run a 1 => Running"]);
    assert_eq!(world.state("dead").terminated.unwrap().exit_code, 3);
    assert_eq!(world.state("busy").terminated.unwrap().exit_code, 137);
    // Not even by a rule that restarts all containers.
    for instance in world.view.instances.values_mut().flatten() {
        instance.reset = instance.exit().is_some();
    }
    world.settle();
    world.check(&expect![" => Running"]);
}

const LOST: &str = "ContainerStatusUnknown 137 The container could not be located when the pod was terminated";

fn ended(world: &World, container: &str) -> String {
    let Some(ended) = world.state(container).terminated else {
        return world.waiting_reason(container).unwrap_or_default();
    };
    let (reason, message) = (ended.reason.unwrap_or_default(), ended.message.unwrap_or_default());
    format!("{reason} {} {message}", ended.exit_code)
}

#[test]
fn what_never_ran_ends_with_its_pod() {
    let mut world = World::new(r#"{"containers":[{"name":"a"},{"name":"b"}],"activeDeadlineSeconds":3}"#);
    world.memory("b").image = Image::Pulling { delay: 0 };
    world.settle();
    world.check(&expect!["image a, prepare, run a 0 => Pending"]);
    world.pass(3);
    world.settle();
    // A container that still runs may yet get a status.
    assert_eq!(ended(&world, "b"), "ContainerCreating");
    world.exit("a", 143);
    world.settle();
    world.check(&expect!["stop a 30, tear down => Failed"]);
    assert_eq!(ended(&world, "a"), "Error 143 ");
    assert_eq!(ended(&world, "b"), LOST);
    // The same for a deleted pod.
    let mut world = World::new(r#"{"containers":[{"name":"a"}]}"#);
    world.memory("a").image = Image::Pulling { delay: 0 };
    world.settle();
    world.delete(30);
    world.settle();
    world.check(&expect!["prepare, tear down, finish => Failed"]);
    assert_eq!(ended(&world, "a"), LOST);
}

#[test]
fn what_still_runs_of_a_pod_that_was_given_up_is_told_to_run() {
    let mut world = World::new(r#"{"containers":[{"name":"a"},{"name":"b"}]}"#);
    world.memory("b").image = Image::Pulling { delay: 0 };
    world.settle();
    let told = world.pod.status.as_mut().unwrap();
    told.phase = Some("Failed".to_owned());
    world.settle();
    world.store_status();
    assert!(world.state("a").running.is_some());
    assert_eq!(ended(&world, "b"), "ContainerCreating");
    world.exit("a", 3);
    world.settle();
    assert_eq!(ended(&world, "a"), "Error 3 ");
    assert_eq!(ended(&world, "b"), LOST);
}

#[test]
fn of_initial_containers_only_those_whose_turn_came_end() {
    let spec = r#"{"initContainers":[{"name":"one"},{"name":"two"},{"name":"three"}],"containers":[{"name":"a"}],
        "activeDeadlineSeconds":30,"restartPolicy":"Always"}"#;
    let mut world = World::new(spec);
    world.settle();
    world.exit("one", 0);
    world.settle();
    for _ in 0..2 {
        world.exit("two", 3);
        world.settle();
    }
    assert_eq!(world.waiting_reason("two").as_deref(), Some("CrashLoopBackOff"));
    world.pass(30);
    world.settle();
    let all = ["one", "two", "three", "a"].map(|name| ended(&world, name));
    assert_eq!(all, ["Completed 0 ", "Error 3 ", "PodInitializing", "PodInitializing"]);
    let mut world = World::new(spec);
    world.memory("one").image = Image::Pulling { delay: 0 };
    world.settle();
    world.pass(30);
    world.settle();
    assert_eq!(
        ["one", "two", "a"].map(|name| ended(&world, name)),
        [LOST, "PodInitializing", "PodInitializing"]
    );
}
