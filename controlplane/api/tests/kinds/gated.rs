//! Pods with scheduling gates, and annotations of pods.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, texts, with};

/// Validation errors of an update of a pod.
fn changed(old: &Value, new: &Value) -> Vec<String> {
    let row = find("", "v1", "pods").unwrap();
    let (old, mut new) = (with(row, old), with(row, new));
    row.prepare_update(new.as_mut(), old.as_ref());
    texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new()))
}

fn key(key: &str) -> Value {
    json!({"key": key, "operator": "Exists"})
}

fn gated(affinity: Option<&Value>) -> Value {
    json!({"spec": {"schedulingGates": [{"name": "a"}], "nodeName": null, "affinity": affinity}})
}

fn required(terms: &Value) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
}

#[test]
fn a_gated_pod_waits_from_its_creation_on() {
    let row = find("", "v1", "pods").unwrap();
    let mut new = gated(None);
    new["metadata"] = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
    let mut pod = with(row, &new);
    row.prepare_create(pod.as_mut());
    let pod: Value = serde_json::from_slice(&pod.to_json()).unwrap();
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(condition["reason"], "SchedulingGated");
    assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:00Z");
}

#[test]
fn a_gated_pod_may_be_narrowed_to_fewer_nodes() {
    const TERMS: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let one = required(&json!([{"matchExpressions": [key("a")]}]));
    let narrower = required(&json!([{"matchExpressions": [key("a"), key("b")]}]));
    let other = required(&json!([{"matchExpressions": [key("b")]}]));
    let two = required(&json!([{"matchExpressions": [key("a")]}, {"matchExpressions": [key("b")]}]));
    let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [key("a")]}}]}});
    for (old, new) in [
        (None, Some(&one)),
        (Some(&one), Some(&narrower)),
        (Some(&preferred), None),
        (None, Some(&preferred)),
    ] {
        assert_eq!(
            changed(&gated(old), &gated(new)),
            Vec::<String>::new(),
            "{old:?} {new:?}"
        );
    }
    let shown = r#"{"MatchExpressions":[{"Key":"b","Operator":"Exists","Values":null}],"MatchFields":null}"#;
    let only = "only additions are allowed (no mutations or deletions)";
    assert_eq!(
        changed(&gated(Some(&one)), &gated(Some(&other))),
        [format!("{TERMS}[0]: Invalid value: {shown}: {only}")]
    );
    let counted = changed(&gated(Some(&one)), &gated(Some(&two)));
    assert!(
        counted.len() == 1
            && counted[0].ends_with("no additions/deletions to non-empty NodeSelectorTerms list are allowed"),
        "{counted:?}"
    );
    let mut chosen = gated(None);
    chosen["spec"]["nodeSelector"] = json!({"k": "v"});
    let mut both = gated(None);
    both["spec"]["nodeSelector"] = json!({"k": "v", "l": "w"});
    assert!(changed(&chosen, &both).is_empty());
    let chosen_otherwise = changed(&both, &chosen);
    assert_eq!(
        chosen_otherwise,
        [
            "spec.nodeSelector: Invalid value: {\"k\":\"v\"}: only additions to spec.nodeSelector are allowed (no \
          mutations or deletions)"
        ]
    );
    let free = |affinity: Option<&Value>| json!({"spec": {"affinity": affinity}});
    let fixed = changed(&free(None), &free(Some(&one)));
    assert!(
        fixed[0].starts_with("spec: Forbidden: pod updates may not change fields"),
        "{fixed:?}"
    );
}

#[test]
fn a_gated_pod_is_on_no_node() {
    let mut pod = gated(None);
    pod["spec"]["nodeName"] = json!("n");
    let expected = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared";
    refused("", "pods", &pod, &[expected]);
}

