//! Revisions over time, and random event sequences.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use serde_json::json;

use super::{planned, set, surge, template, unavailable, with_pods};
use crate::objects::Meta as _;
use crate::pod::Pod;
use crate::pod::{is_ready, phase};
use crate::workloads::daemon_sets::Backoff;
use crate::workloads::daemon_sets::placing::target_node;
use crate::world::World;

#[test]
fn revisions_are_found_renumbered_and_forgotten() {
    let mut world = with_pods(&unavailable(1), &["a"], &["a1 ready"]);
    let revisions = |world: &World| -> Vec<i64> {
        let mut numbers: Vec<i64> = world
            .all::<ControllerRevision>("ControllerRevision")
            .iter()
            .map(|revision| revision.revision)
            .collect();
        numbers.sort_unstable();
        numbers
    };
    let turn = |world: &mut World, version: u32| {
        world.patch(
            "DaemonSet",
            "log",
            &json!({ "spec": { "template": template(version) } }),
        );
        let plan = planned(world, &mut Backoff::default(), None);
        world.perform(&plan);
    };
    turn(&mut world, 2);
    assert_eq!(revisions(&world), [1, 2]);
    turn(&mut world, 1);
    assert_eq!(revisions(&world), [2, 3]);
    world.patch("DaemonSet", "log", &json!({ "spec": { "revisionHistoryLimit": 0 } }));
    turn(&mut world, 3);
    // The pod is still of the first template.
    assert_eq!(revisions(&world), [3, 4]);
}

#[derive(Debug, Clone)]
enum Turn {
    Plan,
    Start(usize),
    Gone(usize),
    Break(usize),
    Image(u32),
    Taint(usize),
    Free(usize),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => Just(Turn::Plan),
        4 => (0..8_usize).prop_map(Turn::Start),
        3 => (0..8_usize).prop_map(Turn::Gone),
        1 => (0..8_usize).prop_map(Turn::Break),
        1 => (1..4_u32).prop_map(Turn::Image),
        1 => (0..4_usize).prop_map(Turn::Taint),
        1 => (0..4_usize).prop_map(Turn::Free),
    ]
}

const NODES: [&str; 4] = ["a", "b", "c", "d"];

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
        Turn::Gone(index) => {
            if let Some(pod) = pick(index)
                && !world.get("Pod", &pod).unwrap()["metadata"]["deletionTimestamp"].is_null()
            {
                world.remove("Pod", &pod);
            }
        }
        Turn::Break(index) => {
            if let Some(pod) = pick(index) {
                world.phase(&pod, "Running", false);
            }
        }
        Turn::Image(version) => {
            world.patch(
                "DaemonSet",
                "log",
                &json!({ "spec": { "template": template(*version) } }),
            );
        }
        Turn::Taint(node) => {
            let taints = json!([{ "key": "k", "effect": "NoExecute" }]);
            world.patch("Node", NODES[*node], &json!({ "spec": { "taints": taints } }));
        }
        Turn::Free(node) => world.patch("Node", NODES[*node], &json!({ "spec": { "taints": null } })),
    }
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| !taints.is_empty())
}

fn is_well(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_ready(pod) && !pod.metadata.is_deleting()
}

fn on<'a>(pods: &'a [Pod], node: &str) -> Vec<&'a Pod> {
    pods.iter().filter(|pod| target_node(pod) == Some(node)).collect()
}

/// Compares the pods after a plan with those before it.
fn keeps_bounds(before: &World, after: &World, surging: bool) {
    let (old, new): (Vec<Pod>, Vec<Pod>) = (before.all("Pod"), after.all("Pod"));
    let nodes: Vec<Node> = before.all("Node");
    let mut lost = 0;
    for node in &nodes {
        let node_name = node.metadata.name();
        let there = on(&new, node_name)
            .into_iter()
            .filter(|pod| !pod.metadata.is_deleting())
            .count();
        assert!(there <= if surging { 2 } else { 1 }, "{node_name} has {there} pods");
        let tainted = is_tainted(node);
        let well = |pods: &[Pod]| on(pods, node_name).into_iter().any(is_well);
        let was = on(&old, node_name);
        // Duplicates do not count.
        if !tainted && was.len() == 1 && well(&old) && !well(&new) {
            lost += 1;
        }
    }
    assert!(lost <= usize::from(!surging), "{lost} available pods went at once");
}

proptest! {
    #[test]
    fn whatever_happens_nodes_have_their_pods_within_the_bounds(
        surging: bool, turns in proptest::collection::vec(turn(), 0..60),
    ) {
        let mut world = set(&if surging { surge(1) } else { unavailable(1) }, &NODES);
        for turn in &turns {
            take(&mut world, turn);
            let before = world.clone();
            let plan = planned(&world, &mut Backoff::default(), None);
            world.perform(&plan);
            keeps_bounds(&before, &world, surging);
        }
        for _ in 0..100 {
            let plan = planned(&world, &mut Backoff::default(), None);
            world.perform(&plan);
            for pod in world.all::<Pod>("Pod") {
                if pod.metadata.is_deleting() {
                    world.remove("Pod", pod.metadata.name());
                } else {
                    world.phase(pod.metadata.name(), "Running", true);
                }
            }
        }
        let status = world.all::<DaemonSet>("DaemonSet").swap_remove(0).status.unwrap();
        let tainted = world.all::<Node>("Node").iter().filter(|node| is_tainted(node)).count();
        let wanted = i32::try_from(NODES.len() - tainted).unwrap();
        prop_assert_eq!(status.desired_number_scheduled, wanted);
        prop_assert_eq!(status.updated_number_scheduled.unwrap_or(0), wanted);
        prop_assert_eq!(status.number_available.unwrap_or(0), wanted);
        prop_assert_eq!(world.names("Pod").len(), NODES.len() - tainted);
    }
}
