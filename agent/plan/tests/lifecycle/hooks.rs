//! A container counts as running, and the next one starts, once its postStart hook has ended.

use agent_plan::after;
use agent_plan::pod::observed::Failure;
use agent_plan::pod::status;
use expect_test::expect;

use crate::world::World;

const TWO: &str = r#"{"containers":[{"name":"a","lifecycle":{"postStart":{"sleep":{"seconds":5}}}},{"name":"b"}]}"#;

#[test]
fn a_container_is_not_told_to_run_before_its_hook_has_ended() {
    let mut world = World::new(TWO);
    world.settle();
    world.check(&expect!["image a, image b, prepare, run a 0 => Pending"]);
    assert_eq!(world.waiting_reason("a").as_deref(), Some("ContainerCreating"));
    assert_eq!(status::logged(&world.pod, &world.view, "a", false, world.now), Ok(0));
    world.memory("a").post_start = false;
    world.settle();
    world.check(&expect!["run b 0 => Running"]);
    assert!(world.state("a").running.is_some());
    // The pod keeps the phase `Running` when one of them is restarted.
    world.exit("a", 1);
    world.settle();
    world.check(&expect!["image a, run a 1 => Running"]);
    assert_eq!(world.waiting_reason("a").as_deref(), Some("ContainerCreating"));
}

#[test]
fn who_cannot_start_or_has_failed_holds_up_nobody() {
    let mut world = World::new(TWO);
    world.memory("a").failure = Some(Failure {
        reason: "CreateContainerError".to_owned(),
        message: String::new(),
        until: after(world.now, 10),
    });
    world.settle();
    world.check(&expect!["image b, prepare, run b 0 => Pending"]);
    let mut world = World::new(TWO);
    world.settle();
    world.exit("a", 137);
    world.settle();
    world.check(&expect![
        "image a, image b, prepare, run a 0, image a, run b 0, run a 1 => Running"
    ]);
}

#[test]
fn who_is_not_to_run_again_holds_up_nobody() {
    let spec = TWO.replacen('{', r#"{"restartPolicy":"OnFailure","#, 1);
    let mut world = World::new(&spec);
    world.settle();
    world.memory("a").post_start = false;
    world.settle();
    world.exit("a", 0);
    world.lose();
    world.trace.clear();
    world.settle();
    world.check(&expect!["image b, prepare, run b 1 => Running"]);
    // Neither during the back-off.
    let mut world = World::new(&spec);
    world.settle();
    for _ in 0..2 {
        world.exit("a", 1);
        world.settle();
    }
    world.memory("a").post_start = false;
    world.settle();
    world.exit("a", 1);
    world.lose();
    world.trace.clear();
    world.settle();
    world.check(&expect!["image b, prepare, run b 1 => Running"]);
}
