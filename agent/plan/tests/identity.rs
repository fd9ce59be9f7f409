//! A container's user and stop signal in its status.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    reason = "helpers of tests may fail like tests, and have more than this uses"
)]

use k8s_openapi::api::core::v1::{ContainerUser, LinuxContainerUser};
use serde_json::{Value, json};

use world::World;

#[path = "lifecycle/world.rs"]
mod world;

#[test]
fn a_status_tells_who_a_container_is_and_what_stops_it() {
    let mut world = World::new(
        r#"{"containers":[{"name":"a","image":"i","lifecycle":{"stopSignal":"SIGUSR1"}},{"name":"b","image":"i"}]}"#,
    );
    world.settle();
    let told = |world: &World, name: &str| -> (Value, Value) {
        let statuses = world.pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
        let own = statuses.iter().find(|status| status.name == name).unwrap();
        (json!(own.user), json!(own.stop_signal))
    };
    assert_eq!(told(&world, "b"), (Value::Null, Value::Null), "nobody knows");
    let user = ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: 1000,
            gid: 3000,
            supplemental_groups: Some(vec![3000, 4000]),
        }),
    };
    let id = world.view.latest("a").unwrap().id.clone();
    world.view.users.insert(id, user);
    world.store_status();
    let linux = json!({"uid": 1000, "gid": 3000, "supplementalGroups": [3000, 4000]});
    assert_eq!(told(&world, "a"), (json!({"linux": linux}), json!("SIGUSR1")));
    world.exit("a", 1);
    world.store_status();
    assert_eq!(told(&world, "a").0, json!({"linux": linux}), "of the one that ended");
    world.settle();
    assert_eq!(told(&world, "a").0, Value::Null, "of the next one nobody knows yet");
}
