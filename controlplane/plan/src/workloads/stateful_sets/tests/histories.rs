//! Random event sequences.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use proptest::prelude::*;
use serde_json::json;

use super::{parallel, planned, set, template};
use crate::objects::Meta as _;
use crate::pod::{Pod, is_ready, phase};
use crate::step::{Plan, Step};
use crate::world::World;

/// An event in the life of a StatefulSet and its pods.
#[derive(Debug, Clone)]
enum Turn {
    Plan,
    Start(usize),
    Fail(usize),
    Gone(usize),
    Delete(usize),
    Scale(u32),
    Image(u32),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => Just(Turn::Plan),
        4 => (0..6_usize).prop_map(Turn::Start),
        1 => (0..6_usize).prop_map(Turn::Fail),
        3 => (0..6_usize).prop_map(Turn::Gone),
        1 => (0..6_usize).prop_map(Turn::Delete),
        1 => (0..6_u32).prop_map(Turn::Scale),
        1 => (1..4_u32).prop_map(Turn::Image),
    ]
}

fn take(world: &mut World, turn: &Turn) {
    let pods = world.names("Pod");
    let pick = |index: &usize| pods.get(*index % pods.len().max(1)).cloned();
    match turn {
        Turn::Plan => {}
        Turn::Start(index) => {
            if let Some(pod) = pick(index) {
                world.phase(&pod, "Running", true);
            }
        }
        Turn::Fail(index) => {
            if let Some(pod) = pick(index) {
                world.phase(&pod, "Failed", false);
            }
        }
        Turn::Gone(index) => {
            if let Some(pod) = pick(index)
                && !world.get("Pod", &pod).unwrap()["metadata"]["deletionTimestamp"].is_null()
            {
                world.remove("Pod", &pod);
            }
        }
        Turn::Delete(index) => {
            if let Some(pod) = pick(index) {
                world.patch(
                    "Pod",
                    &pod,
                    &json!({ "metadata": { "deletionTimestamp": "2026-01-01T01:00:00Z" } }),
                );
            }
        }
        Turn::Scale(replicas) => world.patch("StatefulSet", "web", &json!({ "spec": { "replicas": replicas } })),
        Turn::Image(version) => {
            world.patch(
                "StatefulSet",
                "web",
                &json!({ "spec": { "template": template(*version) } }),
            );
        }
    }
}

/// Ordinals of the pods that a plan creates and deletes.
fn touched(plan: &Plan) -> (Vec<usize>, Vec<usize>) {
    let ordinal = |name: &str| name.rsplit('-').next().unwrap().parse().unwrap();
    let (mut made, mut gone) = (Vec::new(), Vec::new());
    for step in plan.stages.iter().flatten() {
        match step {
            Step::Create { resource, body, .. } if resource.kind == "Pod" => {
                made.push(ordinal(body["metadata"]["name"].as_str().unwrap()));
            }
            Step::Delete { target, .. } if target.resource.kind == "Pod" => gone.push(ordinal(&target.name)),
            Step::Create { .. }
            | Step::Patch { .. }
            | Step::Delete { .. }
            | Step::Look(_)
            | Step::Measure(_)
            | Step::Event(_) => {}
        }
    }
    (made, gone)
}

fn is_well(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_ready(pod) && !pod.metadata.is_deleting()
}

/// Compares a plan with the existing pods.
fn keeps_order(world: &World, plan: &Plan, replicas: usize) {
    let pods: BTreeMap<usize, Pod> = world
        .all::<Pod>("Pod")
        .into_iter()
        .map(|pod| (pod.metadata.name().rsplit('-').next().unwrap().parse().unwrap(), pod))
        .collect();
    let (made, gone) = touched(plan);
    assert!(made.len() + gone.len() <= 1, "one at a time: {plan}");
    for ordinal in made {
        assert!(!pods.contains_key(&ordinal), "an ordinal has one pod: {plan}");
        assert!(
            (0..ordinal).all(|before| pods.get(&before).is_some_and(is_well)),
            "those before it are well: {plan}"
        );
    }
    for ordinal in gone {
        assert!(!pods[&ordinal].metadata.is_deleting(), "a pod is deleted once: {plan}");
        let finished = matches!(phase(&pods[&ordinal]), "Failed" | "Succeeded");
        let above = pods.range(ordinal + 1..).filter(|(_, pod)| !is_well(pod)).count();
        let stay = (0..replicas)
            .filter(|below| *below != ordinal)
            .all(|below| pods.get(&below).is_some_and(is_well));
        assert!(finished || (above == 0 && stay), "nothing else is missing: {plan}");
    }
}

/// Performs plans and pod events until nothing is left to do.
fn settle(world: &mut World) {
    for _ in 0..200 {
        let plan = planned(world, None);
        world.perform(&plan);
        let mut calm = plan.is_empty();
        for pod in world.all::<Pod>("Pod") {
            // Two failed pods beyond the range block each other, as upstream's do, until a user
            // deletes one.
            let stuck = plan.is_empty() && phase(&pod) == "Failed";
            if pod.metadata.is_deleting() || stuck {
                world.remove("Pod", pod.metadata.name());
                calm = false;
            } else if phase(&pod) == "Pending" {
                world.phase(pod.metadata.name(), "Running", true);
                calm = false;
            }
        }
        if calm {
            return;
        }
    }
    panic!("it does not come to rest: {world:?}");
}

proptest! {
    #[test]
    fn whatever_happens_order_is_kept_and_rest_is_found(ordered: bool, turns in proptest::collection::vec(turn(), 0..60)) {
        let mut world = set(&if ordered { json!({}) } else { parallel() });
        for turn in &turns {
            take(&mut world, turn);
            let set = world.all::<StatefulSet>("StatefulSet").swap_remove(0);
            let replicas = usize::try_from(set.spec.unwrap().replicas.unwrap()).unwrap();
            let plan = planned(&world, None);
            if ordered {
                keeps_order(&world, &plan, replicas);
            }
            // A name collision fails here.
            world.perform(&plan);
        }
        settle(&mut world);
        let set = world.all::<StatefulSet>("StatefulSet").swap_remove(0);
        let (spec, status) = (set.spec.unwrap(), set.status.unwrap());
        let wanted = spec.replicas.unwrap();
        prop_assert_eq!(status.replicas, wanted);
        prop_assert_eq!(status.updated_replicas.unwrap_or(0), wanted);
        prop_assert_eq!(status.available_replicas.unwrap_or(0), wanted);
        prop_assert_eq!(&status.current_revision, &status.update_revision);
        prop_assert!(world.names("ControllerRevision").len() <= 3);
    }
}
