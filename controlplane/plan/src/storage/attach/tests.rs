use expect_test::{Expect, expect};
use serde_json::from_value;

use super::*;

const NAME: &str = "csi.example.com^vol-1";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// A volume that one node may have at a time, bound to `default/data`; nothing uses it.
fn scene() -> Scene {
    let volume = json!({
        "metadata": { "name": "pv-1", "uid": "uid-pv" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "csi": { "driver": "csi.example.com", "volumeHandle": "vol-1" },
            "claimRef": { "namespace": "default", "name": "data", "uid": "uid-data" },
        },
    });
    let claim = json!({
        "metadata": { "namespace": "default", "name": "data", "uid": "uid-data" },
        "spec": { "volumeName": "pv-1" }, "status": { "phase": "Bound" },
    });
    Scene {
        name: NAME.to_owned(),
        volumes: vec![Arc::new(from_value(volume).unwrap())],
        claims: vec![Arc::new(from_value(claim).unwrap())],
        nodes: vec![node("n1", &json!({})), node("n2", &json!({}))],
        ..Scene::default()
    }
}

fn shares(scene: &mut Scene) {
    let volume = Arc::make_mut(&mut scene.volumes[0]);
    volume.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".to_owned()]);
}

fn node(name: &str, status: &Value) -> Arc<Node> {
    let node = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": "5", "annotations": { MANAGED: "true" } },
        "status": status,
    });
    Arc::new(from_value(node).unwrap())
}

/// The status of a node in which the volume is attached, and perhaps in use.
fn status(ready: &str, used: bool) -> Value {
    let own = format!("{PREFIX}{NAME}");
    json!({
        "conditions": [{ "type": "Ready", "status": ready }],
        "volumesAttached": [{ "name": own, "devicePath": "" }],
        "volumesInUse": if used { vec![own.as_str()] } else { Vec::new() },
    })
}

fn pod(name: &str, node: &str, status: &Value) -> Arc<Pod> {
    let pod = json!({
        "metadata": { "namespace": "default", "name": name, "uid": name },
        "spec": { "nodeName": node, "containers": [], "volumes": [
            { "name": "v", "persistentVolumeClaim": { "claimName": "data" } },
        ] },
        "status": status,
    });
    Arc::new(from_value(pod).unwrap())
}

fn attachment(node: &str, status: &Value) -> Arc<VolumeAttachment> {
    let attachment = json!({
        "metadata": {
            "name": attachment_name(NAME, node), "uid": format!("va-{node}"),
            "creationTimestamp": "2026-01-01T00:09:30Z",
        },
        "spec": { "attacher": "csi.example.com", "nodeName": node, "source": { "persistentVolumeName": "pv-1" } },
        "status": status,
    });
    Arc::new(from_value(attachment).unwrap())
}

fn attached_to(node: &str) -> Arc<VolumeAttachment> {
    attachment(node, &json!({ "attached": true }))
}

/// Steps, what is patched, and events; `waited` is how many seconds the node `n1` did not need the
/// volume.
fn check(scene: &Scene, waited: u64, expected: &Expect) {
    let waited = BTreeMap::from([("n1".to_owned(), Duration::from_secs(waited))]);
    let decision = plan(scene, &waited, now());
    let mut lines: Vec<String> = Vec::new();
    for step in decision.plan.stages.iter().flatten() {
        lines.push(if let Step::Patch { body, .. } = step {
            format!("{step}: {}", body["status"]["volumesAttached"])
        } else {
            step.to_string()
        });
    }
    lines.extend(
        decision
            .plan
            .again
            .map(|delay| format!("again in {}s", delay.as_secs())),
    );
    let told = decision.news.iter().map(|(note, _)| {
        let about = note.about.name.as_deref().unwrap_or_default();
        format!("{about}: {} {}", note.reason, note.message)
    });
    lines.extend(told);
    let mut all = lines.join("\n");
    for node in ["n1", "n2"] {
        all = all.replace(&attachment_name(NAME, node), &format!("for {node}"));
    }
    expected.assert_eq(&all);
}

