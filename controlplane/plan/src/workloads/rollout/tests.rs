use expect_test::{Expect, expect};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Snapshot, plan};
use crate::step::Step;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// `want 10 surge 3 unavailable 2 | v1 10/10 v2 0/0`: the last set has the current template unless
/// that one is missing; sizes are `spec/available`.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
}

fn template(version: usize) -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": format!("nginx:{version}") }] },
    })
}

fn world(replicas: i32, surge: &Value, unavailable: &Value, sizes: &[(i32, i32)], current: bool) -> World {
    let versions = sizes.len() + usize::from(!current);
    let deployment = json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "d", "generation": 1,
            "annotations": { "deployment.kubernetes.io/revision": versions.to_string() },
        },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
            "template": template(versions),
        },
    });
    let sets = sizes.iter().enumerate().map(|(index, (size, available))| {
        let version = index + 1;
        let set = json!({
            "metadata": {
                "name": format!("v{version}"), "namespace": "default", "uid": format!("r{version}"),
                "creationTimestamp": format!("2026-01-01T00:00:{version:02}Z"), "labels": { "app": "web" },
                "annotations": {
                    "deployment.kubernetes.io/revision": version.to_string(),
                    "deployment.kubernetes.io/desired-replicas": replicas.to_string(),
                    "deployment.kubernetes.io/max-replicas": "13",
                },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true }],
            },
            "spec": { "replicas": size, "selector": { "matchLabels": { "app": "web" } }, "template": template(version) },
            "status": { "replicas": size, "readyReplicas": available, "availableReplicas": available },
        });
        serde_json::from_value(set).unwrap()
    });
    World {
        sets: sets.collect(),
        deployment: serde_json::from_value(deployment).unwrap(),
    }
}

impl World {
    fn plan(&self) -> crate::step::Plan {
        let sets: Vec<&ReplicaSet> = self.sets.iter().collect();
        let snapshot = Snapshot {
            deployment: &self.deployment,
            replica_sets: &sets,
            pods: &[],
            failure: None,
        };
        plan(&snapshot, now())
    }

    fn check(&self, expected: &Expect) {
        let plan = self.plan();
        let sizes = plan
            .stages
            .iter()
            .flatten()
            .filter(|step| !step.to_string().contains("/status"));
        let lines: Vec<String> = sizes.map(ToString::to_string).collect();
        expected.assert_eq(&lines.join("\n"));
    }
}

#[test]
fn a_new_template_gets_a_set_within_the_surge() {
    world(10, &json!(3), &json!(2), &[(10, 10)], false).check(&expect!["create ReplicaSet web-6b8787fc57 replicas=3 (ScalingReplicaSet: Scaled up replica set web-6b8787fc57 from 0 to 3)"]);
}

/// Waiting clients take a rollout for complete if no pod is reported as unavailable.
#[test]
fn the_first_status_of_a_rollout_tells_what_is_missing() {
    let plan = world(10, &json!(3), &json!(0), &[(10, 10)], false).plan();
    let told = plan.stages.iter().flatten().find_map(|step| {
        if let Step::Patch { body, .. } = step {
            return body.pointer("/status/unavailableReplicas").cloned();
        }
        None
    });
    assert_eq!(told, Some(json!(3)));
}

#[test]
fn old_pods_give_way_only_as_far_as_availability_allows() {
    world(10, &json!(3), &json!(2), &[(10, 10), (3, 0)], true).check(&expect![
        "patch ReplicaSet v1 replicas=8 (ScalingReplicaSet: Scaled down replica set v1 from 10 to 8)"
    ]);
    world(10, &json!(3), &json!(0), &[(10, 10), (3, 0)], true).check(&expect![""]);
    world(10, &json!(3), &json!(0), &[(10, 10), (3, 2)], true).check(&expect![
        "patch ReplicaSet v1 replicas=8 (ScalingReplicaSet: Scaled down replica set v1 from 10 to 8)"
    ]);
}

#[test]
fn pods_that_are_broken_go_first() {
    world(10, &json!(3), &json!(2), &[(5, 0), (5, 5), (3, 3)], true).check(&expect![
        "patch ReplicaSet v1 replicas=0 (ScalingReplicaSet: Scaled down replica set v1 from 5 to 0)"
    ]);
}

