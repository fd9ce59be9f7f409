//! Pod-level resources, and rules that only pods have.

use serde_json::json;

use crate::refused::{pod_refused, refused};

#[test]
fn a_pod_as_a_whole_asks_for_no_less_than_its_containers() {
    let containers = json!([
        {"name": "a", "image": "b", "resources": {"requests": {"cpu": "500m", "memory": "64Mi"}, "limits": {"cpu": "3"}}},
        {"name": "b", "image": "b", "resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}},
    ]);
    let resources = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    refused(
        "",
        "pods",
        &json!({"spec": {"containers": containers, "resources": resources, "volumes": null}}),
        &[
            "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 1500m",
            "spec.resources.containers[0][cpu].limits: Invalid value: \"3\": must be less than or equal to pod limits of 2",
        ],
    );
    let resources = json!({"claims": [{"name": "x"}], "requests": {"cpu": "2", "pods": "1"},
                           "limits": {"cpu": "1", "ephemeral-storage": "1Gi", "bananas": "1"}});
    let supported = "supported values: \"cpu\", \"hugepages-\", \"memory\"";
    let errors = [
        "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
        "spec.resources.limits[bananas]: Invalid value: \"bananas\": must be a standard resource type or fully qualified",
        &format!("spec.resources.limits[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": {supported}"),
        &format!("spec.resources.requests[pods]: Unsupported value: \"pods\": {supported}"),
        "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
    ];
    refused("", "pods", &json!({"spec": {"resources": resources}}), &errors);
}

#[test]
fn a_volume_that_is_an_image_names_it() {
    let volumes = json!([{"name": "settings", "image": {}}, {"name": "scratch", "image": {"reference": "a:1", "pullPolicy": "Sometimes"}}]);
    refused(
        "",
        "pods",
        &json!({"spec": {"volumes": volumes}}),
        &[
            "spec.volumes[1].image.pullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            "spec.volumes[0].image.reference: Required value",
        ],
    );
}

#[test]
fn a_variable_in_a_file_names_a_directory_of_the_pod() {
    let from = |volume: &str, path: &str, key: &str| json!({"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": volume, "path": path, "key": key}}});
    let env = json!({"env": [from("settings", "a", "b"), from("none", "../a", "b=c"), from("scratch", "", "")]});
    let path = "spec.containers[0].env";
    let file = "valueFrom.fileKeyRef";
    pod_refused(
        &env,
        &[
            &format!(
                "{path}[1].{file}.key: Invalid value: \"b=c\": a valid environment variable name must consist only of printable ASCII characters other than '='"
            ),
            &format!("{path}[1].{file}.path: Invalid value: \"../a\": must not contain '..'"),
            &format!("{path}[2].{file}.key: Required value"),
            &format!("{path}[2].{file}.path: Required value"),
            &format!(
                "{path}[0].{file}.volumeName: Invalid value: \"settings\": referenced volume must be of type emptyDir"
            ),
            &format!("{path}[1].{file}.volumeName: Not found: \"none\""),
        ],
    );
}

#[test]
fn sources_of_one_volume_name_different_files() {
    let items = |path: &str| json!([{"key": "k", "path": path}]);
    let sources = |sources: serde_json::Value| {
        let volumes =
            json!([{"name": "settings", "projected": {"sources": sources}}, {"name": "scratch", "emptyDir": {}}]);
        json!({"spec": {"volumes": volumes}})
    };
    let path = "spec.volumes[0].projected";
    let both = json!([{"configMap": {"name": "m", "items": items("a")}}, {"secret": {"name": "s", "items": items("a")}},
                      {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}}]);
    let mut twice = vec![
        format!("{path}: Invalid value: \"s\": conflicting duplicate paths"),
        format!("{path}: Invalid value: \"a\": conflicting duplicate paths"),
    ];
    let expected: Vec<&str> = twice.iter().map(String::as_str).collect();
    refused("", "pods", &sources(both), &expected);
    let token =
        |seconds: i64, path: &str| json!([{"serviceAccountToken": {"path": path, "expirationSeconds": seconds}}]);
    twice = vec![
        format!(
            "{path}.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
        ),
        format!("{path}.path: Required value"),
    ];
    let expected: Vec<&str> = twice.iter().map(String::as_str).collect();
    refused("", "pods", &sources(token(599, "")), &expected);
    let seconds = (1_i64 << 32) + 1;
    let long = format!(
        "{path}.sources[0].serviceAccountToken.expirationSeconds: Invalid value: {seconds}: may not specify a duration larger than 2^32 seconds"
    );
    refused("", "pods", &sources(token(seconds, "t")), &[&long]);
}

