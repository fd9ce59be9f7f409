//! What ended for good is told so for good.

use agent_plan::pods;
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
    world.check(&expect!["prepare, image a, run a 0, stop a 30, tear down => Failed"]);
    assert!(world.state("a").terminated.is_some());
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
    world.check(&expect!["prepare, image one, image a, run one 1 => Pending"]);
    assert!(world.view.is_running("one"));
    assert_eq!(world.state("one").terminated.unwrap().exit_code, 0);
    assert!(world.state("a").running.is_none());
    // Its end is told as ever, and then a failure is one.
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
        "prepare, image dead, image busy, image a, run dead 0, run busy 0, run a 0 => Running"
    ]);
    world.lose();
    world.settle();
    world.check(&expect!["prepare, image a, run a 1 => Running"]);
    assert_eq!(world.state("dead").terminated.unwrap().exit_code, 3);
    assert_eq!(world.state("busy").terminated.unwrap().exit_code, 137);
    // Not even a rule that starts all others again.
    for instance in world.view.instances.values_mut().flatten() {
        instance.reset = instance.exit().is_some();
    }
    world.settle();
    world.check(&expect![" => Running"]);
}
