//! Tables: what a rule allows, what rules cover, and how defaults are brought up to date.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use super::policy::{Repair, compare, node_rules, wanted};
use super::{Attributes, Resource, rules};

/// `verbs groups resources [names]` with commas between values and `core` for the core group; paths begin with a slash.
fn rule(text: &str) -> PolicyRule {
    let words: Vec<&str> = text.split_whitespace().collect();
    let all = |word: &str| -> Vec<String> {
        let values = word.split(',');
        values
            .map(|value| {
                if value == "core" {
                    String::new()
                } else {
                    value.to_owned()
                }
            })
            .collect()
    };
    match words.as_slice() {
        [verbs, paths] => PolicyRule {
            verbs: all(verbs),
            non_resource_urls: Some(all(paths)),
            ..PolicyRule::default()
        },
        [verbs, groups, resources, names @ ..] => PolicyRule {
            verbs: all(verbs),
            api_groups: Some(all(groups)),
            resources: Some(all(resources)),
            resource_names: names.first().map(|names| all(names)),
            ..PolicyRule::default()
        },
        _ => panic!("{text:?} is no rule"),
    }
}

/// `verb group resource[/subresource] [name]`, or `verb /path`
fn attributes(text: &str) -> Attributes<'_> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [verb, path] => Attributes::path(verb, path),
        [verb, group, resource, name @ ..] => {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            Attributes::resource(
                verb,
                Resource {
                    group: if *group == "core" { "" } else { group },
                    resource,
                    subresource,
                    name: name.first().copied().unwrap_or_default(),
                    ..Resource::default()
                },
            )
        }
        _ => panic!("{text:?} is no action"),
    }
}

