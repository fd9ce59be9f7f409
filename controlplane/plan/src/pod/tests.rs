use std::sync::Arc;

use serde_json::json;

use super::{Pod, Pool};

fn pod(number: u32, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("web-{number}"), "namespace": "default", "uid": number.to_string(), "resourceVersion": "7",
            "labels": { "app": "web" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r" }],
        },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "a", "resources": { "requests": { "cpu": "1" } } }],
            "volumes": [{ "name": format!("token-{number}"), "emptyDir": {} }],
        },
        "status": { "phase": "Running", "podIP": "10.0.0.1" },
    }))
    .unwrap()
}

#[test]
fn pods_of_one_template_share_what_is_the_same() {
    let mut pool = Pool::default();
    let (mut one, mut two) = (pod(1, "n1"), pod(2, "n2"));
    let (before, after) = (two.clone(), &mut two);
    one.share(&mut pool);
    after.share(&mut pool);
    assert_eq!(two, before, "sharing changes nothing");
    let (one_spec, two_spec) = (one.spec.as_ref().unwrap(), two.spec.as_ref().unwrap());
    assert!(Arc::ptr_eq(one_spec, two_spec));
    assert!(Arc::ptr_eq(&one.metadata.namespace, &two.metadata.namespace));
    assert!(Arc::ptr_eq(
        one.metadata.labels.as_ref().unwrap(),
        two.metadata.labels.as_ref().unwrap()
    ));
    assert!(Arc::ptr_eq(
        one.metadata.owners.as_ref().unwrap(),
        two.metadata.owners.as_ref().unwrap()
    ));
    assert_eq!((&*one.node, &*two.node), ("n1", "n2"));
}

#[test]
fn what_differs_stays_apart_and_what_is_gone_is_forgotten() {
    let mut pool = Pool::default();
    for number in 0..1000 {
        let mut pod = pod(number, &format!("n{number}"));
        pod.share(&mut pool);
        assert_eq!(&*pod.node, format!("n{number}"));
    }
    assert!(pool.texts.len() < 200, "{} texts of nobody", pool.texts.len());
}

#[test]
fn what_a_node_can_never_give_is_not_counted() {
    let counted = |reason: &str| {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "a", "resources": resources("200")}]},
            "status": {
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                "containerStatuses": [{
                    "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": resources("150m"), "allocatedResources": {"cpu": "150m"},
                }],
            },
        }))
        .unwrap();
        crate::placement::PodRequests::of(&pod).requests.get("cpu")
    };
    assert_eq!(counted("Infeasible"), 150);
    assert_eq!(counted("Deferred"), 200_000);
}
