mod belongings;
mod histories;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::{Backoff, Failure, Snapshot, parent, plan};
use crate::pod::Pod;
use crate::step::Plan;
use crate::world::{World, created, now};

fn template(version: u32) -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": format!("nginx:{version}") }] },
    })
}

/// A set of three replicas whose spec has `more`.
fn set(more: &Value) -> World {
    let mut spec = json!({
        "replicas": 3, "serviceName": "web", "selector": { "matchLabels": { "app": "web" } },
        "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
        "template": template(1),
    });
    api::patch::merge::apply(&mut spec, more).unwrap();
    let mut world = World::default();
    let metadata = json!({ "name": "web", "uid": "s", "generation": 1 });
    world.put(
        "StatefulSet",
        json!({ "metadata": metadata, "spec": spec, "status": { "replicas": 0 } }),
    );
    world
}

/// The same with its revision and pods: `0 ready`, `1 pending`, `2 ready old`, `0 failed deleted`.
fn with_pods(more: &Value, pods: &[&str]) -> World {
    let mut world = set(more);
    world.perform(&Plan {
        stages: vec![planned(&world, None).stages.swap_remove(0)],
        ..Plan::default()
    });
    let newest = world.names("ControllerRevision").swap_remove(0);
    let selector = json!({ "labels": { "app": "web" }, "ownerReferences": owner() });
    let old = json!({
        "metadata": selector, "revision": 0,
        "data": { "spec": { "template": api_template(&template(0)) } },
    });
    if pods.iter().any(|pod| pod.contains("old")) {
        let mut old = old;
        old["metadata"]["name"] = "web-old".into();
        world.put("ControllerRevision", old);
        world.patch(
            "StatefulSet",
            "web",
            &json!({ "status": { "currentRevision": "web-old" } }),
        );
    }
    for text in pods {
        let words: Vec<&str> = text.split(' ').collect();
        let name = format!("web-{}", words[0]);
        let revision = if words.contains(&"old") { "web-old" } else { &newest };
        let labels = json!({
            "app": "web", "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": words[0],
        });
        let deleted = words.contains(&"deleted").then_some("2026-01-01T00:59:00Z");
        let metadata = json!({
            "name": name, "labels": labels, "ownerReferences": owner(), "deletionTimestamp": deleted,
        });
        world.put("Pod", json!({ "metadata": metadata, "spec": { "containers": [] } }));
        let is = |word: &str| words.contains(&word);
        match () {
            () if is("failed") => world.phase(&name, "Failed", false),
            () if is("succeeded") => world.phase(&name, "Succeeded", false),
            () if is("pending") => {}
            () => world.phase(&name, "Running", is("ready")),
        }
    }
    world
}

fn api_template(template: &Value) -> Value {
    let mut template = template.clone();
    template["$patch"] = "replace".into();
    template
}

fn owner() -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s", "controller": true, "blockOwnerDeletion": true }])
}

fn planned(world: &World, failure: Option<&Failure>) -> Plan {
    planned_after(world, &mut Backoff::default(), failure)
}

fn planned_after(world: &World, backoff: &mut Backoff, failure: Option<&Failure>) -> Plan {
    let (sets, pods): (Vec<StatefulSet>, Vec<Pod>) = (world.all("StatefulSet"), world.all("Pod"));
    let revisions: Vec<ControllerRevision> = world.all("ControllerRevision");
    let claims: Vec<PersistentVolumeClaim> = world.all("PersistentVolumeClaim");
    let claims: BTreeMap<String, Arc<PersistentVolumeClaim>> = claims
        .into_iter()
        .map(|claim| (claim.metadata.name.clone().unwrap(), Arc::new(claim)))
        .collect();
    let snapshot = Snapshot {
        set: &sets[0],
        revisions: &revisions.iter().collect::<Vec<_>>(),
        pods: &pods.iter().collect::<Vec<_>>(),
        claims: &|name| claims.get(name).cloned(),
        failure,
    };
    plan(&snapshot, backoff, now())
}

/// The plan without the status, one step per line, without the hash of the newest revision.
fn lines(world: &World) -> String {
    let plan = planned(world, None);
    let steps = plan.stages.iter().flatten().map(ToString::to_string);
    let mut lines: Vec<String> = steps.filter(|line| !line.contains("/status")).collect();
    lines.extend(plan.again.map(|delay| format!("again in {}s", delay.as_secs())));
    lines.join("\n")
}

fn check(more: &Value, pods: &[&str], expected: &Expect) {
    expected.assert_eq(&lines(&with_pods(more, pods)));
}

