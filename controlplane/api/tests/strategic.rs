//! Strategic merge patches: upstream's documented behavior as tables, and properties of every
//! patch.

use controlplane_api::patch::{PatchError, strategic};
use controlplane_api::schema::Schema;
use serde_json::{Value, json};

fn patched(message: &str, original: &Value, patch: &Value) -> Result<Value, PatchError> {
    let mut document = original.clone();
    strategic::apply(
        Schema::named(message).expect("a message of the table"),
        &mut document,
        patch,
    )?;
    Ok(document)
}

#[track_caller]
fn check(message: &str, original: &Value, patch: &Value, expected: &Value) {
    assert_eq!(&patched(message, original, patch).expect("the patch fits"), expected);
}

#[track_caller]
fn refuse(message: &str, original: &Value, patch: &Value, text: &str) -> PatchError {
    let error = patched(message, original, patch).expect_err("the patch does not fit");
    assert_eq!(error.to_string(), text);
    error
}

/// Comparing all pairs would take about 10^10 steps.
#[test]
fn attack_24_directives_of_long_lists_are_quick() {
    let names = |what: &str| -> Vec<String> { (0..100_000).map(|number| format!("{what}{number}")).collect() };
    let (kept, gone) = (names("a"), names("b"));
    check(
        "core.v1.ConfigMap",
        &json!({"metadata": {"finalizers": kept}}),
        &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": gone}}),
        &json!({"metadata": {"finalizers": kept}}),
    );
    let data: serde_json::Map<String, Value> = kept.iter().map(|key| (key.clone(), json!(""))).collect();
    check(
        "core.v1.ConfigMap",
        &json!({"data": data}),
        &json!({"data": {"$retainKeys": gone}}),
        &json!({"data": {}}),
    );
}

#[test]
fn a_budgets_selector_is_replaced() {
    check(
        "policy.v1.PodDisruptionBudget",
        &json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "minAvailable": 1}}),
        &json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}),
        &json!({"spec": {"selector": {"matchLabels": {"c": "d"}}, "minAvailable": 1}}),
    );
}

#[test]
fn containers_are_merged_by_name_and_patched_ones_come_first() {
    check(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "nginx", "image": "nginx:1"}]}),
        &json!({"containers": [{"name": "log", "image": "fluent"}]}),
        &json!({"containers": [{"name": "log", "image": "fluent"}, {"name": "nginx", "image": "nginx:1"}]}),
    );
    check(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}),
        &json!({"containers": [{"name": "b", "image": "b:2"}]}),
        &json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]}),
    );
}

#[test]
fn lists_without_a_merge_key_are_replaced() {
    check(
        "core.v1.PodSpec",
        &json!({"tolerations": [{"key": "a"}]}),
        &json!({"tolerations": [{"key": "b"}]}),
        &json!({"tolerations": [{"key": "b"}]}),
    );
    check(
        "core.v1.Container",
        &json!({"args": ["a", "b"]}),
        &json!({"args": ["c"]}),
        &json!({"args": ["c"]}),
    );
}

#[test]
fn null_deletes_and_means_nothing_where_nothing_is() {
    check(
        "core.v1.Pod",
        &json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
        &json!({"metadata": {"labels": {"a": null, "c": null}, "annotations": {"x": null, "y": "1"}}}),
        &json!({"metadata": {"labels": {"b": "2"}, "annotations": {"y": "1"}}}),
    );
}

#[test]
fn scalars_of_merged_lists_are_a_set() {
    let original = json!({"metadata": {"finalizers": ["a", "b"]}});
    check(
        "core.v1.Pod",
        &original,
        &json!({"metadata": {"finalizers": ["c", "a"]}}),
        &json!({"metadata": {"finalizers": ["c", "a", "b"]}}),
    );
    check(
        "core.v1.Pod",
        &original,
        &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
        &json!({"metadata": {"finalizers": ["b"]}}),
    );
    check(
        "core.v1.Container",
        &json!({"args": ["a", "b", "c"]}),
        &json!({"$deleteFromPrimitiveList/args": ["b"]}),
        &json!({"args": ["a", "c"]}),
    );
    let without = json!({"metadata": {"name": "x"}});
    check(
        "core.v1.Pod",
        &without,
        &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
        &without,
    );
}

#[test]
fn the_patch_directive_replaces_and_deletes() {
    let original = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
    check(
        "apps.v1.DeploymentSpec",
        &original,
        &json!({"strategy": {"$patch": "replace", "type": "Recreate"}}),
        &json!({"strategy": {"type": "Recreate"}}),
    );
    check(
        "apps.v1.DeploymentSpec",
        &original,
        &json!({"strategy": {"$patch": "delete"}}),
        &json!({"strategy": {}}),
    );
    let containers = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    check(
        "core.v1.PodSpec",
        &containers,
        &json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        &json!({"containers": [{"name": "b"}]}),
    );
    check(
        "core.v1.PodSpec",
        &containers,
        &json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        &json!({"containers": [{"name": "c"}]}),
    );
    check(
        "core.v1.PodSpec",
        &containers,
        &json!({"containers": [{"$patch": "replace"}]}),
        &json!({"containers": []}),
    );
    check(
        "core.v1.PodSpec",
        &json!({}),
        &json!({"securityContext": {"$patch": "delete"}}),
        &json!({}),
    );
}