#[test]
fn a_rule_allows_what_it_names() {
    let table = "
        get core pods              | get core pods            | yes
        get core pods              | get core pods web        | yes
        get core pods              | list core pods           | no
        get,list core,apps pods    | list apps pods           | yes
        get core pods              | get apps pods            | no
        get core pods              | get core pods/log        | no
        get core pods/log          | get core pods/log        | yes
        get core pods/log          | get core pods            | no
        get core pods/*            | get core pods/log        | no
        get core */log             | get core pods/log        | yes
        get core */log             | get core pods            | no
        get * */scale              | get apps deployments/scale | yes
        get * */scale              | get apps deployments     | no
        * * *                      | escalate rbac.authorization.k8s.io roles/x y | yes
        * core *                   | get core pods/exec       | yes
        get core pods a,b          | get core pods b          | yes
        get core pods a,b          | get core pods c          | no
        get core pods a,b          | list core pods           | no
        * * *                      | get /metrics             | no
        get /metrics               | get /metrics             | yes
        get /metrics               | get /metrics/slis        | no
        get /metrics/*             | get /metrics/slis        | yes
        get /metrics/*             | get /metrics             | no
        get /met*                  | get /metrics             | yes
        * *                        | put /anything            | yes
        get /a                     | get core pods            | no
    ";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [own, action, expected] = cells.as_slice() else {
            panic!("{line}")
        };
        let allowed = rules::allows(&rule(own), &attributes(action));
        assert_eq!(if allowed { "yes" } else { "no" }, *expected, "{line}");
    }
}

#[test]
fn what_is_not_held_is_told_line_by_line() {
    let table = "
        * * * ; get core pods |
        get core pods ; get core pods |
        get core pods ; get core pods web |
        get core pods web ; get core pods | {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}
        get core pods web ; get core pods web |
        get core * ; get core pods/log |
        get core */log ; get core pods/log |
        get core pods ; get,list,watch core pods,secrets | {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}; {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}
        get core pods ; get core,apps pods a | {APIGroups:[\"apps\"], Resources:[\"pods\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}
        get /api/* ; get /api/v1 |
        get /api/* ; get /api/* |
        get /api ; get,post /api | {NonResourceURLs:[\"/api\"], Verbs:[\"post\"]}
        get core pods ; * * * | {APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}
    ";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (rest, expected) = line.split_once('|').unwrap();
        let (held, given) = rest.split_once(';').unwrap();
        let missing = rules::missing(&[rule(held)], &[rule(given)]).unwrap();
        assert_eq!(rules::describe(&missing).replace('\n', "; "), expected.trim(), "{line}");
    }
}

#[test]
fn a_role_that_says_too_much_at_once_is_not_compared() {
    let many = |letter: &str| Some((0..100).map(|at| format!("{letter}{at}")).collect());
    let huge = PolicyRule {
        api_groups: many("g"),
        resources: many("r"),
        resource_names: many("n"),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    assert_eq!(rules::missing(&[], &[huge]), Err(rules::TooMany));
}

fn on_names(count: usize) -> PolicyRule {
    PolicyRule {
        resource_names: Some((0..count).map(|at| format!("n{at}")).collect()),
        ..rule("get core pods")
    }
}

#[test]
fn attack_24_a_big_role_is_refused_in_few_words() {
    let missing = rules::missing(&[rule("list core pods")], &[on_names(20_000)]).unwrap();
    assert_eq!(missing.len(), 20_000);
    let text = rules::describe(&missing);
    assert!(text.len() < 17_000, "{}", text.len());
    let (first, last) = (text.lines().next().unwrap(), text.lines().next_back().unwrap());
    assert_eq!(
        first,
        r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["n0"], Verbs:["get"]}"#
    );
    let told = text.lines().count() - 1;
    assert_eq!(last, format!("... and {} more", 20_000 - told));
}

#[test]
fn two_big_roles_are_not_compared() {
    assert_eq!(
        rules::missing(&[on_names(10_000)], &[on_names(10_000)]),
        Err(rules::TooMany)
    );
    assert_eq!(rules::missing(&[on_names(2000)], &[on_names(2000)]), Ok(Vec::new()));
}

#[test]
fn the_defaults_are_read_and_bound() {
    let all = wanted().unwrap();
    let named = |plural: &str| -> Vec<&str> {
        let own = all.iter().filter(|wanted| wanted.plural == plural);
        own.map(|wanted| wanted.name.as_str()).collect()
    };
    let roles = named("clusterroles");
    for name in [
        "admin",
        "edit",
        "view",
        "cluster-admin",
        "system:node",
        "system:controller:job-controller",
        "system:controller:device-taint-eviction-controller",
    ] {
        assert_eq!(roles.iter().filter(|own| **own == name).count(), 1, "{name}");
    }
    for binding in all.iter().filter(|wanted| wanted.plural == "clusterrolebindings") {
        let role = binding.object["roleRef"]["name"].as_str().unwrap();
        assert!(roles.contains(&role), "{} binds a role that is not there", binding.name);
    }
    assert_eq!((named("roles").len(), named("rolebindings").len()), (10, 10));
    assert!(!roles.contains(&"system:aggregated-metrics-reader"), "metrics-server's");
    let edit = all.iter().find(|wanted| wanted.name == "edit").unwrap();
    let labels = edit.object.pointer("/metadata/labels").unwrap();
    let expected = json!({"kubernetes.io/bootstrapping": "rbac-defaults",
        "rbac.authorization.k8s.io/aggregate-to-admin": "true"});
    assert_eq!(*labels, expected);
    assert!(!node_rules().is_empty());
}

fn role(change: impl FnOnce(&mut Value)) -> Value {
    let mut role = json!({
        "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    });
    change(&mut role);
    role
}

fn at<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Value {
    value.pointer_mut(pointer).unwrap()
}

#[test]
fn what_a_default_lacks_is_added_and_the_rest_stays() {
    assert_eq!(compare(&role(|_| {}), &role(|_| {})), Repair::None);
    let more = role(|role| *at(role, "/rules/0/verbs") = json!(["get", "list", "delete"]));
    assert_eq!(compare(&role(|_| {}), &more), Repair::None);
    let relabelled = role(|role| *at(role, "/metadata/labels") = json!({"a": "other"}));
    assert_eq!(compare(&role(|_| {}), &relabelled), Repair::None);
    let Repair::Update(updated) = compare(&more, &role(|_| {})) else {
        panic!("nothing is added")
    };
    assert_eq!(updated.pointer("/rules/1/verbs"), Some(&json!(["list"])));
    assert_eq!(updated.pointer("/rules/2/verbs"), Some(&json!(["delete"])));
    let empty = role(|role| *at(role, "/rules") = json!([]));
    let kept = role(|role| {
        *at(role, "/rules") = json!([]);
        *at(
            role,
            "/metadata/annotations/rbac.authorization.kubernetes.io~1autoupdate",
        ) = json!("false");
    });
    assert!(matches!(compare(&role(|_| {}), &empty), Repair::Update(_)));
    let collecting = role(|role| role["aggregationRule"] = json!({"clusterRoleSelectors": [{}]}));
    assert_eq!(compare(&role(|_| {}), &collecting), Repair::Update(role(|_| {})));
    assert_eq!(compare(&role(|_| {}), &kept), Repair::None);
}

#[test]
fn a_default_binding_gets_its_subjects_back_and_its_role() {
    let binding =
        |role: &str, subjects: Value| json!({"metadata": {}, "roleRef": {"name": role}, "subjects": subjects});
    let group = |name: &str| json!({"kind": "Group", "name": name});
    let both = json!([group("mine"), group("theirs")]);
    let wanted = binding("a", json!([group("theirs")]));
    assert_eq!(compare(&wanted, &binding("a", both.clone())), Repair::None);
    assert_eq!(
        compare(&wanted, &binding("a", json!([group("mine")]))),
        Repair::Update(binding("a", both))
    );
    let bare = json!({"metadata": {}, "roleRef": {"name": "a"}});
    assert_eq!(compare(&wanted, &bare), Repair::Update(wanted.clone()));
    assert_eq!(compare(&wanted, &binding("b", json!([]))), Repair::Replace);
}
