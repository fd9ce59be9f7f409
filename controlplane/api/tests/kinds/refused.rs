//! Rejected objects, in upstream's words. Each case is a fixture with one change.

use controlplane_api::{Object, Registration, find};
use serde_json::{Value, json};

use crate::every::fixture;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The fixture with a JSON merge patch, decoded and defaulted.
pub(crate) fn with(row: &Registration, patch: &Value) -> Box<dyn Object> {
    let mut value: Value = serde_json::from_slice(&fixture(row)).unwrap();
    merge(&mut value, patch);
    let mut object = row.decode(&serde_json::to_vec(&value).unwrap()).unwrap();
    row.set_defaults(object.as_mut());
    object
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, change) in patch {
                if change.is_null() {
                    target.remove(name);
                } else {
                    merge(target.entry(name.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

pub(crate) fn texts(errors: &[controlplane_api::Invalid]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

pub(crate) fn refused(group: &str, plural: &str, patch: &Value, expected: &[&str]) {
    let row = find(group, "v1", plural).unwrap();
    let mut object = with(row, patch);
    row.prepare_create(object.as_mut());
    assert_eq!(texts(&row.validate(object.as_ref())), expected, "{plural} {patch}");
}

pub(crate) fn update_refused(group: &str, plural: &str, patch: &Value, expected: &[&str]) {
    let row = find(group, "v1", plural).unwrap();
    let mut old = with(row, &json!({}));
    row.prepare_create(old.as_mut());
    let mut new = with(row, patch);
    row.prepare_update(new.as_mut(), old.as_ref());
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        expected,
        "{plural} {patch}"
    );
}

#[test]
fn metadata() {
    let name = format!("metadata.name: Invalid value: \"Web_1\": {SUBDOMAIN}");
    refused("", "configmaps", &json!({"metadata": {"name": "Web_1"}}), &[&name]);
    refused(
        "",
        "configmaps",
        &json!({"metadata": {"name": null}}),
        &["metadata.name: Required value: name or generateName is required"],
    );
    refused(
        "",
        "nodes",
        &json!({"metadata": {"namespace": "x"}}),
        &["metadata.namespace: Forbidden: not allowed on this type"],
    );
    refused(
        "",
        "configmaps",
        &json!({"metadata": {"finalizers": ["mine"], "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "u"}]}}),
        &[
            "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
            "metadata.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified",
        ],
    );
    refused(
        "",
        "configmaps",
        &json!({"metadata": {"annotations": {"big": "x".repeat(256 * 1024)}}}),
        &["metadata.annotations: Too long: may not be more than 262144 bytes"],
    );
    update_refused(
        "",
        "configmaps",
        &json!({"metadata": {"uid": "other"}}),
        &["metadata.uid: Invalid value: \"other\": field is immutable"],
    );
}

pub(crate) fn pod_refused(container: &Value, expected: &[&str]) {
    let mut whole = json!({"name": "a", "image": "nginx"});
    merge(&mut whole, container);
    refused("", "pods", &json!({"spec": {"containers": [whole]}}), expected);
}

#[test]
fn containers() {
    pod_refused(&json!({"image": null}), &["spec.containers[0].image: Required value"]);
    pod_refused(
        &json!({"name": "prepare"}),
        &["spec.initContainers[0].name: Duplicate value: \"prepare\""],
    );
    pod_refused(
        &json!({"imagePullPolicy": "Sometimes"}),
        &[
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ],
    );
    pod_refused(
        &json!({"ports": [{"containerPort": 70000, "protocol": "HTTP"}]}),
        &[
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[0].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    pod_refused(
        &json!({"resources": {"requests": {"cpu": "2", "bananas": "1"}, "limits": {"cpu": "1", "memory": "-1"}}}),
        &[
            "spec.containers[0].resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests[bananas]: Invalid value: \"bananas\": must be a standard resource type or fully qualified",
            "spec.containers[0].resources.requests[bananas]: Invalid value: \"bananas\": must be a standard resource for containers",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
        ],
    );
    pod_refused(
        &json!({"resources": {
            "requests": {"example.com/gpu": "2", "cpu": "1", "pods": "1", "hugepages-2Mi": "3Mi", "a b": "1"},
            "limits": {"example.com/gpu": "1", "cpu": "1"},
        }}),
        &[
            "spec.containers[0].resources.requests[a b]: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "spec.containers[0].resources.requests[a b]: Invalid value: \"a b\": must be a standard resource for containers",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be equal to example.com/gpu limit of 1",
            "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            "spec.containers[0].resources.requests[pods]: Invalid value: \"pods\": must be a standard resource for containers",
        ],
    );
    pod_refused(
        &json!({"resources": {"limits": {"hugepages-2Mi": "4Mi"}, "requests": null}}),
        &["spec.containers[0].resources: Forbidden: HugePages require cpu or memory"],
    );
    pod_refused(
        &json!({"volumeMounts": [{"name": "nowhere", "mountPath": "/a"}]}),
        &["spec.containers[0].volumeMounts[0].name: Not found: \"nowhere\""],
    );
    pod_refused(
        &json!({"env": [{"name": "A=B", "value": "c"}, {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.hostname"}}}]}),
        &[
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.hostname\": error converting fieldPath: field label not supported: spec.hostname",
        ],
    );
    pod_refused(
        &json!({"livenessProbe": {"successThreshold": 2}}),
        &[
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ],
    );
    pod_refused(
        &json!({"securityContext": {"runAsUser": 4_294_967_297_i64}}),
        &[
            "spec.containers[0].securityContext.runAsUser: Invalid value: 4294967297: must be between 0 and 2147483647, inclusive",
        ],
    );
}

#[test]
fn pods() {
    let volumes = json!({"spec": {"volumes": [{"name": "settings", "hostPath": {"path": "/a/../b"}}, {"name": "scratch", "emptyDir": {}, "configMap": {"name": "x"}}]}});
    refused(
        "",
        "pods",
        &volumes,
        &[
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            "spec.volumes[1].emptyDir: Forbidden: may not specify more than 1 volume type",
        ],
    );
    refused(
        "",
        "pods",
        &json!({"spec": {"dnsPolicy": "None", "restartPolicy": "Maybe", "tolerations": [{"operator": "Equal"}]}}),
        &[
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ],
    );
    let container = json!({"name": "c", "image": "i", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]});
    refused(
        "",
        "pods",
        &json!({"spec": {"restartPolicy": "Never", "initContainers": null, "containers": [container]}}),
        &[
            "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` is 'Never'",
        ],
    );
    let mut initial = container;
    initial["name"] = json!("i");
    refused(
        "",
        "pods",
        &json!({"spec": {"initContainers": [initial]}}),
        &[
            "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers",
        ],
    );
    let seccomp =
        json!({"spec": {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}}});
    let field = "spec.securityContext.seccompProfile.localhostProfile";
    let expected = format!("{field}: Invalid value: \"../x\": must not contain '..'");
    refused("", "pods", &seccomp, &[&expected]);
    let empty = json!({"spec": {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": ""}}}});
    let expected = format!("{field}: Required value: must be set when seccomp type is Localhost");
    refused("", "pods", &empty, &[&expected]);
}

#[test]
fn users_of_the_pods_own_share_no_namespace_of_the_node() {
    let spec = json!({"hostUsers": false, "hostNetwork": true, "hostPID": true, "hostIPC": true});
    let expected = ["hostNetwork", "HostPID", "HostIPC"]
        .map(|field| format!("spec.{field}: Forbidden: when `hostUsers` is false"));
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    refused("", "pods", &json!({"spec": spec}), &expected);
}

#[test]
fn what_the_node_agent_cannot_do_names_its_field() {
    let node = "is not supported by this version of the node agent";
    refused(
        "",
        "pods",
        &json!({"spec": {"resourceClaims": [{"name": "gpu"}]}}),
        &[&format!("spec.resourceClaims: Forbidden: {node}")],
    );
    let volume = json!({"name": "v", "iscsi": {"targetPortal": "s", "iqn": "iqn.2030-01.com.example:a", "lun": 0}});
    refused(
        "",
        "pods",
        &json!({"spec": {"volumes": [volume], "containers": [{"name": "a", "image": "b"}]}}),
        &[&format!("spec.volumes[0].iscsi: Forbidden: {node}")],
    );
    let field = "spec.volumes[0].gitRepo";
    for (repository, expected) in [
        (json!({"repository": "r", "directory": "a"}), vec![]),
        (
            json!({"repository": "", "directory": "/a/.."}),
            vec![
                format!("{field}.repository: Required value"),
                format!("{field}.directory: Invalid value: \"/a/..\": must be a relative path"),
                format!("{field}.directory: Invalid value: \"/a/..\": must not contain '..'"),
            ],
        ),
    ] {
        let volume = json!({"name": "v", "gitRepo": repository});
        let pod = json!({"spec": {"volumes": [volume], "containers": [{"name": "a", "image": "b"}]}});
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        refused("", "pods", &pod, &expected);
    }
    let wrong = format!("spec.volumes[0].csi.name: Invalid value: \"A_b\": {SUBDOMAIN}");
    for (name, wrong) in [
        ("", "spec.volumes[0].csi.nodePublishSecretRef.name: Required value"),
        ("A_b", wrong.as_str()),
    ] {
        let csi = json!({"driver": "d.example.com", "nodePublishSecretRef": {"name": name}});
        let pod =
            json!({"spec": {"volumes": [{"name": "v", "csi": csi}], "containers": [{"name": "a", "image": "b"}]}});
        refused("", "pods", &pod, &[wrong]);
    }
    let volume = json!({"name": "v", "hostPath": {"path": "/", "type": "X"}});
    let kinds = "\"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"";
    refused(
        "",
        "pods",
        &json!({"spec": {"volumes": [volume], "containers": [{"name": "a", "image": "b"}]}}),
        &[&format!(
            "spec.volumes[0].hostPath.type: Unsupported value: \"X\": supported values: {kinds}"
        )],
    );
}

#[test]
fn attack_19_a_sysctl_carries_one_value() {
    let sysctl = json!({"name": "kernel.shm_rmid_forced", "value": "1+kernel.core_pattern=|/x"});
    refused(
        "",
        "pods",
        &json!({"spec": {"securityContext": {"sysctls": [sysctl]}}}),
        &[
            "spec.securityContext.sysctls[0].value: Invalid value: \"1+kernel.core_pattern=|/x\": must consist of letters, digits and punctuation that separates numbers",
        ],
    );
}

#[test]
fn updates_of_pods() {
    let row = find("", "v1", "pods").unwrap();
    let mut old = with(row, &json!({}));
    row.prepare_create(old.as_mut());
    let mut image: Value = serde_json::from_slice(&old.to_json()).unwrap();
    image["spec"]["containers"][0]["image"] = json!("nginx:2");
    let mut new = row.decode(&serde_json::to_vec(&image).unwrap()).unwrap();
    row.prepare_update(new.as_mut(), old.as_ref());
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
    assert_eq!(new.metadata().generation, Some(2));
    update_refused(
        "",
        "pods",
        &json!({"spec": {"serviceAccountName": "other", "serviceAccount": "other"}}),
        &[
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n- serviceAccount: \"builder\"\n+ serviceAccount: \"other\"\n- serviceAccountName: \"builder\"\n+ serviceAccountName: \"other\"",
        ],
    );
}

#[test]
fn a_default_that_is_younger_than_the_object_is_no_change() {
    let row = find("", "v1", "pods").unwrap();
    let mut stored: Value = serde_json::from_slice(&with(row, &json!({})).to_json()).unwrap();
    stored["spec"].as_object_mut().unwrap().remove("serviceAccount");
    stored["spec"].as_object_mut().unwrap().remove("enableServiceLinks");
    let stored = serde_json::to_vec(&stored).unwrap();
    let old = row.decode_stored(&stored).unwrap();
    let mut new = row.decode(&stored).unwrap();
    new.metadata_mut()
        .labels
        .get_or_insert_default()
        .insert("a".to_owned(), "b".to_owned());
    row.set_defaults(new.as_mut());
    row.prepare_update(new.as_mut(), old.as_ref());
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
    assert!(!row.spec_changed(new.as_ref(), old.as_ref()));
}

#[test]
fn services() {
    refused(
        "",
        "services",
        &json!({"spec": {"ports": [{"port": 80}, {"port": 80, "name": "a", "nodePort": 1}]}}),
        &[
            "spec.ports[0].name: Required value",
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}",
        ],
    );
    refused(
        "",
        "services",
        &json!({"spec": {"externalIPs": ["010.000.000.005", "::ffff:1.2.3.4", "::ffff:1.2.3.04", "a", "2001:DB8:0::1"]}}),
        &[
            "spec.externalIPs[0]: Invalid value: \"010.000.000.005\": must not have leading 0s",
            "spec.externalIPs[1]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address",
            "spec.externalIPs[2]: Invalid value: \"::ffff:1.2.3.04\": must not have leading 0s",
            "spec.externalIPs[3]: Invalid value: \"a\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ],
    );
    refused("", "services", &json!({"metadata": {"name": "1st"}}), &[]);
}

#[test]
fn other_kinds() {
    refused(
        "",
        "configmaps",
        &json!({"data": {"a b": "c", "logo": "x"}}),
        &[
            "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
            "data[logo]: Invalid value: \"logo\": duplicate of key present in binaryData",
        ],
    );
    refused(
        "",
        "secrets",
        &json!({"type": "kubernetes.io/tls"}),
        &["data[tls.crt]: Required value", "data[tls.key]: Required value"],
    );
    refused(
        "",
        "secrets",
        // "[1]" instead of credentials.
        &json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "WzFd"}}),
        &[
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal array into Go \
           value of type map[string]interface {}",
        ],
    );
    update_refused(
        "",
        "secrets",
        &json!({"type": "mine"}),
        &["type: Invalid value: \"mine\": field is immutable"],
    );
    refused(
        "scheduling.k8s.io",
        "priorityclasses",
        &json!({"value": 2_000_000_000}),
        &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
    );
    refused(
        "coordination.k8s.io",
        "leases",
        &json!({"spec": {"leaseDurationSeconds": 0}}),
        &["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
    );
    refused(
        "",
        "bindings",
        &json!({"target": {"name": ""}}),
        &["target.name: Required value"],
    );
    update_refused(
        "",
        "nodes",
        &json!({"spec": {"podCIDR": "10.9.0.0/24"}}),
        &["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"],
    );
    update_refused(
        "",
        "nodes",
        &json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
        &["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"],
    );
}