#[test]
fn retained_keys_clear_the_others() {
    let original = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
    check(
        "apps.v1.DeploymentSpec",
        &original,
        &json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
        &json!({"strategy": {"type": "Recreate"}}),
    );
    check(
        "core.v1.PodSpec",
        &json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        &json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
        &json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
    );
    let error = refuse(
        "apps.v1.DeploymentSpec",
        &original,
        &json!({"strategy": {"$retainKeys": ["type"], "rollingUpdate": {"maxSurge": 2}}}),
        "invalid patch format of retainKeys",
    );
    assert!(matches!(error, PatchError::Malformed(_)));
}

#[test]
fn the_order_of_elements_can_be_set() {
    // Patch that kubectl apply sends when a container is added in front and another comes from an
    // injector.
    check(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "sidecar"}, {"name": "b", "image": "b:1"}]}),
        &json!({
            "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
            "containers": [{"name": "a", "image": "a:1"}],
        }),
        &json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "sidecar"}, {"name": "b", "image": "b:1"}]}),
    );
    check(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
        &json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "b", "$patch": "delete"}]}),
        &json!({"containers": [{"name": "c"}, {"name": "a"}]}),
    );
    check(
        "core.v1.Pod",
        &json!({"metadata": {"finalizers": ["1", "2", "3"]}}),
        &json!({"metadata": {"$setElementOrder/finalizers": ["3", "4", "1"], "finalizers": ["4"]}}),
        &json!({"metadata": {"finalizers": ["2", "3", "4", "1"]}}),
    );
    check(
        "core.v1.PodSpec",
        &json!({}),
        &json!({"$setElementOrder/containers": [{"name": "a"}]}),
        &json!({}),
    );
    check(
        "core.v1.PodSpec",
        &json!({}),
        &json!({"$setElementOrder/volumes": [{"name": "a"}], "volumes": [{"name": "b", "$patch": "delete"}, {"name": "a"}]}),
        &json!({"volumes": [{"name": "a"}]}),
    );
    refuse(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "a"}]}),
        &json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a"}, {"name": "b"}]}),
        "The order in patch list:\n[map[name:a] map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:b] map[name:a]]\n",
    );
}

#[test]
fn maps_of_structs_and_unknown_members_are_merged_plainly() {
    check(
        "core.v1.ResourceRequirements",
        &json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
        &json!({"limits": {"cpu": "2"}}),
        &json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
    );
    check(
        "core.v1.PodSpec",
        &json!({"unheardOf": {"a": [1], "b": 2}}),
        &json!({"unheardOf": {"a": [2]}}),
        &json!({"unheardOf": {"a": [2], "b": 2}}),
    );
}

#[test]
fn ports_of_one_number_and_two_protocols_stay() {
    check(
        "core.v1.Container",
        &json!({"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]}),
        &json!({"ports": [{"containerPort": 80}]}),
        &json!({"ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]}),
    );
}

#[test]
fn errors_are_upstreams() {
    let original = json!({"containers": [{"name": "a"}]});
    let error = refuse(
        "core.v1.PodSpec",
        &original,
        &json!({"containers": [{"image": "x", "ports": [{"containerPort": 80}], "tty": true, "stdin": null}]}),
        "map: map[image:x ports:[map[containerPort:80]] stdin:<nil> tty:true] does not contain declared merge key: name",
    );
    assert!(matches!(error, PatchError::Unmergeable(_)));
    refuse(
        "core.v1.PodSpec",
        &original,
        &json!({"containers": [{"name": "a", "$patch": "spoil"}]}),
        "unknown patch type: spoil in map: map[$patch:spoil name:a]",
    );
    refuse(
        "core.v1.PodSpec",
        &original,
        &json!({"containers": [["a"]]}),
        "lists of lists are not supported",
    );
    refuse(
        "core.v1.PodSpec",
        &original,
        &json!({"containers": [1]}),
        "list element types are not identical: [[map[name:a]] [1]]",
    );
    refuse(
        "core.v1.PodSpec",
        &original,
        &json!({"$setElementOrder/containers": "a"}),
        "expected a []interface {}, but received a string",
    );
    refuse("core.v1.PodSpec", &original, &json!([]), "invalid JSON document");
}

#[test]
fn a_new_object_is_taken_without_its_directives() {
    check(
        "core.v1.PodSpec",
        &json!({}),
        &json!({"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}, {"name": "Y", "value": null}]}]}),
        &json!({"containers": [{"name": "a", "env": [{"name": "Y"}]}]}),
    );
    check(
        "core.v1.PodSpec",
        &json!({"containers": [{"name": "a"}]}),
        &json!({"containers": "none"}),
        &json!({"containers": "none"}),
    );
}
