//! Containers that are stopped after a failed probe.

use agent_plan::pod::action::Why;
use agent_plan::pod::pods;
use agent_plan::pod::probe::{Kind, Probe};
use expect_test::expect;
use k8s_openapi::api::core::v1::Probe as Specification;

use crate::world::World;

fn fail(world: &mut World) {
    let mut probe = Probe::new(Kind::Liveness, &Specification::default(), world.now);
    while !probe.has_failed() {
        world.pass(10);
        probe.begin(world.now);
        probe.record(false, world.now);
    }
    world.memory("a").liveness = Some(probe);
}

#[test]
fn who_fails_a_probe_runs_again_however_well_it_ends() {
    let mut world = World::new(r#"{"restartPolicy":"OnFailure","containers":[{"name":"a"}]}"#);
    world.settle();
    world.check(&expect!["image a, prepare, run a 0 => Running"]);
    fail(&mut world);
    world.settle();
    world.check(&expect!["stop a 30 => Running"]);
    world.exit("a", 0);
    world.store_status();
    assert_eq!(world.waiting_reason("a").as_deref(), Some("ContainerCreating"));
    world.memory("a").liveness = None;
    world.settle();
    world.check(&expect!["image a, run a 1 => Running"]);
    // The second restart has a back-off.
    world.memory("a").revival = true;
    world.exit("a", 0);
    world.settle();
    world.check(&expect![" => Running"]);
    assert_eq!(world.waiting_reason("a").as_deref(), Some("CrashLoopBackOff"));
    world.pass(10);
    world.settle();
    world.check(&expect!["image a, run a 2, remove a => Running"]);
    // An exit by itself is final.
    world.exit("a", 0);
    world.settle();
    world.check(&expect!["tear down => Succeeded"]);
}

#[test]
fn who_never_runs_again_does_not_after_a_probe() {
    let mut world = World::new(r#"{"restartPolicy":"Never","containers":[{"name":"a"}]}"#);
    world.settle();
    fail(&mut world);
    world.settle();
    let told = |world: &World| Why::Liveness.told("a", pods::revives(&world.pod, "a"));
    assert_eq!(told(&world), "Container a failed liveness probe");
    world.exit("a", 0);
    world.settle();
    world.check(&expect!["image a, prepare, run a 0, stop a 30, tear down => Succeeded"]);
    let world = World::new(r#"{"containers":[{"name":"a"}]}"#);
    assert_eq!(told(&world), "Container a failed liveness probe, will be restarted");
}