#[test]
fn percentages_round_surge_up_and_unavailable_down() {
    let settings = |replicas, surge: &str, unavailable: &str| {
        let world = world(replicas, &json!(surge), &json!(unavailable), &[], false);
        let settings = super::Settings::of(&world.deployment).unwrap();
        (settings.surge(), settings.unavailable())
    };
    assert_eq!(settings(10, "25%", "25%"), (3, 2));
    assert_eq!(settings(1, "25%", "25%"), (1, 0));
    assert_eq!(settings(3, "0%", "25%"), (0, 1));
    assert_eq!(settings(4, "100%", "100%"), (4, 4));
}

#[test]
fn a_pod_that_is_still_there_counts_against_the_surge() {
    let mut world = world(4, &json!(1), &json!(0), &[(3, 3), (1, 1)], true);
    // Three are desired, but the fourth still exists: five pods are alive.
    world.sets[0].status.as_mut().unwrap().replicas = 4;
    world.check(&expect![""]);
}

/// The conditions of the status that a plan reports: type, reason and message.
fn conditions(plan: &crate::step::Plan) -> Vec<String> {
    let told = plan.stages.iter().flatten().find_map(|step| {
        if let Step::Patch { body, .. } = step {
            return body.pointer("/status/conditions").cloned();
        }
        None
    });
    let told = told.unwrap_or_default();
    let told = told.as_array().into_iter().flatten();
    told.map(|one| format!("{} {} {}", one["type"], one["reason"], one["message"]))
        .collect()
}

#[test]
fn a_refused_set_is_named_in_the_condition() {
    let world = world(1, &json!(1), &json!(0), &[], false);
    let failure = super::Failure {
        deletion: false,
        reason: "Forbidden".to_owned(),
        message: "exceeded quota: q".to_owned(),
    };
    let snapshot = Snapshot {
        deployment: &world.deployment,
        replica_sets: &[],
        pods: &[],
        failure: Some(&failure),
    };
    let plan = plan(&snapshot, now());
    assert_eq!(
        conditions(&plan).last().map(String::as_str),
        Some(
            r#""Progressing" "ReplicaSetCreateError" "Failed to create new replica set \"web-7c7446bf97\": exceeded quota: q""#
        )
    );
}

#[test]
fn a_long_name_is_cut_so_that_the_hash_is_not() {
    let mut world = world(1, &json!(1), &json!(0), &[], false);
    world.deployment.metadata.name = Some("a".repeat(253));
    let plan = world.plan();
    let made = plan.stages.iter().flatten().find_map(|step| {
        if let Step::Create { body, .. } = step {
            return body["metadata"]["name"].as_str();
        }
        None
    });
    assert_eq!(made.map(str::len), Some(253));
}

#[test]
fn annotations_reach_the_set_while_the_rollout_is_paused() {
    let mut world = world(10, &json!(3), &json!(2), &[(10, 10)], true);
    world.deployment.spec.as_mut().unwrap().paused = Some(true);
    let annotations = world.deployment.metadata.annotations.as_mut().unwrap();
    annotations.insert("kubernetes.io/change-cause".to_owned(), "why".to_owned());
    world.check(&expect!["patch ReplicaSet v1"]);
}

proptest! {
    #[test]
    fn no_plan_leaves_the_bounds(
        replicas in 0_i32..20, surge in 0_i32..6, unavailable in 0_i32..6,
        sizes in proptest::collection::vec((0_i32..12, 0_i32..12), 1..4),
    ) {
        prop_assume!(surge + unavailable > 0);
        let sizes: Vec<(i32, i32)> = sizes.into_iter().map(|(size, available)| (size, available.min(size))).collect();
        let world = world(replicas, &json!(surge), &json!(unavailable), &sizes, true);
        let mut after: Vec<i32> = sizes.iter().map(|(size, _)| *size).collect();
        for step in world.plan().stages.into_iter().flatten() {
            if let Step::Patch { target, body, .. } = step
                && let Some(size) = body.pointer("/spec/replicas").and_then(Value::as_i64)
            {
                let index = target.name.trim_start_matches('v').parse::<usize>().unwrap() - 1;
                after[index] = i32::try_from(size).unwrap();
            }
        }
        let before: i32 = sizes.iter().map(|(size, _)| *size).sum();
        let total: i32 = after.iter().sum();
        prop_assert!(total <= before.max(replicas + surge), "{sizes:?} -> {after:?}");
        // In the worst case every deleted pod was an available one, except for those that were
        // unavailable.
        let available: i32 = sizes.iter().map(|(_, available)| *available).sum();
        let left: i32 = sizes.iter().zip(&after).map(|((_, available), size)| (*available).min(*size)).sum();
        let floor = replicas - unavailable.min(replicas);
        prop_assert!(left >= floor.min(available) || sizes.last().unwrap().0 > replicas, "{sizes:?} -> {after:?}");
    }
}
