//! Objects that an independent encoder wrote.

use controlplane_api::protobuf;
use serde_json::json;

use crate::{core, decoded, deployment, meta, some};

#[test]
fn a_deployment_reads_as_its_json() {
    let json = decoded("apps/v1", "Deployment", &deployment());
    assert_eq!(
        json,
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "nginx", "labels": {"app": "nginx", "empty": ""}},
            "spec": {
                "replicas": 0,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": -1}},
                "template": {"spec": {
                    "containers": [{
                        "name": "nginx",
                        "image": "nginx:1.14.2",
                        "ports": [{"containerPort": 80}],
                        "resources": {"limits": {"cpu": "500m"}},
                        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    }],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                }},
            },
            "status": {},
        })
    );
    let typed: k8s_openapi::api::apps::v1::Deployment = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(typed.spec.unwrap().replicas, Some(0));
    // Our encoder leaves out what JSON leaves out; decoded again, it is the same.
    let again = protobuf::encode("apps/v1", "Deployment", json.to_string().as_bytes()).unwrap();
    assert_eq!(protobuf::decode(&again).unwrap().json, json);
}

#[test]
fn special_forms_read_as_their_json() {
    let time = |seconds, nanos| meta::MicroTime {
        seconds: Some(seconds),
        nanos: Some(nanos),
    };
    let lease = k8s_pb::api::coordination::v1::Lease {
        metadata: Some(meta::ObjectMeta {
            creation_timestamp: Some(meta::Time {
                seconds: Some(1_700_000_000),
                nanos: Some(5),
            }),
            managed_fields: vec![meta::ManagedFieldsEntry {
                fields_v1: Some(meta::FieldsV1 {
                    raw: Some(br#"{"f:spec":{}}"#.to_vec()),
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        spec: Some(k8s_pb::api::coordination::v1::LeaseSpec {
            renew_time: Some(time(1_700_000_000, 123_456_789)),
            ..Default::default()
        }),
    };
    let json = decoded("coordination.k8s.io/v1", "Lease", &lease);
    assert_eq!(json["metadata"]["creationTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(json["metadata"]["managedFields"], json!([{"fieldsV1": {"f:spec": {}}}]));
    assert_eq!(json["spec"]["renewTime"], "2023-11-14T22:13:20.123456Z");

    let review = k8s_pb::api::authentication::v1::SelfSubjectReview {
        status: Some(k8s_pb::api::authentication::v1::SelfSubjectReviewStatus {
            user_info: Some(k8s_pb::api::authentication::v1::UserInfo {
                extra: [(
                    "k".to_owned(),
                    k8s_pb::api::authentication::v1::ExtraValue {
                        items: vec!["a".into(), "b".into()],
                    },
                )]
                .into(),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    let json = decoded("authentication.k8s.io/v1", "SelfSubjectReview", &review);
    assert_eq!(json["status"]["userInfo"]["extra"], json!({"k": ["a", "b"]}));

    let secret = core::Secret {
        data: [("key".to_owned(), vec![0, 255])].into(),
        ..Default::default()
    };
    assert_eq!(decoded("v1", "Secret", &secret)["data"], json!({"key": "AP8="}));

    let options = meta::DeleteOptions {
        grace_period_seconds: Some(0),
        propagation_policy: some("Background"),
        ..Default::default()
    };
    assert_eq!(
        decoded("apps/v1", "DeleteOptions", &options),
        json!({"apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    );
}
