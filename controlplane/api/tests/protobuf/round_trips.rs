//! Every message of the table, there and back.

use controlplane_api::protobuf;
use controlplane_api::schema::{Field, Form, Schema, Shape};
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{core, decoded};

/// An object with every field of a message set, down to some depth.
fn full(schema: Schema, depth: usize) -> Value {
    let mut members = Map::new();
    fill(schema, depth, &mut members);
    Value::Object(members)
}

fn fill(schema: Schema, depth: usize, members: &mut Map<String, Value>) {
    for field in schema.fields() {
        if field.shape == Shape::Inline {
            fill(field.message().expect("inlined fields are messages"), depth, members);
            continue;
        }
        let Some(value) = sample(field, depth) else { continue };
        let value = match field.shape {
            Shape::One | Shape::Inline => value,
            Shape::List => json!([value]),
            Shape::Map => json!({"key": value}),
        };
        members.insert(field.json.to_owned(), value);
    }
}

fn sample(field: &Field, depth: usize) -> Option<Value> {
    Some(match field.form {
        Form::String => json!("text"),
        Form::Bool => json!(true),
        Form::Int32 => json!(-7),
        Form::Int64 => json!(i64::MIN),
        Form::Double => json!(1.5),
        Form::Bytes => json!("AP8="),
        Form::Quantity => json!("1500m"),
        Form::IntOrString => json!("25%"),
        Form::Time => json!("2023-11-14T22:13:20Z"),
        Form::MicroTime => json!("2023-11-14T22:13:20.123456Z"),
        Form::Duration => json!("1m30s"),
        Form::RawExtension | Form::FieldsV1 => json!({"f:x": {}}),
        Form::Strings => json!(["a", "b"]),
        Form::Message(_) if depth == 0 => return None,
        Form::Message(_) => full(field.message()?, depth - 1),
    })
}

#[test]
fn every_kind_survives_the_way_there_and_back() {
    let kinds = [
        ("v1", "Pod"),
        ("v1", "Node"),
        ("v1", "Service"),
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("v1", "Event"),
        ("v1", "PersistentVolume"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Endpoints"),
        ("v1", "LimitRange"),
        ("v1", "ResourceQuota"),
        ("v1", "Binding"),
        ("v1", "Namespace"),
        ("v1", "ServiceAccount"),
        ("v1", "Status"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ControllerRevision"),
        ("batch/v1", "Job"),
        ("batch/v1", "CronJob"),
        ("autoscaling/v1", "Scale"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("policy/v1", "Eviction"),
        ("policy/v1", "PodDisruptionBudget"),
        ("networking.k8s.io/v1", "Ingress"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("discovery.k8s.io/v1", "EndpointSlice"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("storage.k8s.io/v1", "CSINode"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("coordination.k8s.io/v1", "Lease"),
        ("node.k8s.io/v1", "RuntimeClass"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("authentication.k8s.io/v1", "TokenRequest"),
        ("authorization.k8s.io/v1", "SubjectAccessReview"),
        ("certificates.k8s.io/v1", "CertificateSigningRequest"),
        ("events.k8s.io/v1", "Event"),
        ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
        ("resource.k8s.io/v1", "ResourceClaim"),
    ];
    for (api_version, kind) in kinds {
        let schema = Schema::of_kind(api_version, kind).unwrap_or_else(|| panic!("{api_version} {kind}"));
        let mut object = full(schema, 9);
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        let body = protobuf::encode(api_version, kind, &object).unwrap();
        assert_eq!(protobuf::decode(&body).unwrap().json, object, "{kind}");
    }
}

/// What prost reads from our bytes, ours reads from prost's.
#[test]
fn an_independent_decoder_reads_what_we_write() {
    let schema = Schema::of_kind("v1", "Pod").unwrap();
    let mut object = full(schema, 9);
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("Pod");
    let ours = protobuf::encode("v1", "Pod", &object).unwrap();
    let unknown = Unknown::decode(&ours[4..]).unwrap();
    let pod = core::Pod::decode(&unknown.raw.unwrap()[..]).unwrap();
    assert_eq!(
        pod.spec.as_ref().unwrap().containers[0].ports[0].container_port,
        Some(-7)
    );
    assert_eq!(decoded("v1", "Pod", &pod), object);
}
