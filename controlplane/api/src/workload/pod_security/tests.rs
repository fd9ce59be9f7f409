use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{Demand, Level, Policy, Version, details, evaluate};

fn found(level: Level, version: Version, spec: &Value) -> String {
    let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
    let findings = evaluate(Demand { level, version }, &pod.metadata, &pod.spec.unwrap());
    details(&findings)
}

#[test]
fn what_restricted_says_of_a_plain_pod() {
    let plain = json!({"containers": [{"name": "nginx"}]});
    assert_eq!(
        found(Level::Restricted, Version::Latest, &plain),
        "allowPrivilegeEscalation != false (container \"nginx\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"nginx\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or container \"nginx\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or container \"nginx\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
         \"Localhost\")"
    );
    assert_eq!(found(Level::Baseline, Version::Latest, &plain), "");
    assert_eq!(found(Level::Privileged, Version::Latest, &plain), "");
}

#[test]
fn a_hardened_pod_fits() {
    let container = json!({"name": "a", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }});
    let context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let pod = json!({"containers": [container], "securityContext": context,
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "t", "projected": {"sources": []}}]});
    assert_eq!(found(Level::Restricted, Version::Latest, &pod), "");
    let mut root = pod;
    root["containers"][0]["securityContext"]["runAsUser"] = json!(0);
    root["volumes"] =
        json!([{"name": "h", "hostPath": {"path": "/"}}, {"name": "n", "nfs": {"server": "s", "path": "/"}}]);
    assert_eq!(
        found(Level::Restricted, Version::Latest, &root),
        "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\"), runAsUser=0 \
         (container \"a\" must not set runAsUser=0)"
    );
}

#[test]
fn what_baseline_refuses() {
    let pod = json!({
        "hostNetwork": true, "hostPID": true,
        "securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}],
            "seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"}},
        "initContainers": [{"name": "i", "securityContext": {"privileged": true, "procMount": "Unmasked"}}],
        "containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 81}],
            "livenessProbe": {"httpGet": {"host": "1.2.3.4", "port": 1}},
            "securityContext": {"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}}],
        "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
    });
    assert_eq!(
        found(Level::Baseline, Version::Latest, &pod),
        "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\"), \
         non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add), \
         host namespaces (hostNetwork=true, hostPID=true), hostPath volumes (volume \"v\"), \
         hostPort (container \"c\" uses hostPorts 80, 81), \
         probe or lifecycle host (container \"c\" uses probe or lifecycle host \"1.2.3.4\"), \
         privileged (container \"i\" must not set securityContext.privileged=true), \
         procMount (container \"i\" must not set securityContext.procMount to \"Unmasked\"), \
         seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"), \
         seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\"), \
         forbidden sysctls (kernel.msgmax)"
    );
    let older = found(Level::Baseline, Version::Minor(30), &pod);
    assert!(!older.contains("probe or lifecycle host"), "{older}");
}

#[test]
fn a_rule_of_baseline_holds_in_restricted_until_a_stricter_one_comes() {
    let pod = json!({"hostUsers": false, "containers": [{"name": "c", "securityContext": {
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "procMount": "Unmasked",
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "seccompProfile": {"type": "Unconfined"}}}],
        "volumes": [{"name": "v", "hostPath": {"path": "/"}}]});
    let bare = "(container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)";
    let mount = "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")";
    let profile = "seccompProfile (container \"c\" must not set securityContext.seccompProfile.type to \"Unconfined\")";
    let volumes = "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")";
    for (minor, expected) in [
        (18, format!("non-default capabilities {bare}, {mount}, {volumes}")),
        (
            21,
            format!("non-default capabilities {bare}, {mount}, {volumes}, {profile}"),
        ),
        (
            22,
            format!("{mount}, unrestricted capabilities {bare}, {volumes}, {profile}"),
        ),
        (
            35,
            format!("unrestricted capabilities {bare}, {mount}, {volumes}, {profile}"),
        ),
    ] {
        assert_eq!(
            found(Level::Restricted, Version::Minor(minor), &pod),
            expected,
            "{minor}"
        );
    }
    assert!(!found(Level::Baseline, Version::Minor(35), &pod).contains("procMount"));
}

#[test]
fn annotations_name_profiles_until_fields_do() {
    let annotations = json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/a": "localhost/x",
        "container.seccomp.security.alpha.kubernetes.io/b": "",
        "container.seccomp.security.alpha.kubernetes.io/none": "unconfined"});
    let pod = json!({"metadata": {"annotations": annotations}, "spec": {
        "securityContext": {"runAsNonRoot": true},
        "initContainers": [{"name": "b", "securityContext": {"allowPrivilegeEscalation": false}}],
        "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false}}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let found = |level, minor| {
        let version = Version::Minor(minor);
        details(&evaluate(
            Demand { level, version },
            &pod.metadata,
            pod.spec.as_ref().unwrap(),
        ))
    };
    let both = "seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/b=\"\", \
                seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")";
    for level in [Level::Baseline, Level::Restricted] {
        assert_eq!([found(level, 0), found(level, 18)], [both, both]);
    }
    assert_eq!(found(Level::Baseline, 19), "");
    assert!(found(Level::Restricted, 19).starts_with("seccompProfile (pod or containers"));
}

#[test]
fn policies_are_read_from_labels() {
    let policy = |labels: Value| {
        let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        let (policy, errors) = Policy::of(&labels);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        format!(
            "{} {} {} {}",
            policy.enforce,
            policy.audit,
            policy.warn,
            errors.join("; ")
        )
    };
    let none = "privileged:latest privileged:latest privileged:latest ";
    assert_eq!(policy(json!({"a": "b"})), none);
    assert_eq!(
        policy(json!({"pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.30"})),
        "baseline:v1.30 privileged:latest baseline:v1.30 "
    );
    assert_eq!(
        policy(json!({"pod-security.kubernetes.io/warn": "restricted"})),
        "privileged:latest privileged:latest restricted:latest "
    );
    assert_eq!(
        policy(
            json!({"pod-security.kubernetes.io/enforce": "strict", "pod-security.kubernetes.io/audit-version": "1.2"})
        ),
        "restricted:latest privileged:latest privileged:latest metadata.labels[pod-security.kubernetes.io/enforce]: Invalid \
         value: \"strict\": must be one of privileged, baseline, restricted; \
         metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\""
    );
}