#[test]
fn a_name_that_overrides_all_others_stands_alone() {
    let spec = |name: &str, more: &str| {
        let mut spec = json!({"hostnameOverride": name});
        spec[more] = true.into();
        json!({"spec": spec})
    };
    let detail = "Forbidden: may not be true when `hostnameOverride` is set";
    let name = "a.name.of.more.than.one.part";
    for other in ["hostNetwork", "setHostnameAsFQDN"] {
        refused("", "pods", &spec(name, other), &[&format!("spec.{other}: {detail}")]);
    }
    refused("", "pods", &spec(name, "shareProcessNamespace"), &[]);
    let long = "spec.hostnameOverride: Too long: may not be more than 64 bytes";
    refused(
        "",
        "pods",
        &spec(
            &"a.".repeat(33).trim_end_matches('.').replace('a', "bb"),
            "shareProcessNamespace",
        ),
        &[long],
    );
}

#[test]
fn rules_for_ends_restart_one_container_or_all() {
    let rules = |action: &str| {
        let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [42]}});
        json!({"restartPolicy": "Never", "restartPolicyRules": [rule]})
    };
    pod_refused(&rules("RestartAllContainers"), &[]);
    let known = "supported values: \"Restart\", \"RestartAllContainers\"";
    let field = "spec.containers[0].restartPolicyRules[0].action";
    for action in ["Stop", ""] {
        pod_refused(
            &rules(action),
            &[&format!("{field}: Unsupported value: {action:?}: {known}")],
        );
    }
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": []}});
    pod_refused(&json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}), &[]);
    pod_refused(
        &json!({"restartPolicyRules": vec![rule; 21]}),
        &[
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
            "spec.containers[0].restartPolicyRules: Too many: 21: must have at most 20 items",
        ],
    );
}

#[test]
fn what_a_container_mounts_and_sees_of_the_kernel() {
    let mount = |more: serde_json::Value| {
        let mut mount = json!({"name": "settings", "mountPath": "/a"});
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"volumeMounts": [mount]})
    };
    let path = "spec.containers[0].volumeMounts[0]";
    pod_refused(
        &mount(json!({"mountPropagation": "Bidirectional"})),
        &[&format!(
            "{path}.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
        )],
    );
    pod_refused(
        &mount(json!({"mountPropagation": "Sideways", "recursiveReadOnly": "Maybe"})),
        &[
            &format!(
                "{path}.mountPropagation: Unsupported value: \"Sideways\": supported values: \"Bidirectional\", \"HostToContainer\", \"None\""
            ),
            &format!(
                "{path}.recursiveReadOnly: Unsupported value: \"Maybe\": supported values: \"Disabled\", \"Enabled\", \"IfPossible\""
            ),
        ],
    );
    pod_refused(
        &mount(json!({"mountPropagation": "HostToContainer", "recursiveReadOnly": "Enabled"})),
        &[
            &format!("{path}.recursiveReadOnly: Forbidden: may only be specified when readOnly is true"),
            &format!(
                "{path}.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified"
            ),
        ],
    );
    pod_refused(
        &mount(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"})),
        &[],
    );
    pod_refused(
        &json!({"securityContext": {"procMount": "Unmasked"}}),
        &[
            "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
        ],
    );
}

const NO_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

#[test]
fn gates_of_a_pod_have_different_names() {
    refused(
        "",
        "pods",
        &json!({"spec": {"schedulingGates": [{"name": "a"}, {"name": "a"}, {"name": "b c"}]}}),
        &[
            "spec.schedulingGates[1]: Duplicate value: \"a\"",
            &format!("spec.schedulingGates[2]: Invalid value: \"b c\": {NO_NAME}"),
        ],
    );
}

#[test]
fn a_variable_of_a_field_that_is_none() {
    let field = |path: &str, expected: &str| {
        let own = "spec.containers[0].env[0].valueFrom.fieldRef";
        let env = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
        pod_refused(&json!({ "env": env }), &[&format!("{own}{expected}")]);
    };
    let converting = "error converting fieldPath: field label";
    field(
        "x.y",
        &format!(".fieldPath: Invalid value: \"x.y\": {converting} not supported: x.y"),
    );
    field(
        "spec.x['a']",
        &format!(".fieldPath: Invalid value: \"spec.x['a']\": {converting} does not support subscript: spec.x['a']"),
    );
    let known = "\"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \
        \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"";
    field(
        "status.phase",
        &format!(".fieldPath: Unsupported value: \"status.phase\": supported values: {known}"),
    );
    field(
        "metadata.labels['A b']",
        &format!(": Invalid value: \"A b\": {NO_NAME}"),
    );
}

