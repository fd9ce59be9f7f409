//! Every kind with every field set, through an independent implementation of upstream's messages.

use controlplane_api::schema::Schema;
use controlplane_api::{KINDS, protobuf};
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;
use serde_json::json;

use crate::round_trips::whole;
use crate::{MAGIC, Value, core, meta, newer};

/// Reads a message and writes it again.
type Rewrite = fn(&[u8]) -> Vec<u8>;

fn rewrite<M: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    M::decode(bytes)
        .expect("the message is one of upstream's")
        .encode_to_vec()
}

macro_rules! messages {
    ($($group:ident::$version:ident: $($kind:ident)+;)*) => {
        [$($((
            concat!(stringify!($group), "/", stringify!($version), " ", stringify!($kind)),
            rewrite::<k8s_pb::api::$group::$version::$kind> as Rewrite,
        ),)+)*]
    };
}

#[test]
fn it_reads_and_writes_the_same_objects() {
    let elsewhere = [
        (
            "apiextensions/v1 CustomResourceDefinition",
            rewrite::<k8s_pb::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
                as Rewrite,
        ),
        (
            "apiregistration/v1 APIService",
            rewrite::<k8s_pb::kube_aggregator::pkg::apis::apiregistration::v1::APIService> as Rewrite,
        ),
    ];
    let messages = messages! {
        admissionregistration::v1: MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration;
        apps::v1: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet;
        authentication::v1: SelfSubjectReview TokenReview;
        authorization::v1: LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview;
        autoscaling::v1: HorizontalPodAutoscaler Scale;
        autoscaling::v2: HorizontalPodAutoscaler;
        batch::v1: CronJob Job;
        certificates::v1: CertificateSigningRequest;
        coordination::v1: Lease;
        core::v1: Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume
            PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount;
        discovery::v1: EndpointSlice;
        events::v1: Event;
        flowcontrol::v1: FlowSchema PriorityLevelConfiguration;
        networking::v1: Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR;
        node::v1: RuntimeClass;
        policy::v1: PodDisruptionBudget;
        rbac::v1: ClusterRole ClusterRoleBinding Role RoleBinding;
        resource::v1: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice;
        scheduling::v1: PriorityClass;
        storage::v1: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass;
    };
    for row in KINDS {
        // The crate does not have metrics, and predates mutating policies.
        if row.group == "metrics.k8s.io" || row.kind.starts_with("MutatingAdmissionPolicy") {
            continue;
        }
        let group = match row.group {
            "" => "core",
            group => group.split('.').next().expect("there is a first part"),
        };
        let name = format!("{group}/{} {}", row.version, row.kind);
        let (_, rewrite) = messages
            .iter()
            .chain(&elsewhere)
            .find(|(own, _)| *own == name)
            .unwrap_or_else(|| panic!("{name} is not among the messages"));
        let mut object: Value = whole(&row.api_version(), row.kind);
        newer::remove(Schema::of_kind(&row.api_version(), row.kind).unwrap(), &mut object);
        let ours = protobuf::encode(&row.api_version(), row.kind, object.to_string().as_bytes()).unwrap();
        let mut unknown = Unknown::decode(&ours[MAGIC.len()..]).unwrap();
        let raw = unknown.raw.take().expect("there is a message");
        unknown.raw = Some(rewrite(&raw));
        let theirs = [&MAGIC[..], &unknown.encode_to_vec()].concat();
        assert_eq!(protobuf::decode(&theirs).unwrap().json, object, "{name}");
    }
}

#[test]
fn it_reads_lists_and_frames() {
    let encoder = protobuf::ListEncoder::of("v1", "Pod").unwrap();
    let mut items = Vec::new();
    let long = "x".repeat(300);
    for name in ["a", long.as_str()] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "unknown": [{}]});
        encoder.item(pod.to_string().as_bytes(), &mut items).unwrap();
    }
    let metadata = br#"{"resourceVersion":"7","remainingItemCount":3}"#;
    let head = encoder.head("v1", "PodList", metadata, items.len()).unwrap();
    let body = [&head, &items[..], protobuf::ListEncoder::TAIL].concat();
    let unknown = Unknown::decode(&body[MAGIC.len()..]).unwrap();
    assert_eq!(unknown.type_meta.unwrap().kind.unwrap(), "PodList");
    assert_eq!(unknown.content_type.unwrap(), "");
    let list = core::PodList::decode(&unknown.raw.unwrap()[..]).unwrap();
    assert_eq!(list.metadata.unwrap().remaining_item_count, Some(3));
    let names = list.items.into_iter().map(|pod| pod.metadata.unwrap().name.unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["a", &long]);

    let frame = protobuf::frame("ADDED", &body);
    let (length, frame) = frame.split_first_chunk::<4>().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, frame.len());
    let event = meta::WatchEvent::decode(frame).unwrap();
    assert_eq!(event.r#type.unwrap(), "ADDED");
    assert_eq!(event.object.unwrap().raw.unwrap(), body);
}

#[test]
fn what_does_not_fit_is_an_error() {
    for wrong in [
        json!({"spec": 1}),
        json!({"spec": {"containers": {}}}),
        json!({"spec": {"hostNetwork": "yes"}}),
        json!({"metadata": {"creationTimestamp": "noon"}}),
        json!({"spec": {"activeDeadlineSeconds": 1.5}}),
        json!({"metadata": {"labels": []}}),
    ] {
        let encoded = protobuf::encode("v1", "Pod", wrong.to_string().as_bytes());
        assert!(matches!(encoded, Err(protobuf::ProtobufError::Unfit(_))), "{wrong}");
    }
    assert!(protobuf::encode("v1", "Pod", b"{").is_err());
}