fn parallel() -> Value {
    json!({ "podManagementPolicy": "Parallel" })
}

#[test]
fn pods_come_in_order_each_when_the_one_before_is_available() {
    let none = json!({});
    check(
        &none,
        &[],
        &expect!["create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful)"],
    );
    check(&none, &["0 pending"], &expect![""]);
    check(&none, &["0 running"], &expect![""]);
    check(
        &none,
        &["0 ready"],
        &expect!["create Pod web-1 (SuccessfulCreate: Create Pod web-1 in StatefulSet web successful)"],
    );
    check(
        &none,
        &["0 ready", "2 ready"],
        &expect!["create Pod web-1 (SuccessfulCreate: Create Pod web-1 in StatefulSet web successful)"],
    );
    check(&none, &["0 ready", "1 ready", "2 ready"], &expect![""]);
    check(
        &none,
        &["1 ready", "2 ready"],
        &expect!["create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful)"],
    );
    check(&none, &["0 ready deleted"], &expect![""]);
    check(
        &none,
        &["0 failed"],
        &expect!["delete Pod web-0 (SuccessfulDelete: Delete Pod web-0 in StatefulSet web successful)"],
    );
    check(
        &none,
        &["0 succeeded"],
        &expect!["delete Pod web-0 (SuccessfulDelete: Delete Pod web-0 in StatefulSet web successful)"],
    );
    check(&none, &["0 failed deleted"], &expect![""]);
    let later = json!({ "minReadySeconds": 900 });
    check(&later, &["0 ready"], &expect!["again in 300s"]);
}

#[test]
fn a_pod_that_fails_again_is_kept_for_a_while() {
    let world = with_pods(&parallel(), &["0 failed", "1 failed", "2 ready"]);
    let mut backoff = Backoff::default();
    let steps = |plan: &Plan| {
        plan.stages
            .iter()
            .flatten()
            .filter(|step| step.to_string().starts_with("delete"))
            .count()
    };
    let first = planned_after(&world, &mut backoff, None);
    assert_eq!((steps(&first), first.again), (2, None), "{first}");
    let second = planned_after(&world, &mut backoff, None);
    assert_eq!(
        (steps(&second), second.again),
        (0, Some(Duration::from_secs(1))),
        "{second}"
    );
}

#[test]
fn ordinals_begin_where_the_spec_says() {
    let from_five = json!({ "ordinals": { "start": 5 }, "replicas": 2 });
    check(
        &from_five,
        &["5 ready"],
        &expect!["create Pod web-6 (SuccessfulCreate: Create Pod web-6 in StatefulSet web successful)"],
    );
    check(
        &from_five,
        &["0 ready", "1 ready", "5 ready", "6 ready"],
        &expect!["delete Pod web-1 (SuccessfulDelete: Delete Pod web-1 in StatefulSet web successful)"],
    );
}