#[test]
fn annotations_of_pods_are_fields() {
    const ARMOR: &str = "container.apparmor.security.beta.kubernetes.io";
    let pod = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}, "spec": {"nodeName": null}});
    let cases = [
        (
            "kubernetes.io/config.mirror".to_owned(),
            "x",
            "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror \
             pod annotation is set"
                .to_owned(),
        ),
        (
            "controller.kubernetes.io/pod-deletion-cost".to_owned(),
            "+1",
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit \
             integer"
                .to_owned(),
        ),
        (
            "scheduler.alpha.kubernetes.io/tolerations".to_owned(),
            "[",
            "metadata.annotations: Invalid value: \"scheduler.alpha.kubernetes.io/tolerations\": unexpected end of JSON \
             input"
                .to_owned(),
        ),
        (
            "seccomp.security.alpha.kubernetes.io/pod".to_owned(),
            "foo",
            "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: \"foo\": must be a valid \
             seccomp profile"
                .to_owned(),
        ),
        (
            format!("{ARMOR}/nobody"),
            "runtime/default",
            format!("metadata.annotations[{ARMOR}/nobody]: Invalid value: \"nobody\": container not found"),
        ),
        (
            format!("{ARMOR}/prepare"),
            "foo",
            format!(
                "metadata.annotations[{ARMOR}/prepare]: Invalid value: \"foo\": invalid AppArmor profile name: \"foo\""
            ),
        ),
    ];
    for (key, value, expected) in &cases {
        refused("", "pods", &pod(key, value), &[expected]);
    }
    for (key, value) in [
        ("controller.kubernetes.io/pod-deletion-cost", "-7"),
        (
            "scheduler.alpha.kubernetes.io/tolerations",
            "[{\"key\": \"a\", \"operator\": \"Exists\"}]",
        ),
        ("seccomp.security.alpha.kubernetes.io/pod", "localhost/a/b"),
    ] {
        refused("", "pods", &pod(key, value), &[]);
    }
    let mirror = |value: &str| json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": value}}, "spec": {"nodeName": "n"}});
    let none = json!({"spec": {"nodeName": "n"}});
    let said = |doing: &str| {
        [format!(
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not {doing} mirror pod annotation"
        )]
    };
    assert_eq!(changed(&none, &mirror("x")), said("add"));
    assert_eq!(changed(&mirror("x"), &none), said("remove or update"));
    assert_eq!(changed(&mirror("x"), &mirror("y")), said("remove or update"));
    assert!(changed(&mirror("x"), &mirror("x")).is_empty());
}

#[test]
fn profiles_of_annotations_and_fields_agree() {
    let seccomp = |text: &str, profile: Value| {
        json!({
            "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": text}},
            "spec": {"securityContext": {"seccompProfile": profile}},
        })
    };
    let at = "spec.securityContext.seccompProfile";
    let kind = format!("{at}.type: Forbidden: seccomp type in annotation and field must match");
    let file = format!("{at}.localhostProfile: Forbidden: seccomp profile in annotation and field must match");
    let runtime = json!({"type": "RuntimeDefault"});
    let local = json!({"type": "Localhost", "localhostProfile": "b"});
    refused("", "pods", &seccomp("docker/default", runtime.clone()), &[]);
    refused("", "pods", &seccomp("unconfined", runtime.clone()), &[&kind]);
    refused("", "pods", &seccomp("localhost/a", local), &[&file]);
    let armor = json!({
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}},
        "spec": {"containers": [{"name": "a", "image": "i", "securityContext": {"appArmorProfile": runtime}}]},
    });
    let kind = "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and \
                field must match";
    refused("", "pods", &armor, &[kind]);
}

#[test]
fn profiles_of_annotations_become_fields() {
    const ARMOR: &str = "container.apparmor.security.beta.kubernetes.io";
    let row = find("", "v1", "pods").unwrap();
    let armor = |name: &str| format!("{ARMOR}/{name}");
    for (system, a, i) in [("linux", "Localhost x", "Localhost y/z"), ("windows", "none", "none")] {
        let sent = json!({
            "metadata": {"name": "p", "annotations": {
                armor("a"): "localhost/x", armor("b"): "runtime/default", armor("c"): "unconfined",
                armor("d"): "runtime/default", armor("e"): "localhost/", armor("i"): "localhost/y/z",
            }},
            "spec": {
                "os": {"name": system},
                "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}},
                "initContainers": [{"name": "i"}],
                "containers": [
                    {"name": "a"}, {"name": "b"}, {"name": "c", "securityContext": {"privileged": true}},
                    {"name": "d", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, {"name": "e"},
                ],
            },
        });
        let mut pod = row.decode(sent.to_string().as_bytes()).unwrap();
        row.set_defaults(pod.as_mut());
        row.prepare_create(pod.as_mut());
        let made: Value = serde_json::from_slice(&pod.to_json()).unwrap();
        let profile = |list: &str, index: usize| {
            let own = &made["spec"][list][index]["securityContext"]["appArmorProfile"];
            let text = |key: &str| own[key].as_str().unwrap_or_default().to_owned();
            let said = format!("{} {}", text("type"), text("localhostProfile"));
            match said.trim() {
                "" => "none".to_owned(),
                said => said.to_owned(),
            }
        };
        let found: Vec<String> = (0..5).map(|index| profile("containers", index)).collect();
        let c = if system == "linux" { "Unconfined" } else { "none" };
        // The pod has the profile of b, d has its own, and e's is invalid.
        assert_eq!(found, [a, "none", c, "Unconfined", "none"], "{system}");
        assert_eq!(profile("initContainers", 0), i, "{system}");
    }
}
