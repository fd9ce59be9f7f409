//! Pods of Linux and of Windows.

use serde_json::{Value, json};

use crate::refused::{pod_refused, refused};

fn spec(spec: &Value, expected: &[&str]) {
    let mut whole = json!({"containers": [{"name": "a", "image": "b"}], "volumes": null});
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    refused("", "pods", &json!({ "spec": whole }), expected);
}

#[test]
fn a_system_is_known() {
    spec(
        &json!({"os": {"name": ""}}),
        &["spec.os.name: Required value: cannot be empty"],
    );
    spec(
        &json!({"os": {"name": "plan9"}}),
        &["spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""],
    );
}

#[test]
fn what_is_not_for_windows() {
    let own = json!({
        "appArmorProfile": {"type": "Unconfined"}, "seLinuxOptions": {}, "seccompProfile": {"type": "Unconfined"}, "fsGroup": 1,
        "fsGroupChangePolicy": "Always", "sysctls": [{"name": "kernel.sem", "value": "1"}], "runAsUser": 1, "runAsGroup": 1,
        "supplementalGroups": [1], "supplementalGroupsPolicy": "Merge", "seLinuxChangePolicy": "Recursive",
    });
    let container = json!({
        "appArmorProfile": {"type": "Unconfined"}, "seLinuxOptions": {}, "seccompProfile": {"type": "Unconfined"},
        "capabilities": {}, "readOnlyRootFilesystem": false, "privileged": false, "allowPrivilegeEscalation": true,
        "procMount": "Default", "runAsUser": 1, "runAsGroup": 1, "runAsNonRoot": true,
    });
    let containers = json!([{"name": "a", "image": "b", "securityContext": container}]);
    let expected: Vec<String> = [
        "securityContext.appArmorProfile",
        "securityContext.seLinuxOptions",
        "hostUsers",
        "hostPID",
        "hostIPC",
        "securityContext.seccompProfile",
        "securityContext.fsGroup",
        "securityContext.fsGroupChangePolicy",
        "securityContext.sysctls",
        "shareProcessNamespace",
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
        "securityContext.supplementalGroups",
        "securityContext.supplementalGroupsPolicy",
        "securityContext.seLinuxChangePolicy",
        "containers[0].securityContext.appArmorProfile",
        "containers[0].securityContext.seLinuxOptions",
        "containers[0].securityContext.seccompProfile",
        "containers[0].securityContext.capabilities",
        "containers[0].securityContext.readOnlyRootFilesystem",
        "containers[0].securityContext.privileged",
        "containers[0].securityContext.allowPrivilegeEscalation",
        "containers[0].securityContext.procMount",
        "containers[0].securityContext.runAsUser",
        "containers[0].securityContext.runAsGroup",
    ]
    .iter()
    .map(|field| format!("spec.{field}: Forbidden: cannot be set for a windows pod"))
    .collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let mut pod = json!({"os": {"name": "windows"}, "hostUsers": true, "hostPID": true, "hostIPC": true,
        "shareProcessNamespace": false, "securityContext": own, "containers": containers});
    // The node's IPC sysctls must not be set either.
    pod["securityContext"]["sysctls"][0]["name"] = json!("net.core.somaxconn");
    spec(&pod, &expected);
    pod["os"] = Value::Null;
    pod["hostPID"] = json!(false);
    spec(&pod, &[]);
}

#[test]
fn what_is_only_for_windows() {
    let windows = json!({"runAsUserName": "a"});
    let containers = json!([{"name": "a", "image": "b", "securityContext": {"windowsOptions": windows}}]);
    let detail = "Forbidden: windows options cannot be set for a linux pod";
    spec(
        &json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": windows}, "containers": containers}),
        &[
            &format!("spec.securityContext.windowsOptions: {detail}"),
            &format!("spec.containers[0].securityContext.windowsOptions: {detail}"),
        ],
    );
}

#[test]
fn options_of_windows() {
    let options = |options: Value, expected: &[&str]| {
        spec(&json!({"securityContext": {"windowsOptions": options}}), expected);
    };
    let credential = "spec.securityContext.windowsOptions.gmsaCredentialSpec";
    options(
        json!({"gmsaCredentialSpecName": "a.b", "gmsaCredentialSpec": ""}),
        &[&format!(
            "{credential}: Invalid value: \"\": gmsaCredentialSpec cannot be an empty string"
        )],
    );
    let long = "a".repeat(65 * 1024);
    options(
        json!({ "gmsaCredentialSpec": long }),
        &[&format!(
            "{credential}: Invalid value: {long:?}: gmsaCredentialSpec size must be under 64 KiB"
        )],
    );
    let user = |name: &str, problems: &[&str]| {
        let field = "spec.containers[0].securityContext.windowsOptions.runAsUserName";
        let expected = problems
            .iter()
            .map(|problem| format!("{field}: Invalid value: {name:?}: runAsUserName{problem}"));
        let expected: Vec<String> = expected.collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        pod_refused(
            &json!({"securityContext": {"windowsOptions": {"runAsUserName": name}}}),
            &expected,
        );
    };
    for name in ["ContainerUser", "NT AUTHORITY\\SYSTEM", "a.example.com\\jane doe"] {
        user(name, &[]);
    }
    user("", &[" cannot be an empty string"]);
    user("a\tb", &[" cannot contain control characters"]);
    user("a\\b\\c", &[" cannot contain more than one backslash"]);
    user("a*\\b", &["'s Domain doesn't match the NetBios nor the DNS format"]);
    user("a\\", &["'s User cannot be empty"]);
    user(". .", &["'s User cannot contain only periods or spaces"]);
    user(
        "a/b",
        &["'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"],
    );
    user(
        &"a".repeat(105),
        &["'s User length must not be longer than 104 characters"],
    );
}

#[test]
fn processes_of_the_node() {
    let host = |own: bool| json!({"windowsOptions": {"hostProcess": own}});
    let two = json!([{"name": "a", "image": "b", "securityContext": host(true)}, {"name": "b", "image": "b"}]);
    spec(
        &json!({"containers": two}),
        &[
            "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
        ],
    );
    spec(
        &json!({"containers": two, "hostNetwork": true, "securityContext": host(true)}),
        &[],
    );
    spec(
        &json!({"containers": two, "securityContext": host(false), "hostNetwork": true}),
        &[
            "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: true: pod hostProcess value must be \
             identical if both are specified, was false",
            "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
        ],
    );
}

#[test]
fn signals_by_which_containers_end() {
    let signal = |os: Value, signal: &str, expected: &[&str]| {
        let containers = json!([{"name": "a", "image": "b", "lifecycle": {"stopSignal": signal}}]);
        spec(&json!({"os": os, "containers": containers}), expected);
    };
    let field = "spec.containers[0].lifecycle.stopSignal";
    for known in ["SIGUSR1", "SIGRTMIN+15", "SIGRTMAX-14"] {
        signal(json!({"name": "linux"}), known, &[]);
    }
    signal(
        Value::Null,
        "SIGUSR1",
        &[&format!(
            "{field}: Forbidden: may not be set for containers with empty `spec.os.name`"
        )],
    );
    signal(
        json!({"name": "windows"}),
        "SIGINT",
        &[&format!(
            "{field}: Unsupported value: \"SIGINT\": supported values: \"SIGKILL\", \"SIGTERM\""
        )],
    );
    for name in ["SIGRTMAX-15", "TERM", "9", "SIGRTMIN+0"] {
        let containers = json!([{"name": "a", "image": "b", "lifecycle": {"stopSignal": name}}]);
        let row = controlplane_api::find("", "v1", "pods").unwrap();
        let pod = crate::refused::with(
            row,
            &json!({"spec": {"os": {"name": "linux"}, "containers": containers, "volumes": null}}),
        );
        let errors = crate::refused::texts(&row.validate(pod.as_ref()));
        let [error] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        let first = format!("{field}: Unsupported value: {name:?}: supported values: \"SIGABRT\", \"SIGALRM\", ");
        assert!(error.starts_with(&first), "{error}");
        assert!(
            error.contains("\"SIGRTMAX\", \"SIGRTMAX-1\", \"SIGRTMAX-10\""),
            "{error}"
        );
    }
}