#[test]
fn parallel_pods_wait_for_nobody() {
    check(
        &parallel(),
        &["1 running"],
        &expect![[r"
        create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful)
        create Pod web-2 (SuccessfulCreate: Create Pod web-2 in StatefulSet web successful)"]],
    );
    let one = json!({ "podManagementPolicy": "Parallel", "replicas": 1 });
    check(
        &one,
        &["0 running", "1 ready", "2 pending", "3 ready deleted"],
        &expect![[r"
        delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)
        delete Pod web-1 (SuccessfulDelete: Delete Pod web-1 in StatefulSet web successful)"]],
    );
}

#[test]
fn pods_go_from_the_highest_on_when_all_that_stay_are_available() {
    let one = json!({ "replicas": 1 });
    check(
        &one,
        &["0 ready", "1 ready", "2 ready"],
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
    check(&one, &["0 ready", "1 ready", "2 ready deleted"], &expect![""]);
    check(&one, &["0 running", "1 ready", "2 ready"], &expect![""]);
    check(
        &one,
        &["0 ready", "1 running", "2 ready"],
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
    check(&one, &["0 ready", "1 running", "2 running"], &expect![""]);
    check(
        &one,
        &["0 ready", "1 ready", "2 running"],
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
}

#[test]
fn an_update_goes_down_to_the_partition_one_pod_at_a_time() {
    let none = json!({});
    let all_old = ["0 ready old", "1 ready old", "2 ready old"];
    check(
        &none,
        &all_old,
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
    check(&none, &["0 ready old", "1 ready old", "2 running"], &expect![""]);
    check(
        &none,
        &["0 ready old", "1 ready old", "2 ready"],
        &expect!["delete Pod web-1 (SuccessfulDelete: Delete Pod web-1 in StatefulSet web successful)"],
    );
    let partition = |first: u32| json!({ "updateStrategy": { "rollingUpdate": { "partition": first } } });
    check(&partition(2), &["0 ready old", "1 ready old", "2 ready"], &expect![""]);
    check(&partition(3), &all_old, &expect![""]);
    check(
        &json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } }),
        &all_old,
        &expect![""],
    );
    // With ordered management no pod is deleted while another is unhealthy; with parallel
    // management old pods go first.
    check(&none, &["0 running old", "1 ready old", "2 ready old"], &expect![""]);
    let mut broken = parallel();
    check(
        &broken,
        &["0 running old", "1 ready old", "2 ready old"],
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
    // The gate of `maxUnavailable` is off.
    broken["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = 2.into();
    check(
        &broken,
        &all_old,
        &expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful)"],
    );
}

#[test]
fn a_pod_below_the_partition_is_made_from_the_old_revision() {
    let partition = json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } });
    let image = |pods: &[&str]| {
        let plan = planned(&with_pods(&partition, pods), None);
        let pod = created(&plan, "Pod").swap_remove(0).clone();
        (
            pod["spec"]["containers"][0]["image"].clone(),
            pod["metadata"]["labels"]["controller-revision-hash"].clone(),
        )
    };
    assert_eq!(image(&["0 ready old", "2 ready"]), (json!("nginx:0"), json!("web-old")));
    let (newest, revision) = image(&["0 ready old", "1 ready old"]);
    assert_eq!(newest, "nginx:1");
    assert_ne!(revision, "web-old");
}

#[test]
fn a_refusal_is_tried_once_and_the_status_is_told_whatever_becomes_of_it() {
    let failure = Failure {
        deletion: false,
        reason: "Forbidden".to_owned(),
        message: "exceeded quota".to_owned(),
    };
    let plan = planned(&with_pods(&parallel(), &[]), Some(&failure));
    expect!["create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful) -> patch StatefulSet web/status"].assert_eq(&plan.to_string());
    assert_eq!(plan.tolerant, Some(0));
    // Pods beyond the range go first: they may have the quota.
    let two = json!({ "podManagementPolicy": "Parallel", "replicas": 2 });
    let plan = planned(&with_pods(&two, &["0 ready", "2 ready"]), Some(&failure));
    expect!["delete Pod web-2 (SuccessfulDelete: Delete Pod web-2 in StatefulSet web successful) -> create Pod web-1 (SuccessfulCreate: Create Pod web-1 in StatefulSet web successful) -> patch StatefulSet web/status"].assert_eq(&plan.to_string());
    // The reference names a revision, which must exist.
    let plan = planned(&set(&parallel()), None);
    assert_eq!((plan.stages.len(), plan.tolerant), (3, Some(1)), "{plan}");
}

#[test]
fn the_revisions_agree_when_a_user_has_deleted_all_old_pods() {
    let strategy = json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } });
    let mut world = with_pods(&strategy, &["0 ready", "1 ready", "2 ready old"]);
    let revisions = |world: &World| {
        let status = world.all::<StatefulSet>("StatefulSet").swap_remove(0).status.unwrap();
        (status.current_revision.unwrap(), status.update_revision.unwrap())
    };
    world.perform(&planned(&world, None));
    let (current, update) = revisions(&world);
    assert_eq!(current, "web-old");
    let label = json!({ "metadata": { "labels": { "controller-revision-hash": update } } });
    world.patch("Pod", "web-2", &label);
    world.perform(&planned(&world, None));
    assert_eq!(revisions(&world), (update.clone(), update));
}

#[test]
fn a_pod_gets_its_labels_back() {
    let mut world = with_pods(&json!({ "replicas": 1 }), &["0 ready"]);
    let key = "statefulset.kubernetes.io/pod-name";
    world.patch("Pod", "web-0", &json!({ "metadata": { "labels": { key: null } } }));
    expect!["patch Pod web-0 (SuccessfulUpdate: Update Pod web-0 in StatefulSet web successful)"]
        .assert_eq(&lines(&world));
}

#[test]
fn the_parent_of_a_name_is_what_stands_before_its_ordinal() {
    assert_eq!(parent("web-0"), Some("web"));
    assert_eq!(parent("a-b-12"), Some("a-b"));
    assert_eq!(parent("web-a"), None);
    assert_eq!(parent("web-"), None);
}
