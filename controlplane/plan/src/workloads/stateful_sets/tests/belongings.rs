//! Claims and revisions.

use expect_test::{Expect, expect};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::{lines, owner, planned, set, template, with_pods};
use crate::objects::Meta as _;
use crate::step::{Plan, Step};
use crate::world::{World, created};

#[test]
fn a_pod_has_its_name_its_host_name_and_its_claims() {
    let claims = json!({ "volumeClaimTemplates": [{
        "metadata": { "name": "data", "labels": { "kept": "yes" } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }] });
    let plan = planned(&set(&claims), None);
    let steps: Vec<String> = plan.stages.iter().flatten().map(ToString::to_string).collect();
    expect![[r"
        create ControllerRevision web-75bd49cf7d
        create PersistentVolumeClaim data-web-0 (SuccessfulCreate: Create Claim data-web-0 Pod web-0 in StatefulSet web success)
        create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful)
        patch StatefulSet web/status"]].assert_eq(&steps.join("\n"));
    expect![[r"
        FailedCreate: Create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: {}
        FailedCreate: Create Pod web-0 in StatefulSet web failed error: failed to create PVC data-web-0: {}"]]
    .assert_eq(&refusals(&plan));
    // The missing claim of a pod that exists.
    expect!["FailedCreate: Create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: {}"]
        .assert_eq(&refusals(&planned(&with_pods(&claims, &["0 pending"]), None)));
    let claim = created(&plan, "PersistentVolumeClaim").swap_remove(0).clone();
    assert_eq!(
        claim["metadata"],
        json!({ "name": "data-web-0", "namespace": "default", "labels": { "app": "web", "kept": "yes" } })
    );
    let pod = created(&plan, "Pod").swap_remove(0).clone();
    assert_eq!(
        (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
        (&json!("web-0"), &json!("web"))
    );
    assert_eq!(
        pod["spec"]["volumes"],
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-web-0" } }])
    );
    let labels = &pod["metadata"]["labels"];
    assert_eq!(
        (
            &labels["statefulset.kubernetes.io/pod-name"],
            &labels["apps.kubernetes.io/pod-index"]
        ),
        (&json!("web-0"), &json!("0"))
    );
    assert_eq!(pod["metadata"]["ownerReferences"], owner());
}

/// Events of refused claims.
fn refusals(plan: &Plan) -> String {
    let of_claims = plan.stages.iter().flatten().filter_map(|step| {
        let Step::Create { resource, outcome, .. } = step else {
            return None;
        };
        (resource.kind == "PersistentVolumeClaim").then_some(&outcome.failed)
    });
    let lines = of_claims
        .flatten()
        .map(|note| format!("{}: {}", note.reason, note.message));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_owners_of_a_claim_are_patched_once() {
    let more = json!({
        "podManagementPolicy": "Parallel", "replicas": 1, "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" },
        "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
    });
    for pod in ["0 pending", "0 ready"] {
        let mut world = with_pods(&more, &[pod]);
        world.put("PersistentVolumeClaim", json!({ "metadata": { "name": "data-web-0" } }));
        let plan = planned(&world, None).to_string();
        assert_eq!(
            plan.matches("patch PersistentVolumeClaim data-web-0").count(),
            1,
            "{pod}: {plan}"
        );
    }
}

/// The set's claims after its plans, as `name: owners`.
fn owners(policy: &Value, world: &mut World) -> String {
    let claim = |name: &str, owners: Value| json!({ "metadata": { "name": name, "ownerReferences": owners } });
    for name in ["data-web-0", "data-web-1"] {
        world.put("PersistentVolumeClaim", claim(name, json!([])));
    }
    world.patch(
        "StatefulSet",
        "web",
        &json!({ "spec": {
        "persistentVolumeClaimRetentionPolicy": policy, "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
    } }),
    );
    for pod in ["web-0", "web-1"] {
        let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": format!("data-{pod}") } }]);
        world.patch("Pod", pod, &json!({ "spec": { "volumes": volumes } }));
    }
    let plan = planned(world, None);
    world.perform(&plan);
    let claims: Vec<PersistentVolumeClaim> = world.all("PersistentVolumeClaim");
    let texts = claims.iter().map(|claim| {
        let owners = claim.metadata.owners().iter().map(|owner| owner.name.as_str());
        format!("{}: {}", claim.metadata.name(), owners.collect::<Vec<_>>().join(" "))
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[test]
fn claims_go_with_whom_the_policy_says() {
    let check = |deleted: &str, scaled: &str, expected: Expect| {
        let mut world = with_pods(&json!({ "replicas": 1 }), &["0 ready", "1 ready"]);
        let policy = json!({ "whenDeleted": deleted, "whenScaled": scaled });
        expected.assert_eq(&owners(&policy, &mut world));
    };
    check("Retain", "Retain", expect!["data-web-0: , data-web-1: "]);
    check("Delete", "Retain", expect!["data-web-0: web, data-web-1: web"]);
    check("Retain", "Delete", expect!["data-web-0: , data-web-1: web-1"]);
    check("Delete", "Delete", expect!["data-web-0: web, data-web-1: web-1"]);
}

#[test]
fn a_claim_of_another_controller_is_told_with_the_pod() {
    let more = json!({
        "replicas": 1, "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" },
        "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
    });
    let mut world = with_pods(&more, &[]);
    let other = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "o", "controller": true }]);
    world.put(
        "PersistentVolumeClaim",
        json!({ "metadata": { "name": "data-web-0", "ownerReferences": other } }),
    );
    expect![[r"
        event ConflictingController: PersistentVolumeClaim data-web-0 has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim
        create Pod web-0 (SuccessfulCreate: Create Pod web-0 in StatefulSet web successful)"]]
    .assert_eq(&lines(&world));
    let plan = planned(&world, None);
    world.perform(&plan);
    expect![""].assert_eq(&lines(&world));
}

#[test]
fn a_pod_waits_for_a_claim_that_is_going() {
    let claims = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
    let mut world = with_pods(&claims, &[]);
    let metadata = json!({ "name": "data-web-0", "deletionTimestamp": "2026-01-01T00:59:00Z" });
    world.put("PersistentVolumeClaim", json!({ "metadata": metadata }));
    expect!["event FailedCreate: Create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted"]
        .assert_eq(&lines(&world));
    // A claim that still belongs to the previous pod is deleted with that pod.
    let stale = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "former", "controller": true }]);
    world.patch(
        "PersistentVolumeClaim",
        "data-web-0",
        &json!({ "metadata": { "ownerReferences": stale } }),
    );
    world.patch(
        "StatefulSet",
        "web",
        &json!({ "spec": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Delete" } } }),
    );
    expect![""].assert_eq(&lines(&world));
}

#[test]
fn pods_and_revisions_are_adopted_and_given_up() {
    let mut world = with_pods(&json!({}), &["0 ready"]);
    let newest = world.names("ControllerRevision").swap_remove(0);
    world.patch(
        "ControllerRevision",
        &newest,
        &json!({ "metadata": { "ownerReferences": [] } }),
    );
    world.patch("Pod", "web-0", &json!({ "metadata": { "labels": { "app": "other" } } }));
    let metadata = json!({ "name": "other-0", "labels": { "app": "web" } });
    world.put("Pod", json!({ "metadata": metadata, "spec": { "containers": [] } }));
    let plan = planned(&world, None);
    assert_eq!(
        plan.to_string(),
        format!("patch ControllerRevision {newest}, patch Pod web-0")
    );
}

#[test]
fn a_template_that_comes_back_is_the_newest_revision_again() {
    let mut world = with_pods(&json!({}), &["0 ready", "1 ready", "2 ready"]);
    let plan = planned(&world, None);
    world.perform(&plan);
    world.patch("StatefulSet", "web", &json!({ "spec": { "template": template(2) } }));
    let plan = planned(&world, None);
    world.perform(&plan);
    let numbers = |world: &World| -> Vec<i64> {
        let revisions: Vec<ControllerRevision> = world.all("ControllerRevision");
        let mut numbers: Vec<i64> = revisions.iter().map(|revision| revision.revision).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&world), [1, 2]);
    world.patch("StatefulSet", "web", &json!({ "spec": { "template": template(1) } }));
    let plan = planned(&world, None);
    world.perform(&plan);
    assert_eq!(numbers(&world), [2, 3]);
}

#[test]
fn old_revisions_beyond_the_limit_go_but_for_those_in_use() {
    let mut world = with_pods(
        &json!({ "revisionHistoryLimit": 1 }),
        &["0 ready old", "1 ready", "2 ready"],
    );
    for number in 2..5 {
        let metadata =
            json!({ "name": format!("web-{number}"), "labels": { "app": "web" }, "ownerReferences": owner() });
        let data = json!({ "spec": { "template": template(number) } });
        world.put(
            "ControllerRevision",
            json!({ "metadata": metadata, "revision": -5 + i64::from(number), "data": data }),
        );
    }
    expect![[r"
        delete Pod web-0 (SuccessfulDelete: Delete Pod web-0 in StatefulSet web successful)
        delete ControllerRevision web-2
        delete ControllerRevision web-3"]]
    .assert_eq(&lines(&world));
}
