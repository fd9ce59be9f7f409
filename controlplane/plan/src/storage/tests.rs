use std::sync::Arc;

use expect_test::{Expect, expect};
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    jiff::Timestamp,
};
use serde_json::{Value, json};

use super::{
    Wanted, best,
    claims::{self, Scene},
    ephemeral,
    provision::{self, End, Request},
    volumes::{self, Claim},
};
use crate::{
    objects::name,
    placement::{Claims, SchedulerCache},
    pod::Pod,
    step::{Plan, Step},
};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn merge(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more.clone(),
    }
}

fn claim(name: &str, more: &Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "7" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "5Gi" } },
            "storageClassName": "slow", "volumeMode": "Filesystem",
        },
        "status": { "phase": "Pending" },
    });
    merge(&mut claim, more);
    serde_json::from_value(claim).unwrap()
}

fn volume(name: &str, size: &str, more: &Value) -> Arc<PersistentVolume> {
    let mut volume = json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": "3" },
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": { "storage": size },
            "storageClassName": "slow", "volumeMode": "Filesystem", "hostPath": { "path": "/data" },
        },
        "status": { "phase": "Available" },
    });
    merge(&mut volume, more);
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn class(provisioner: &str, mode: &str) -> StorageClass {
    let class = json!({ "metadata": { "name": "slow" }, "provisioner": provisioner, "volumeBindingMode": mode });
    serde_json::from_value(class).unwrap()
}

