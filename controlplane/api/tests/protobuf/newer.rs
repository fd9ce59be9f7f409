//! Fields that are newer than the independent implementation, with messages that repeat them here.

use controlplane_api::protobuf;
use controlplane_api::schema::{Schema, Shape};
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;
use serde_json::{Value, json};

use crate::MAGIC;

/// The message and the field.
const NEWER: [(&str, &str); 11] = [
    ("core.v1.PodSpec", "schedulingGroup"),
    ("core.v1.PodStatus", "nodeAllocatableResourceClaimStatuses"),
    ("core.v1.ResourceHealth", "message"),
    ("core.v1.VolumeMountStatus", "volumeStatus"),
    ("meta.v1.ListMeta", "shardInfo"),
    ("resource.v1.Device", "nodeAllocatableResourceMappings"),
    ("resource.v1.DeviceAttribute", "bools"),
    ("resource.v1.DeviceAttribute", "ints"),
    ("resource.v1.DeviceAttribute", "strings"),
    ("resource.v1.DeviceAttribute", "versions"),
    ("storage.v1.CSIDriverSpec", "preventPodSchedulingIfMissing"),
];

/// Removes the fields that an implementation before 1.36 does not have.
pub(crate) fn remove(schema: Schema, value: &mut Value) {
    let Some(members) = value.as_object_mut() else { return };
    members.retain(|name, _| !NEWER.contains(&(schema.name(), name)));
    for (name, member) in members {
        let Some(field) = schema.field(name) else { continue };
        let Some(message) = field.message() else { continue };
        match field.shape {
            Shape::List => member
                .as_array_mut()
                .into_iter()
                .flatten()
                .for_each(|item| remove(message, item)),
            Shape::Map => member
                .as_object_mut()
                .into_iter()
                .flatten()
                .for_each(|(_, item)| remove(message, item)),
            Shape::One | Shape::Inline => remove(message, member),
        }
    }
}

#[derive(PartialEq, Message)]
struct Text {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

#[derive(PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "2")]
    spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(PartialEq, Message)]
struct PodSpec {
    #[prost(message, optional, tag = "43")]
    scheduling_group: Option<Text>,
}

#[derive(PartialEq, Message)]
struct PodStatus {
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "21")]
    node_allocatable_resource_claim_statuses: Vec<ClaimStatus>,
}

#[derive(PartialEq, Message)]
struct ClaimStatus {
    #[prost(string, optional, tag = "1")]
    resource_claim_name: Option<String>,
    #[prost(string, repeated, tag = "2")]
    containers: Vec<String>,
    #[prost(btree_map = "string, message", tag = "3")]
    resources: std::collections::BTreeMap<String, Quantity>,
}

#[derive(PartialEq, Message)]
struct ContainerStatus {
    #[prost(message, repeated, tag = "12")]
    volume_mounts: Vec<VolumeMountStatus>,
    #[prost(message, repeated, tag = "14")]
    allocated_resources_status: Vec<ResourceStatus>,
}

#[derive(PartialEq, Message)]
struct VolumeMountStatus {
    #[prost(message, optional, tag = "5")]
    volume_status: Option<VolumeStatus>,
}

#[derive(PartialEq, Message)]
struct VolumeStatus {
    #[prost(message, optional, tag = "1")]
    image: Option<Text>,
}

#[derive(PartialEq, Message)]
struct ResourceStatus {
    #[prost(message, repeated, tag = "2")]
    resources: Vec<ResourceHealth>,
}

#[derive(PartialEq, Message)]
struct ResourceHealth {
    #[prost(string, optional, tag = "6")]
    message: Option<String>,
}

#[derive(PartialEq, Message)]
struct ResourceSlice {
    #[prost(message, optional, tag = "2")]
    spec: Option<ResourceSliceSpec>,
}

#[derive(PartialEq, Message)]
struct ResourceSliceSpec {
    #[prost(message, repeated, tag = "6")]
    devices: Vec<Device>,
}

#[derive(PartialEq, Message)]
struct Device {
    #[prost(btree_map = "string, message", tag = "2")]
    attributes: std::collections::BTreeMap<String, DeviceAttribute>,
    #[prost(btree_map = "string, message", tag = "13")]
    node_allocatable_resource_mappings: std::collections::BTreeMap<String, Mapping>,
}

#[derive(PartialEq, Message)]
struct DeviceAttribute {
    #[prost(string, optional, tag = "4")]
    string: Option<String>,
    #[prost(int64, repeated, packed = "false", tag = "6")]
    ints: Vec<i64>,
    #[prost(bool, repeated, packed = "false", tag = "7")]
    bools: Vec<bool>,
    #[prost(string, repeated, tag = "8")]
    strings: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    versions: Vec<String>,
}

#[derive(PartialEq, Message)]
struct Mapping {
    #[prost(string, optional, tag = "1")]
    capacity_key: Option<String>,
    #[prost(message, optional, tag = "2")]
    allocation_multiplier: Option<Quantity>,
}

