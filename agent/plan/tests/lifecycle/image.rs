//! Containers whose image changes while they run.

use agent_plan::pod::lifecycle::replaces_container;
use expect_test::expect;

use crate::world::World;

#[test]
fn a_container_whose_image_is_changed_runs_again_whatever_the_policy_says() {
    let mut world =
        World::new(r#"{"restartPolicy":"Never","containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]}"#);
    world.settle();
    world.check(&expect!["image a, image b, prepare, run a 0, run b 0 => Running"]);
    world.pod.spec.as_mut().unwrap().containers[0].image = Some("j".into());
    world.settle();
    world.check(&expect!["stop a 30 => Running"]);
    assert!(!replaces_container(&world.pod, &world.view), "it still runs");
    world.exit("b", 1);
    assert!(!replaces_container(&world.pod, &world.view), "b has ended by itself");
    world.exit("a", 0);
    assert!(replaces_container(&world.pod, &world.view));
    world.settle();
    assert!(!replaces_container(&world.pod, &world.view));
    world.check(&expect!["image a, run a 1 => Running"]);
    assert_eq!(world.view.latest("a").unwrap().image, "j");
}