#[test]
fn structures_are_shown_as_upstream_has_them_inside() {
    refused(
        "",
        "pods",
        &json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists", "value": "x"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "", "whenUnsatisfiable": "ScheduleAnyway"}]}}),
        &[
            "spec.tolerations[0].operator: Invalid value: {\"Key\":\"k\",\"Operator\":\"Exists\",\"Value\":\"x\",\"Effect\":\"\",\"TolerationSeconds\":null}: value must be empty when `operator` is 'Exists'",
            "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
        ],
    );
    pod_refused(
        &json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["A"]}, "seccompProfile": {"type": "Unconfined"}}}),
        &[
            "spec.containers[0].securityContext: Invalid value: {\"Capabilities\":{\"Add\":[\"A\"],\"Drop\":null},\"Privileged\":true,\"SELinuxOptions\":null,\"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\"RunAsNonRoot\":null,\"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":false,\"ProcMount\":null,\"SeccompProfile\":{\"Type\":\"Unconfined\",\"LocalhostProfile\":null},\"AppArmorProfile\":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ],
    );
    refused(
        "policy",
        "poddisruptionbudgets",
        &json!({"spec": {"minAvailable": 1, "maxUnavailable": "20%", "selector": null}}),
        &[
            "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":null,\"MaxUnavailable\":\"20%\",\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set",
        ],
    );
    refused(
        "apps",
        "statefulsets",
        &json!({"spec": {"updateStrategy": {"type": "Y", "rollingUpdate": null}}}),
        &[
            "spec.updateStrategy: Invalid value: {\"Type\":\"Y\",\"RollingUpdate\":null}: must be 'RollingUpdate' or 'OnDelete'",
        ],
    );
}

#[test]
fn what_a_pod_shares_with_its_node_it_does_not_change() {
    let spec = json!({"hostNetwork": true, "hostIPC": true, "hostPID": true, "shareProcessNamespace": true,
        "securityContext": {"fsGroupChangePolicy": "X", "supplementalGroupsPolicy": "Y", "seLinuxChangePolicy": "Z",
            "sysctls": [{"name": "net/core/somaxconn", "value": "1"}, {"name": "kernel.shmmax", "value": "1"},
                {"name": "kernel.ostype", "value": "1"}]}});
    let own = "spec.securityContext";
    refused(
        "",
        "pods",
        &json!({ "spec": spec }),
        &[
            &format!(
                "{own}.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"
            ),
            &format!(
                "{own}.sysctls[0].name: Invalid value: \"net/core/somaxconn\": may not be specified when 'hostNetwork' is true"
            ),
            &format!(
                "{own}.sysctls[1].name: Invalid value: \"kernel.shmmax\": may not be specified when 'hostIPC' is true"
            ),
            &format!(
                "{own}.fsGroupChangePolicy: Unsupported value: \"X\": supported values: \"Always\", \"OnRootMismatch\""
            ),
            &format!(
                "{own}.seLinuxChangePolicy: Unsupported value: \"Z\": supported values: \"MountOption\", \"Recursive\""
            ),
            &format!(
                "{own}.supplementalGroupsPolicy: Unsupported value: \"Y\": supported values: \"Merge\", \"Strict\""
            ),
        ],
    );
}

#[test]
fn one_way_of_spreading_is_named_once() {
    let spread = |key: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"});
    refused(
        "",
        "pods",
        &json!({"spec": {"topologySpreadConstraints": [spread("a"), spread("b"), spread("a")]}}),
        &[
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{a, DoNotSchedule}\"",
        ],
    );
}

#[test]
fn profiles_of_apparmor() {
    let profile = |profile: serde_json::Value, expected: &str| {
        let own = "securityContext.appArmorProfile";
        let expected: &[&str] = &[expected];
        let at = |path: &str| {
            expected
                .iter()
                .map(|text| format!("{path}.{own}{text}"))
                .collect::<Vec<_>>()
        };
        let patch = json!({"securityContext": {"appArmorProfile": profile}});
        let (pods, containers) = (at("spec"), at("spec.containers[0]"));
        refused("", "pods", &json!({ "spec": patch }), &[&pods[0]]);
        pod_refused(&patch, &[&containers[0]]);
    };
    let known = "supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"";
    profile(
        json!({"type": "X"}),
        &format!(".type: Unsupported value: \"X\": {known}"),
    );
    profile(
        json!({"type": "Localhost"}),
        ".localhostProfile: Required value: must be set when AppArmor type is Localhost",
    );
    profile(
        json!({"type": "Unconfined", "localhostProfile": "a"}),
        ".localhostProfile: Invalid value: \"a\": can only be set when AppArmor type is Localhost",
    );
}

#[test]
fn headers_of_probes_and_terms_of_affinity() {
    let get = json!({"port": 80, "httpHeaders": [{"name": "a b", "value": "c"}, {"name": "X-A", "value": "c"}]});
    let header = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for \
        validation is '[-A-Za-z0-9]+')";
    pod_refused(
        &json!({"readinessProbe": {"httpGet": get}}),
        &[&format!(
            "spec.containers[0].readinessProbe.httpGet.httpHeaders: Invalid value: \"a b\": {header}"
        )],
    );
    let term = json!({"topologyKey": "a", "namespaces": ["b", "A_"],
        "labelSelector": {"matchExpressions": [{"key": "k", "operator": "X"}]}});
    let path = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
        with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    refused(
        "",
        "pods",
        &json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}}),
        &[
            &format!(
                "{path}.labelSelector.matchExpressions[0].operator: Invalid value: \"X\": not a valid selector operator"
            ),
            &format!("{path}.namespace: Invalid value: \"A_\": {label}"),
        ],
    );
}

#[test]
fn a_negative_grace_period_is_taken() {
    refused("", "pods", &json!({"spec": {"terminationGracePeriodSeconds": -1}}), &[]);
}