#[test]
fn a_volume_is_attached_to_the_node_of_its_pod_and_then_told_to_it() {
    let mut scene = scene();
    check(&scene, 0, &expect![""]);
    scene.pods = vec![pod("web", "n1", &json!({ "phase": "Pending" }))];
    check(&scene, 0, &expect!["create VolumeAttachment for n1"]);
    let plan = plan(&scene, &BTreeMap::new(), now());
    let Step::Create { body, .. } = &plan.plan.stages[0][0] else {
        panic!("{plan:?}");
    };
    let wanted = json!({
        "metadata": { "name": "csi-7f0cbc9a847afb6d66cd7c8a07cd6430de4c5dec35de8924cff09a5c92d56128" },
        "spec": { "attacher": "csi.example.com", "nodeName": "n1", "source": { "persistentVolumeName": "pv-1" } },
    });
    assert_eq!(**body, wanted);
    scene.attachments = vec![attachment("n1", &json!({ "attached": false }))];
    check(&scene, 0, &expect!["again in 90s"]);
    scene.attachments = vec![attached_to("n1")];
    check(
        &scene,
        0,
        &expect![[r#"
            patch Node n1/status: [{"devicePath":"","name":"kubernetes.io/csi/csi.example.com^vol-1"}]
            event SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "pv-1" "#]],
    );
    scene.nodes = vec![node("n1", &status("True", false))];
    check(&scene, 0, &expect![""]);
    // The driver lost it.
    scene.attachments.clear();
    check(
        &scene,
        0,
        &expect![[r"
            patch Node n1/status: null
            create VolumeAttachment for n1"]],
    );
}

#[test]
fn what_is_not_for_the_controller_is_not_attached() {
    let with = |change: &dyn Fn(&mut Scene)| {
        let mut scene = scene();
        scene.pods = vec![pod("web", "n1", &json!({ "phase": "Pending" }))];
        change(&mut scene);
        plan(&scene, &BTreeMap::new(), now()) == Decision::default()
    };
    let driver = |required: bool| -> Option<Arc<CSIDriver>> {
        let driver = json!({ "metadata": { "name": "csi.example.com" }, "spec": { "attachRequired": required } });
        Some(Arc::new(from_value(driver).unwrap()))
    };
    assert!(!with(&|_| {}));
    assert!(!with(&|scene| scene.driver = driver(true)));
    assert!(with(&|scene| scene.driver = driver(false)));
    assert!(with(&|scene| scene.nodes.clear()), "no node");
    assert!(
        with(&|scene| Arc::make_mut(&mut scene.nodes[0]).metadata.annotations = None),
        "the node attaches them itself"
    );
    assert!(
        with(&|scene| scene.pods = vec![pod("web", "", &json!({}))]),
        "not bound"
    );
    assert!(
        with(&|scene| scene.pods = vec![pod("web", "n1", &json!({ "phase": "Succeeded" }))]),
        "finished"
    );
    assert!(
        with(&|scene| Arc::make_mut(&mut scene.claims[0]).status = None),
        "the claim is not bound"
    );
    let own = json!({
        "metadata": { "namespace": "default", "name": "web", "uid": "web" },
        "spec": { "nodeName": "n1", "containers": [], "volumes": [{ "name": "v", "ephemeral": {} }] },
    });
    let own: Arc<Pod> = Arc::new(from_value(own).unwrap());
    let claimed = |owner: &str| {
        with(&|scene| {
            scene.pods = vec![own.clone()];
            let claim = Arc::make_mut(&mut scene.claims[0]);
            claim.metadata.name = Some("web-v".to_owned());
            let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": owner, "controller": true }]);
            claim.metadata.owner_references = Some(from_value(owner).unwrap());
            let volume = Arc::make_mut(&mut scene.volumes[0]).spec.as_mut().unwrap();
            volume.claim_ref.as_mut().unwrap().name = Some("web-v".to_owned());
        })
    };
    assert!(!claimed("web"));
    assert!(claimed("another"));
}

#[test]
fn a_deleted_pod_needs_its_volumes_while_a_container_may_run() {
    for (states, expected) in [
        (json!([]), false),
        (json!([{ "terminated": { "exitCode": 0 } }]), false),
        (json!([{ "waiting": {} }]), false),
        (json!([{ "running": {} }, { "waiting": {} }]), true),
    ] {
        let statuses = states.as_array().unwrap().iter().map(|state| {
            json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state })
        });
        let statuses: Vec<Value> = statuses.collect();
        let pod = json!({
            "metadata": {
                "namespace": "default", "name": "web", "uid": "web", "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "nodeName": "n1", "containers": [], "volumes": [
                { "name": "v", "persistentVolumeClaim": { "claimName": "data" } },
            ] },
            "status": { "phase": "Running", "containerStatuses": statuses },
        });
        let mut scene = scene();
        scene.pods = vec![Arc::new(from_value(pod).unwrap())];
        assert_eq!(scene.users().contains_key("n1"), expected, "{states}");
    }
}

#[test]
fn pods_are_told_why_their_volume_is_not_attached() {
    let mut scene = scene();
    scene.pods = vec![pod("web", "n1", &json!({ "phase": "Pending" }))];
    let error = json!({ "message": "no such disk", "time": "2026-01-01T00:09:40Z" });
    scene.attachments = vec![attachment("n1", &json!({ "attached": false, "attachError": error }))];
    check(
        &scene,
        0,
        &expect![[r#"web: FailedAttachVolume AttachVolume.Attach failed for volume "pv-1" : no such disk"#]],
    );
    let mut late = attachment("n1", &json!({ "attached": false }));
    Arc::make_mut(&mut late).metadata.creation_timestamp = Some(Time("2026-01-01T00:08:00Z".parse().unwrap()));
    scene.attachments = vec![late];
    check(
        &scene,
        0,
        &expect![[
            r#"web: FailedAttachVolume AttachVolume.Attach failed for volume "pv-1" : timed out waiting for external-attacher of csi.example.com CSI driver to attach volume vol-1"#
        ]],
    );
}

#[test]
fn a_volume_for_one_node_waits_until_the_other_one_has_it_no_longer() {
    let mut scene = scene();
    let used = node("n1", &status("True", true));
    scene.nodes = vec![used, node("n2", &json!({}))];
    scene.attachments = vec![attached_to("n1")];
    scene.pods = vec![pod("new", "n2", &json!({ "phase": "Pending" }))];
    check(
        &scene,
        0,
        &expect![[r#"
            again in 360s
            new: FailedAttachVolume Multi-Attach error for volume "pv-1" Volume is already exclusively attached to one node and can't be attached to another"#]],
    );
    scene.pods.push(pod("old", "n1", &json!({ "phase": "Running" })));
    check(
        &scene,
        0,
        &expect![[
            r#"new: FailedAttachVolume Multi-Attach error for volume "pv-1" Volume is already used by pod(s) old"#
        ]],
    );
    // It is being attached or detached: the next change decides.
    scene.attachments = vec![attachment("n1", &json!({ "attached": false }))];
    scene.nodes = vec![node("n1", &json!({})), node("n2", &json!({}))];
    check(&scene, 0, &expect!["again in 90s"]);
    scene.pods.pop();
    check(&scene, 0, &expect!["delete VolumeAttachment for n1"]);
    scene.attachments.clear();
    check(&scene, 0, &expect!["create VolumeAttachment for n2"]);
    // Of two nodes one gets it.
    scene.pods.push(pod("old", "n1", &json!({ "phase": "Running" })));
    check(&scene, 0, &expect!["create VolumeAttachment for n1"]);
    shares(&mut scene);
    check(
        &scene,
        0,
        &expect![[r"
            create VolumeAttachment for n1
            create VolumeAttachment for n2"]],
    );
}

#[test]
fn a_volume_that_no_pod_uses_goes_once_the_node_does_not_use_it() {
    let mut scene = scene();
    scene.attachments = vec![attached_to("n1")];
    let mut with = |node: Option<Arc<Node>>, waited: u64, expected: &Expect| {
        scene.nodes = node.into_iter().collect();
        check(&scene, waited, expected);
    };
    let gone = expect![[r"
        patch Node n1/status: null
        delete VolumeAttachment for n1"]];
    with(Some(node("n1", &status("True", false))), 0, &gone);
    with(Some(node("n1", &status("True", true))), 10, &expect!["again in 350s"]);
    with(Some(node("n1", &status("True", true))), 400, &expect![""]);
    with(
        Some(node("n1", &status("Unknown", true))),
        10,
        &expect!["again in 350s"],
    );
    with(Some(node("n1", &status("Unknown", true))), 360, &gone);
    let mut off = node("n1", &status("Unknown", true));
    let taints = json!({ "taints": [{ "key": OUT_OF_SERVICE, "effect": "NoExecute" }] });
    Arc::make_mut(&mut off).spec = Some(from_value(taints).unwrap());
    with(Some(off), 0, &gone);
    with(None, 10, &expect!["again in 350s"]);
    with(None, 360, &expect!["delete VolumeAttachment for n1"]);
    // Its attacher is at it.
    let mut going = attached_to("n1");
    Arc::make_mut(&mut going).metadata.deletion_timestamp = Some(Time(now()));
    scene.attachments = vec![going];
    scene.nodes = vec![node("n1", &json!({}))];
    check(&scene, 0, &expect![""]);
}