#[derive(PartialEq, Message)]
struct CsiDriver {
    #[prost(message, optional, tag = "2")]
    spec: Option<CsiDriverSpec>,
}

#[derive(PartialEq, Message)]
struct CsiDriverSpec {
    #[prost(bool, optional, tag = "11")]
    prevent_pod_scheduling_if_missing: Option<bool>,
}

#[derive(PartialEq, Message)]
struct PodList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
}

#[derive(PartialEq, Message)]
struct ListMeta {
    #[prost(message, optional, tag = "5")]
    shard_info: Option<Text>,
}

#[expect(clippy::unnecessary_wraps, reason = "prost wants an Option in every field")]
fn text(text: &str) -> Option<Text> {
    Some(Text {
        text: Some(text.to_owned()),
    })
}

fn quantity(text: &str) -> Quantity {
    Quantity {
        string: Some(text.to_owned()),
    }
}

/// Decodes a message of ours with another implementation.
fn read<M: Message + Default>(api_version: &str, kind: &str, object: &Value) -> M {
    let mut object = object.clone();
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    let body = protobuf::encode(api_version, kind, object.to_string().as_bytes()).unwrap();
    assert_eq!(protobuf::decode(&body).unwrap().json, object);
    let unknown = Unknown::decode(&body[MAGIC.len()..]).unwrap();
    M::decode(&unknown.raw.unwrap()[..]).unwrap()
}

#[test]
fn newer_fields_of_pods_have_upstreams_numbers() {
    let pod: Pod = read(
        "v1",
        "Pod",
        &json!({
            "metadata": {},
            "spec": {"containers": [{"name": "a", "resources": {}}], "schedulingGroup": {"podGroupName": "group"}},
            "status": {
                "containerStatuses": [{
                    "name": "a", "ready": false, "restartCount": 0, "image": "i", "imageID": "d", "state": {}, "lastState": {},
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "volumeStatus": {"image": {"imageRef": "sha256:1"}}}],
                    "allocatedResourcesStatus": [{"name": "n", "resources": [{"resourceID": "r", "message": "hot"}]}],
                }],
                "nodeAllocatableResourceClaimStatuses": [
                    {"resourceClaimName": "claim", "containers": ["a"], "resources": {"cpu": "2"}},
                ],
            },
        }),
    );
    assert_eq!(pod.spec.unwrap().scheduling_group, text("group"));
    let status = pod.status.unwrap();
    let claim = ClaimStatus {
        resource_claim_name: Some("claim".to_owned()),
        containers: vec!["a".to_owned()],
        resources: [("cpu".to_owned(), quantity("2"))].into(),
    };
    assert_eq!(status.node_allocatable_resource_claim_statuses, [claim]);
    let status = &status.container_statuses[0];
    assert_eq!(
        status.volume_mounts[0].volume_status,
        Some(VolumeStatus {
            image: text("sha256:1")
        })
    );
    let health = &status.allocated_resources_status[0].resources[0];
    assert_eq!(health.message.as_deref(), Some("hot"));
}

#[test]
fn newer_fields_of_devices_drivers_and_lists_have_upstreams_numbers() {
    let device = json!({
        "name": "gpu",
        "attributes": {"a": {"string": "", "ints": [0, -1], "bools": [true, false], "strings": ["", "s"], "versions": ["1.0.0"]}},
        "nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "cores", "allocationMultiplier": "2"}},
    });
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "d", "pool": pool, "devices": [device]});
    let slice: ResourceSlice = read(
        "resource.k8s.io/v1",
        "ResourceSlice",
        &json!({"metadata": {}, "spec": spec}),
    );
    let device = &slice.spec.unwrap().devices[0];
    let attribute = DeviceAttribute {
        string: Some(String::new()),
        ints: vec![0, -1],
        bools: vec![true, false],
        strings: vec![String::new(), "s".to_owned()],
        versions: vec!["1.0.0".to_owned()],
    };
    assert_eq!(device.attributes["a"], attribute);
    let mapping = Mapping {
        capacity_key: Some("cores".to_owned()),
        allocation_multiplier: Some(quantity("2")),
    };
    assert_eq!(device.node_allocatable_resource_mappings["cpu"], mapping);

    let driver = json!({"metadata": {}, "spec": {"preventPodSchedulingIfMissing": false}});
    let driver: CsiDriver = read("storage.k8s.io/v1", "CSIDriver", &driver);
    assert_eq!(driver.spec.unwrap().prevent_pod_scheduling_if_missing, Some(false));

    let list = json!({"metadata": {"shardInfo": {"selector": "s"}}});
    let mut list_metadata: PodList = read("v1", "PodList", &list);
    assert_eq!(list_metadata.metadata.take().unwrap().shard_info, text("s"));
}
