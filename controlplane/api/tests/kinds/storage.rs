//! Rules of kinds of storage.

use serde_json::json;

use crate::refused::{refused, update_refused};

const GROUP: &str = "storage.k8s.io";

#[test]
fn new_objects() {
    let class = "storageclasses";
    for (plural, patch, expected) in [
        (
            class,
            json!({"parameters": {"": "v"}}),
            "parameters: Invalid value: \"\": field can not be empty.",
        ),
        (
            class,
            json!({"parameters": {"k": "v".repeat(256 << 10)}}),
            "parameters: Too long: may not be more than 262144 bytes",
        ),
        (
            class,
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": []}]}]}),
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
        ),
        (
            class,
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["x"]}, {"key": "a", "values": ["y"]}]}]}),
            "allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: \"a\"",
        ),
        (
            "volumeattributesclasses",
            json!({"parameters": null}),
            "parameters: Required value: must contain at least one key/value pair",
        ),
        (
            "volumeattachments",
            json!({"spec": {"source": {"persistentVolumeName": null}}}),
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        (
            "csinodes",
            json!({"spec": {"drivers": [{"name": "a.b", "nodeID": "", "topologyKeys": []}]}}),
            "spec.drivers[0].nodeID: Required value",
        ),
        (
            "csinodes",
            json!({"spec": {"drivers": [{"name": "a.b", "nodeID": "1"}, {"name": "a.b", "nodeID": "2"}]}}),
            "spec.drivers[1].name: Duplicate value: \"a.b\"",
        ),
        (
            "csidrivers",
            json!({"spec": {"fsGroupPolicy": "Maybe"}}),
            "spec.fsGroupPolicy: Unsupported value: \"Maybe\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
        ),
        (
            "csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}}),
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
        ),
        (
            "csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 10}]}}),
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
        ),
        (
            "csistoragecapacities",
            json!({"capacity": "-1"}),
            "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
    ] {
        refused(GROUP, plural, &patch, &[expected]);
    }
}

#[test]
fn updates() {
    for (plural, patch, expected) in [
        (
            "csidrivers",
            json!({"spec": {"attachRequired": false}}),
            "spec.attachedRequired: Invalid value: false: field is immutable",
        ),
        (
            "csistoragecapacities",
            json!({"storageClassName": "fast"}),
            "storageClassName: Invalid value: \"fast\": field is immutable",
        ),
        (
            "volumeattributesclasses",
            json!({"parameters": {"iops": "1"}}),
            "parameters: Forbidden: updates to parameters are forbidden.",
        ),
        (
            "volumeattachments",
            json!({"spec": {"nodeName": "b"}}),
            "spec: Invalid value: {\"attacher\":\"disk.example.com\",\"nodeName\":\"b\",\"source\":{\"persistentVolumeName\":\"disk-1\"}}: field is immutable",
        ),
        (
            "csinodes",
            json!({"spec": {"drivers": [{"name": "disk.example.com", "nodeID": "i-1", "topologyKeys": ["topology.kubernetes.io/zone"], "allocatable": {"count": -1}}]}}),
            "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
        ),
    ] {
        update_refused(GROUP, plural, &patch, &[expected]);
    }
}
