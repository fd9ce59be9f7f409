//! Values that were once accepted, and their errors.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{pod_refused, refused, texts, with};

const NO_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const NO_LABEL: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

#[test]
fn nodes_are_chosen_by_what_they_can_have() {
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
        and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let term = json!({
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "A b!"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["A_b!"]}],
    });
    let required =
        |term: &Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    refused(
        "",
        "pods",
        &json!({"spec": {"affinity": {"nodeAffinity": required(&term)}}}),
        &[
            &format!("{path}.matchExpressions[0].values[1]: Invalid value: \"A b!\": {NO_LABEL}"),
            &format!("{path}.matchFields[0].values[0]: Invalid value: \"A_b!\": {subdomain}"),
        ],
    );
    let preferred = json!([{"weight": 1, "preference": {"matchExpressions": term["matchExpressions"]}}]);
    let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred});
    refused(
        "",
        "pods",
        &json!({"spec": {"affinity": {"nodeAffinity": preferred}}}),
        &[],
    );
}

#[test]
fn fields_are_of_a_version_of_pods() {
    pod_refused(
        &json!({"env": [{"name": "a", "valueFrom": {"fieldRef": {"apiVersion": "v9", "fieldPath": "metadata.name"}}}]}),
        &[
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name\": error converting fieldPath: unsupported pod version: v9",
        ],
    );
}

#[test]
fn a_service_has_each_family_once() {
    refused(
        "",
        "services",
        &json!({"spec": {"ipFamilies": ["IPv4", "IPv4"]}}),
        &["spec.ipFamilies[1]: Duplicate value: \"IPv4\""],
    );
}

#[test]
fn rules_of_jobs_name_conditions() {
    let rule = |kind: &str| json!({"action": "Ignore", "onPodConditions": [{"type": kind, "status": "True"}]});
    let path = "spec.podFailurePolicy.rules[0].onPodConditions[0].type";
    refused(
        "batch",
        "jobs",
        &json!({"spec": {"podFailurePolicy": {"rules": [rule("a b")]}}}),
        &[&format!("{path}: Invalid value: \"a b\": {NO_NAME}")],
    );
}

#[test]
fn the_pods_of_jobs_have_labels_that_they_can_have() {
    let template = json!({"metadata": {"labels": {"a": "b c"}}});
    refused(
        "batch",
        "jobs",
        &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"template": template}}),
        &[&format!("spec.template.labels: Invalid value: \"b c\": {NO_LABEL}")],
    );
    refused(
        "batch",
        "cronjobs",
        &json!({"spec": {"jobTemplate": {"spec": {"template": template}}}}),
        &[&format!(
            "spec.jobTemplate.spec.template.labels: Invalid value: \"b c\": {NO_LABEL}"
        )],
    );
}

#[test]
fn classes_choose_nodes_and_bear_taints() {
    refused(
        "node.k8s.io",
        "runtimeclasses",
        &json!({"scheduling": {"nodeSelector": {"a": "b c"},
            "tolerations": [{"key": "k", "operator": "X"}, {"key": "l", "operator": "Exists"}, {"key": "l", "operator": "Exists"}]}}),
        &[
            &format!("scheduling.nodeSelector: Invalid value: \"b c\": {NO_LABEL}"),
            "scheduling.tolerations[0].operator: Unsupported value: \"X\": supported values: \"Equal\", \"Exists\"",
            "scheduling.tolerations[2]: Duplicate value: {\"Key\":\"l\",\"Operator\":\"Exists\",\"Value\":\"\",\"Effect\":\"\",\"TolerationSeconds\":null}",
        ],
    );
}

#[test]
fn finalizers_of_namespaces_have_names() {
    refused(
        "",
        "namespaces",
        &json!({"spec": {"finalizers": ["A_b!"]}}),
        &[
            &format!("spec.finalizers: Invalid value: \"A_b!\": {NO_NAME}"),
            "spec.finalizers: Invalid value: \"A_b!\": name is neither a standard finalizer name nor is it fully qualified",
        ],
    );
}

#[test]
fn templates_have_no_containers_of_pods_that_run() {
    let template = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i", "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"}]}});
    let forbidden =
        "spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template";
    for (group, plural) in [("apps", "deployments"), ("apps", "replicasets"), ("batch", "jobs")] {
        refused(group, plural, &json!({"spec": {"template": template}}), &[forbidden]);
    }
}

#[test]
fn the_port_for_checks_stays() {
    let row = find("", "v1", "services").unwrap();
    let service = |port: i32| {
        let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port});
        with(row, &json!({ "spec": spec }))
    };
    let said = |new: i32| texts(&row.validate_update(service(new).as_ref(), service(31234).as_ref(), &mut Vec::new()));
    assert_eq!(said(31234), Vec::<String>::new());
    assert_eq!(said(31235), ["spec.healthCheckNodePort: Forbidden: field is immutable"]);
}

#[test]
fn volumes_of_old_drivers_say_where_they_are() {
    let places = json!({"hostPath": null, "local": null, "nfs": null, "csi": null});
    let place = |name: &str, place: Value, expected: &[&str]| {
        let mut spec = places.clone();
        spec[name] = place;
        let expected: Vec<String> = expected.iter().map(|text| format!("spec.{name}.{text}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        refused("", "persistentvolumes", &json!({ "spec": spec }), &expected);
    };
    place(
        "awsElasticBlockStore",
        json!({"volumeID": "", "partition": 256}),
        &[
            "volumeID: Required value",
            "partition: Invalid value: 256: must be between 1 and 255, inclusive",
        ],
    );
    place("gcePersistentDisk", json!({"pdName": ""}), &["pdName: Required value"]);
    place(
        "azureFile",
        json!({"secretName": "", "shareName": ""}),
        &["secretName: Required value", "shareName: Required value"],
    );
    place("cephfs", json!({"monitors": []}), &["monitors: Required value"]);
    place(
        "rbd",
        json!({"monitors": [], "image": ""}),
        &["monitors: Required value", "image: Required value"],
    );
    place(
        "iscsi",
        json!({"targetPortal": "", "iqn": "x", "lun": 300, "chapAuthSession": true}),
        &[
            "targetPortal: Required value",
            "iqn: Invalid value: \"x\": must be valid format",
            "lun: Invalid value: 300: must be between 0 and 255, inclusive",
            "secretRef: Required value",
        ],
    );
    for name in [
        "iqn.2015-02.example.com:storage.a",
        "eui.0123456789ABCDEF",
        "naa.0123456789ABCDEF0123456789ABCDEF",
    ] {
        place("iscsi", json!({"targetPortal": "a", "iqn": name, "lun": 0}), &[]);
    }
    place(
        "fc",
        json!({}),
        &["targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
    );
    place(
        "fc",
        json!({"targetWWNs": ["a"], "lun": -1}),
        &["lun: Invalid value: -1: must be between 0 and 255, inclusive"],
    );
}
