//! Validation of storage kinds.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, texts, update_refused, with};

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
            "csidrivers",
            json!({"spec": {"tokenRequests": null, "serviceAccountTokenInSecrets": true}}),
            "spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
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
            "spec: Invalid value: {\"Attacher\":\"disk.example.com\",\"Source\":{\"PersistentVolumeName\":\"disk-1\",\"InlineVolumeSpec\":null},\"NodeName\":\"b\"}: field is immutable",
        ),
        (
            "csinodes",
            json!({"spec": {"drivers": [{"name": "disk.example.com", "nodeID": "i-2", "allocatable": {"count": 1}}]}}),
            "spec.drivers: Invalid value: {\"Name\":\"disk.example.com\",\"NodeID\":\"i-2\",\"TopologyKeys\":null,\"Allocatable\":null}: field is immutable",
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

#[test]
fn claims() {
    let modes = "\"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"";
    let some = format!("spec.accessModes: Unsupported value: \"Some\": supported values: {modes}");
    for (patch, expected) in [
        (json!({"spec": {"accessModes": ["Some"]}}), vec![some.as_str()]),
        (
            json!({"spec": {"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}}),
            vec!["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
        ),
        (
            json!({"spec": {"resources": {"requests": {"storage": "0"}}}}),
            vec!["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
        ),
        (
            json!({"spec": {"accessModes": null, "selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}),
            vec![
                "spec.accessModes: Required value: at least 1 access mode is required",
                "spec.selector.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
            ],
        ),
        (
            json!({"spec": {"dataSourceRef": {"kind": "Disk", "name": ""}}}),
            vec![
                "spec.dataSource.name: Required value",
                "spec.dataSource: Invalid value: \"Disk\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
                "spec.dataSourceRef.name: Required value",
                "spec.dataSourceRef: Invalid value: \"Disk\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            ],
        ),
        (
            json!({"spec": {
                "dataSource": {"apiGroup": "a.b", "kind": "Disk", "name": "x"},
                "dataSourceRef": {"apiGroup": "a.b", "kind": "Disk", "name": "y"},
            }}),
            vec!["spec: Invalid value: {}: must match dataSourceRef"],
        ),
        (
            json!({"spec": {
                "dataSource": {"kind": "Disk", "name": "x"},
                "dataSourceRef": {"kind": "Disk", "name": "y", "namespace": "z"},
            }}),
            vec![],
        ),
    ] {
        refused("", "persistentvolumeclaims", &patch, &expected);
    }
}

#[test]
fn volumes() {
    for (patch, expected) in [
        (
            json!({"spec": {"accessModes": null, "capacity": null}}),
            vec![
                "spec.accessModes: Required value",
                "spec.capacity: Required value",
                "spec.capacity: Unsupported value: null: supported values: \"storage\"",
            ],
        ),
        (
            json!({"spec": {"capacity": {"storage": "-1"}}}),
            vec![
                "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                "spec.capacity[storage]: Invalid value: \"-1\": must be greater than zero",
            ],
        ),
        (
            json!({"spec": {"nfs": {"server": "", "path": "x"}}}),
            vec![
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
                "spec.nfs.server: Required value",
                "spec.nfs.path: Invalid value: \"x\": must be an absolute path",
            ],
        ),
        (
            json!({"spec": {"hostPath": {"path": "/a/../.."}, "nodeAffinity": {"required": null}}}),
            vec![
                "spec.nodeAffinity.required: Required value: must specify required node constraints",
                "spec.hostPath.path: Invalid value: \"/a/../..\": must not contain '..'",
            ],
        ),
    ] {
        refused("", "persistentvolumes", &patch, &expected);
    }
}

#[test]
fn a_container_has_block_devices_of_claims_at_paths_of_their_own() {
    let claim = json!({"name": "a", "persistentVolumeClaim": {"claimName": "c"}});
    let volumes = json!([claim, {"name": "b", "emptyDir": {}}, {"name": "n", "nfs": {"server": "", "path": "x"}}]);
    let devices = json!([
        {"name": "a", "devicePath": "/dev/a"}, {"name": "b", "devicePath": "/dev/a"}, {"name": "", "devicePath": ""},
        {"name": "none", "devicePath": "/dev/../b"},
    ]);
    let container = json!({
        "name": "m", "image": "i", "volumeDevices": devices, "volumeMounts": [{"name": "a", "mountPath": "/dev/a"}],
    });
    refused(
        "",
        "pods",
        &json!({"spec": {"volumes": volumes, "containers": [container]}}),
        &[
            "spec.volumes[2].nfs.server: Required value",
            "spec.volumes[2].nfs.path: Invalid value: \"x\": must be an absolute path",
            "spec.containers[0].volumeMounts[0].name: Invalid value: \"a\": must not already exist in volumeDevices",
            "spec.containers[0].volumeMounts[0].mountPath: Invalid value: \"/dev/a\": must not already exist as a path in volumeDevices",
            "spec.containers[0].volumeDevices[0].name: Invalid value: \"a\": must not already exist in volumeMounts",
            "spec.containers[0].volumeDevices[0].devicePath: Invalid value: \"/dev/a\": must not already exist as a path in volumeMounts",
            "spec.containers[0].volumeDevices[1].name: Invalid value: \"b\": can only use volume source type of PersistentVolumeClaim or \
                 Ephemeral for block mode",
            "spec.containers[0].volumeDevices[1].devicePath: Invalid value: \"/dev/a\": must be unique",
            "spec.containers[0].volumeDevices[1].devicePath: Invalid value: \"/dev/a\": must not already exist as a path in volumeMounts",
            "spec.containers[0].volumeDevices[2].name: Required value",
            "spec.containers[0].volumeDevices[2].name: Not found: \"\"",
            "spec.containers[0].volumeDevices[2].devicePath: Required value",
            "spec.containers[0].volumeDevices[3].name: Not found: \"none\"",
            "spec.containers[0].volumeDevices[3].devicePath: Invalid value: \"/dev/../b\": can not contain backsteps ('..')",
        ],
    );
}

#[test]
fn changes_of_volumes_and_claims() {
    let fixed = |difference: &str| {
        format!(
            "spec: Forbidden: spec is immutable after creation except resources.requests and \
             volumeAttributesClassName for bound claims\n{difference}"
        )
    };
    let smaller =
        fixed("- resources: {\"requests\":{\"storage\":\"3Gi\"}}\n+ resources: {\"requests\":{\"storage\":\"1Gi\"}}");
    let class = fixed("- storageClassName: \"slow\"\n+ storageClassName: \"fast\"");
    let mode = fixed("- volumeMode: \"Filesystem\"\n+ volumeMode: \"Block\"");
    for (plural, patch, expected) in [
        (
            "persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            vec![smaller.as_str()],
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"storageClassName": "fast"}}),
            vec![class.as_str()],
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"volumeMode": "Block"}}),
            vec![
                mode.as_str(),
                "volumeMode: Invalid value: \"Block\": field is immutable",
            ],
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}}),
            vec![
                "metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: \"fast\": field is immutable",
            ],
        ),
        (
            "persistentvolumes",
            json!({"spec": {"volumeMode": "Block"}}),
            vec!["volumeMode: Invalid value: \"Block\": field is immutable"],
        ),
        (
            "persistentvolumes",
            json!({"spec": {"nodeAffinity": null}}),
            vec!["nodeAffinity: Invalid value: null: field is immutable, except for updating from beta label to GA"],
        ),
    ] {
        update_refused("", plural, &patch, &expected);
    }
}

#[test]
fn a_class_of_attributes_that_is_applied_can_only_be_replaced() {
    let row = find("", "v1", "persistentvolumeclaims").unwrap();
    let claim = |class: &Value, applied: &Value| {
        let status = json!({"phase": "Bound", "currentVolumeAttributesClassName": applied});
        with(
            row,
            &json!({"spec": {"volumeAttributesClassName": class}, "status": status}),
        )
    };
    let refusal = |what: &str| {
        format!(
            "spec.volumeAttributesClassName: Forbidden: update to {what} is forbidden when \
             status.currentVolumeAttributesClassName is not nil"
        )
    };
    for (class, applied, expected) in [
        (Value::Null, Value::Null, vec![]),
        (json!(""), Value::Null, vec![]),
        (json!("slow"), json!("fast"), vec![]),
        (Value::Null, json!("fast"), vec![refusal("nil")]),
        (json!(""), json!("fast"), vec![refusal("empty string")]),
    ] {
        let (old, mut new) = (claim(&json!("fast"), &applied), claim(&class, &applied));
        row.prepare_update(new.as_mut(), old.as_ref());
        let errors = row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new());
        assert_eq!(texts(&errors), expected, "{class} {applied}");
    }
}