/// The steps in short form, with their bodies.
fn shown(plan: &Plan) -> String {
    let mut lines = Vec::new();
    for step in plan.stages.iter().flatten() {
        let mut line = step.to_string();
        if let Step::Patch { body, .. } = step {
            let mut body = (**body).clone();
            let metadata = body.get_mut("metadata").and_then(Value::as_object_mut);
            metadata.unwrap().retain(|key, _| key == "annotations");
            line = format!("{line}: {body}");
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn check(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    class: Option<&StorageClass>,
    expected: &Expect,
) {
    let scene = Scene {
        claim,
        volumes,
        class,
        default_class: None,
        waiting: &[],
    };
    let decision = claims::plan(&scene, now());
    let news = decision
        .news
        .map(|note| format!("{} {}: {}", note.severity.text(), note.reason, note.message));
    let mut all = shown(&decision.plan);
    all.extend(news);
    expected.assert_eq(&all);
}

#[test]
fn the_smallest_volume_that_will_do_is_taken_its_side_first() {
    let volumes = [
        volume("large", "50Gi", &json!({})),
        volume("right", "10Gi", &json!({})),
        volume("small", "1Gi", &json!({})),
        volume(
            "taken",
            "6Gi",
            &json!({ "spec": { "claimRef": { "namespace": "default", "name": "x", "uid": "u" } } }),
        ),
        volume("other", "6Gi", &json!({ "spec": { "storageClassName": "fast" } })),
        volume("block", "6Gi", &json!({ "spec": { "volumeMode": "Block" } })),
        volume(
            "going",
            "6Gi",
            &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        ),
        volume("new", "6Gi", &json!({ "status": { "phase": "Pending" } })),
    ];
    check(
        &claim("data", &json!({})),
        &volumes,
        None,
        &expect![[r#"
            patch PersistentVolume right: {"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"default","resourceVersion":"7","uid":"uid-data"}}}
            patch PersistentVolume right/status: {"metadata":{},"status":{"lastPhaseTransitionTime":"2026-01-01T00:00:00Z","message":null,"phase":"Bound","reason":null}}
            patch PersistentVolumeClaim data: {"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{"volumeName":"right"}}
            patch PersistentVolumeClaim data/status: {"metadata":{},"status":{"accessModes":["ReadWriteOnce","ReadOnlyMany"],"capacity":{"storage":"10Gi"},"phase":"Bound"}}"#]],
    );
    let selective = json!({ "spec": { "selector": { "matchLabels": { "disk": "ssd" } } } });
    check(
        &claim("data", &selective),
        &volumes,
        Some(&class("kubernetes.io/no-provisioner", "Immediate")),
        &expect!["Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"],
    );
}

#[test]
fn the_controller_takes_the_fewest_access_modes_and_a_reserved_volume_only_with_the_claims() {
    let narrow = json!({ "spec": { "accessModes": ["ReadWriteOnce"] } });
    let reserved = json!({ "spec": {
        "accessModes": ["ReadOnlyMany"], "claimRef": { "namespace": "default", "name": "data" },
    }});
    let volumes = [
        volume("wide", "6Gi", &json!({})),
        volume("narrow", "10Gi", &narrow),
        volume("reserved", "6Gi", &reserved),
    ];
    let (claim, node) = (claim("data", &json!({})), Node::default());
    let chosen = |node, volumes: &[Arc<PersistentVolume>]| {
        let wanted = Wanted {
            claim: &claim,
            node,
            named_only: false,
            taken: &[],
        };
        best(&wanted, volumes.iter().map(Arc::as_ref)).map(|volume| name(volume).to_owned())
    };
    assert_eq!(chosen(None, &volumes).as_deref(), Some("narrow"));
    assert_eq!(chosen(Some(&node), &volumes).as_deref(), Some("reserved"));
    assert_eq!(chosen(Some(&node), &volumes[..2]).as_deref(), Some("wide"));
}

#[test]
fn a_bond_that_was_begun_is_completed_and_one_that_is_whole_left_alone() {
    let begun = volume(
        "right",
        "10Gi",
        &json!({
            "spec": {
                "claimRef": { "namespace": "default", "name": "data", "uid": "uid-data" }, "volumeAttributesClassName": "gold",
            },
            "status": { "phase": "Bound" },
        }),
    );
    check(
        &claim("data", &json!({ "spec": { "volumeAttributesClassName": "gold" } })),
        std::slice::from_ref(&begun),
        Some(&class("x", "WaitForFirstConsumer")),
        &expect![[r#"
            patch PersistentVolumeClaim data: {"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{"volumeName":"right"}}
            patch PersistentVolumeClaim data/status: {"metadata":{},"status":{"accessModes":["ReadWriteOnce","ReadOnlyMany"],"capacity":{"storage":"10Gi"},"currentVolumeAttributesClassName":"gold","phase":"Bound"}}"#]],
    );
    let bound = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } }, "spec": { "volumeName": "right" },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": { "storage": "10Gi" } },
    });
    check(&claim("data", &bound), &[begun], None, &expect![""]);
    check(
        &claim("data", &bound),
        &[],
        None,
        &expect![[
            r#"patch PersistentVolumeClaim data/status (ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!): {"metadata":{},"status":{"accessModes":null,"capacity":null,"currentVolumeAttributesClassName":null,"phase":"Lost"}}"#
        ]],
    );
}

#[test]
fn a_claim_that_gets_nothing_is_told_why_in_upstreams_words() {
    let none = json!({ "spec": { "storageClassName": "" } });
    check(
        &claim("data", &none),
        &[],
        None,
        &expect!["Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"],
    );
    check(
        &claim("data", &json!({})),
        &[],
        None,
        &expect![[r#"Warning ProvisioningFailed: storageclass.storage.k8s.io "slow" not found"#]],
    );
    let waiting = class("skiff.dev/local-path", "WaitForFirstConsumer");
    check(
        &claim("data", &json!({})),
        &[volume("right", "10Gi", &json!({}))],
        Some(&waiting),
        &expect!["Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"],
    );
    let selected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n1" } } });
    check(
        &claim("data", &selected),
        &[volume("elsewhere", "10Gi", &json!({}))],
        Some(&waiting),
        &expect![[
            r#"patch PersistentVolumeClaim data (ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'skiff.dev/local-path' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.): {"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-provisioner":"skiff.dev/local-path","volume.kubernetes.io/storage-provisioner":"skiff.dev/local-path"}}}"#
        ]],
    );
    let named = json!({ "spec": { "volumeName": "small" } });
    check(
        &claim("data", &named),
        &[volume("small", "1Gi", &json!({}))],
        None,
        &expect![[r#"Warning VolumeMismatch: Cannot bind to requested volume "small": requested PV is too small"#]],
    );
    let golden = json!({ "spec": { "volumeAttributesClassName": "gold" } });
    check(
        &claim("data", &named),
        &[volume("small", "9Gi", &golden)],
        None,
        &expect![[
            r#"Warning VolumeMismatch: Cannot bind to requested volume "small": volumeAttributesClassName does not match"#
        ]],
    );
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    check(
        &claim("data", &named),
        &[volume("small", "9Gi", &going)],
        None,
        &expect![[
            r#"Warning VolumeMismatch: Cannot bind to requested volume "small": the volume is marked for deletion "small""#
        ]],
    );
    let taken = json!({ "spec": { "claimRef": { "namespace": "default", "name": "x", "uid": "u" } } });
    check(
        &claim("data", &named),
        &[volume("small", "9Gi", &taken)],
        None,
        &expect![[r#"Warning FailedBinding: volume "small" already bound to a different claim."#]],
    );
}

#[test]
fn a_claim_that_names_no_class_gets_a_later_default() {
    let made = |name: &str, at: &str, default: &str| -> Arc<StorageClass> {
        let annotations = json!({ "storageclass.kubernetes.io/is-default-class": default });
        let metadata = json!({ "name": name, "creationTimestamp": at, "annotations": annotations });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "provisioner": "x" })).unwrap())
    };
    let classes = [
        made("a", "2026-01-01T00:00:00Z", "true"),
        made("b", "2026-01-02T00:00:00Z", "true"),
        made("c", "2026-01-03T00:00:00Z", "false"),
    ];
    let decided = |class: &Value| {
        let claim = claim("data", &json!({ "spec": { "storageClassName": class } }));
        let scene = Scene {
            claim: &claim,
            volumes: &[],
            class: None,
            default_class: super::default_class(&classes),
            waiting: &[],
        };
        shown(&claims::plan(&scene, now()).plan)
    };
    expect![[r#"patch PersistentVolumeClaim data: {"metadata":{},"spec":{"storageClassName":"b"}}"#]]
        .assert_eq(&decided(&Value::Null));
    assert_eq!(decided(&json!("")), "");
}

#[test]
fn a_volume_outlives_its_claim_as_its_policy_says() {
    let with = |policy: &str, phase: &str, made: &str| {
        let annotations = if made.is_empty() {
            json!({})
        } else {
            json!({ "pv.kubernetes.io/provisioned-by": made })
        };
        let more = json!({
            "metadata": { "annotations": annotations },
            "spec": {
                "persistentVolumeReclaimPolicy": policy,
                "claimRef": { "namespace": "default", "name": "data", "uid": "uid-data" },
            },
            "status": { "phase": phase },
        });
        volume("v", "1Gi", &more)
    };
    let plan = |volume: &PersistentVolume, claim: Claim<'_>| {
        let text = shown(&volumes::plan(volume, claim, now()));
        text.replace("\"lastPhaseTransitionTime\":\"2026-01-01T00:00:00Z\",", "")
    };
    expect!["look for PersistentVolumeClaim data"].assert_eq(&plan(&with("Delete", "Bound", ""), Claim::Unseen));
    expect![[
        r#"patch PersistentVolume v/status: {"metadata":{},"status":{"message":null,"phase":"Released","reason":null}}"#
    ]]
    .assert_eq(&plan(&with("Delete", "Bound", ""), Claim::Gone));
    expect![""].assert_eq(&plan(&with("Retain", "Released", ""), Claim::Gone));
    expect![""].assert_eq(&plan(&with("Delete", "Released", "skiff.dev/local-path"), Claim::Gone));
    let mut written = (*with("Delete", "Released", "")).clone();
    let source = json!({ "driver": "disk.example.com", "volumeHandle": "d-1" });
    written.spec.as_mut().unwrap().csi = serde_json::from_value(source).unwrap();
    expect![""].assert_eq(&plan(&written, Claim::Gone));
    expect![[r#"patch PersistentVolume v/status (VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /data): {"metadata":{},"status":{"message":"host_path deleter only supports /tmp/.+ but received provided /data","phase":"Failed","reason":null}}"#]]
        .assert_eq(&plan(&with("Delete", "Released", ""), Claim::Gone));
    let elsewhere = claim("data", &json!({ "spec": { "volumeName": "w" } }));
    expect![[r#"patch PersistentVolume v: {"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":null}},"spec":{"claimRef":{"resourceVersion":null,"uid":null}}}"#]]
        .assert_eq(&plan(&with("Retain", "Bound", ""), Claim::There(&elsewhere)));
    let fresh = volume("v", "1Gi", &json!({ "status": { "phase": "Pending" } }));
    expect![[r#"patch PersistentVolume v/status: {"metadata":{},"status":{"message":null,"phase":"Available","reason":null}}"#]]
        .assert_eq(&plan(&fresh, Claim::Unseen));

    let ends = |phase: &str, policy: &str, deleted: bool| {
        let mut volume = (*with(policy, phase, provision::NAME)).clone();
        volume.metadata.finalizers = Some(vec![provision::FINALIZER.to_owned()]);
        if deleted {
            volume.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
        }
        provision::end(&volume)
    };
    assert_eq!(ends("Released", "Delete", false), End::Remove);
    assert_eq!(ends("Released", "Retain", false), End::None);
    assert_eq!(ends("Released", "Retain", true), End::Release, "the data stay");
    assert_eq!(ends("Bound", "Delete", true), End::None, "a claim has it");
    assert_eq!(provision::end(&with("Delete", "Released", "another")), End::None);
}

#[test]
fn a_volume_of_another_mode_than_its_claim_tells_both() {
    let reference = json!({ "namespace": "default", "name": "data", "uid": "uid-data" });
    let block = json!({ "spec": { "volumeMode": "Block", "claimRef": reference } });
    let unbound = claim("data", &json!({}));
    let plan = volumes::plan(&volume("v", "9Gi", &block), Claim::There(&unbound), now());
    expect![[r#"
        event VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim "data" due to incompatible volumeMode.
        event VolumeMismatch: Cannot bind PersistentVolume "v" to requested PersistentVolumeClaim due to incompatible volumeMode."#]]
    .assert_eq(&shown(&plan));
}

#[test]
fn a_directory_is_made_on_the_selected_node_for_what_it_can_do() {
    let class = class(provision::NAME, "WaitForFirstConsumer");
    let with = |node: &str, spec: Value| {
        let annotations = json!({
            "volume.kubernetes.io/storage-provisioner": provision::NAME, "volume.kubernetes.io/selected-node": node,
        });
        claim(
            "data",
            &json!({ "metadata": { "annotations": annotations }, "spec": spec }),
        )
    };
    let claim = with("n1", json!({}));
    assert_eq!(provision::request(&claim, Some(&class)), Request::Directory("n1"));
    assert_eq!(provision::request(&with("", json!({})), Some(&class)), Request::Nothing);
    assert_eq!(provision::request(&claim, None), Request::Nothing);
    for more in [
        json!({ "accessModes": ["ReadWriteMany"] }),
        json!({ "volumeAttributesClassName": "gold" }),
    ] {
        let other = with("n1", more);
        let request = provision::request(&other, Some(&class));
        assert!(matches!(request, Request::Unsupported(_)));
    }
    let node: Node =
        serde_json::from_value(json!({ "metadata": { "name": "n1", "labels": { "kubernetes.io/hostname": "h1" } } }))
            .unwrap();
    let made: PersistentVolume = serde_json::from_value(provision::volume(
        &claim,
        &class,
        &node,
        "/state/local-path/pvc-uid-data",
    ))
    .unwrap();
    assert_eq!(made.metadata.name.as_deref(), Some("pvc-uid-data"));
    assert_eq!(provision::node_of(&made), Some("n1"));
    let affinity = json!(super::affinity(&made));
    assert_eq!(
        affinity.pointer("/nodeSelectorTerms/0/matchExpressions/0/values"),
        Some(&json!(["h1"]))
    );
}

#[test]
fn a_pod_goes_where_its_volumes_can_be_reached() {
    let node = |name: &str| -> Arc<Node> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
                "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" } },
            }))
            .unwrap(),
        )
    };
    let mut cache = SchedulerCache::default();
    cache.set_node(&node("n1"));
    cache.set_node(&node("n2"));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "p" },
        "spec": {
            "containers": [{ "name": "main" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
        },
    }))
    .unwrap();
    let on = |node: &str| {
        json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
        ]}]}}}})
    };
    let choose =
        |found: Option<PersistentVolumeClaim>, volumes: Vec<Arc<PersistentVolume>>, class: Option<StorageClass>| {
            let claims = Claims {
                claims: vec![crate::placement::Claim {
                    name: "data".to_owned(),
                    own: false,
                    found: found.map(Arc::new),
                }],
                volumes,
                classes: class
                    .into_iter()
                    .map(|class| ("slow".to_owned(), Arc::new(class)))
                    .collect(),
                ..Claims::default()
            };
            let chosen = cache.choose(&pod, &claims);
            chosen.map_or_else(|why| why.to_string(), |node| name(&*node).to_owned())
        };
    let bound = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } }, "spec": { "volumeName": "v" },
        "status": { "phase": "Bound" },
    });
    let waiting = || Some(class("x", "WaitForFirstConsumer"));
    expect!["n2"].assert_eq(&choose(
        Some(claim("data", &bound)),
        vec![volume("v", "9Gi", &on("n2"))],
        None,
    ));
    expect!["0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."]
        .assert_eq(&choose(Some(claim("data", &bound)), vec![volume("v", "9Gi", &on("n3"))], None));
    expect![[r#"0/2 nodes are available: persistentvolumeclaim "data" not found. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."#]]
        .assert_eq(&choose(None, Vec::new(), None));
    expect!["0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."]
        .assert_eq(&choose(Some(claim("data", &json!({}))), Vec::new(), None));
    expect!["n2"].assert_eq(&choose(
        Some(claim("data", &json!({}))),
        vec![volume("v", "9Gi", &on("n2"))],
        Some(class("kubernetes.io/no-provisioner", "WaitForFirstConsumer")),
    ));
    expect!["n1"].assert_eq(&choose(Some(claim("data", &json!({}))), Vec::new(), waiting()));
    expect!["0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."]
        .assert_eq(&choose(Some(claim("data", &json!({}))), Vec::new(), Some(class("kubernetes.io/no-provisioner", "WaitForFirstConsumer"))));
}

#[test]
fn a_pod_brings_its_claims_along() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "p" },
        "spec": { "containers": [], "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": {
            "metadata": { "labels": { "a": "b" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        }}}]},
    }))
    .unwrap();
    expect!["create PersistentVolumeClaim p-scratch"].assert_eq(&ephemeral::plan(&pod, |_| None).to_string());
    let there = Arc::new(claim("p-scratch", &json!({})));
    assert!(ephemeral::plan(&pod, |_| Some(there.clone())).is_empty());
}
