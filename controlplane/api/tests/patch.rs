//! JSON patches and merge patches: the RFCs' examples, upstream's quirks, and a comparison with an
//! independent implementation.

use controlplane_api::patch::{PatchError, json as json_patch_of_ours, merge};
use proptest::prelude::*;
use serde_json::{Value, json};

fn patched(original: &Value, patch: &Value) -> Result<Value, PatchError> {
    let mut document = original.clone();
    json_patch_of_ours::apply(&mut document, patch)?;
    Ok(document)
}

#[test]
fn the_examples_of_rfc_6902() {
    let rows = [
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux"}]),
            json!({"baz": "qux", "foo": "bar"}),
        ),
        (
            json!({"foo": ["bar", "baz"]}),
            json!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            json!({"foo": ["bar", "qux", "baz"]}),
        ),
        (
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "remove", "path": "/baz"}]),
            json!({"foo": "bar"}),
        ),
        (
            json!({"foo": ["bar", "qux", "baz"]}),
            json!([{"op": "remove", "path": "/foo/1"}]),
            json!({"foo": ["bar", "baz"]}),
        ),
        (
            json!({"baz": "qux"}),
            json!([{"op": "replace", "path": "/baz", "value": "boo"}]),
            json!({"baz": "boo"}),
        ),
        (
            json!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
            json!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
            json!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
        ),
        (
            json!({"foo": ["all", "grass", "cows", "eat"]}),
            json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            json!({"foo": ["all", "cows", "eat", "grass"]}),
        ),
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/child", "value": {"grandchild": {}}}]),
            json!({"foo": "bar", "child": {"grandchild": {}}}),
        ),
        (
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": 10}]),
            json!({"/": 9, "~1": 10}),
        ),
        (
            json!({"foo": ["bar"]}),
            json!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            json!({"foo": ["bar", ["abc", "def"]]}),
        ),
    ];
    for (original, patch, expected) in rows {
        assert_eq!(patched(&original, &patch).as_ref(), Ok(&expected), "{patch}");
    }
}

#[test]
fn upstreams_habits() {
    let list = json!({"a": [1, 2, 3]});
    assert_eq!(
        patched(&list, &json!([{"op": "remove", "path": "/a/-1"}])),
        Ok(json!({"a": [1, 2]}))
    );
    assert_eq!(
        patched(&list, &json!([{"op": "add", "path": "/a/-1", "value": 4}])),
        Ok(json!({"a": [1, 2, 3, 4]}))
    );
    assert_eq!(
        patched(&list, &json!([{"op": "test", "path": "/b", "value": null}])),
        Ok(list.clone())
    );
    assert_eq!(
        patched(&list, &json!([{"op": "copy", "from": "/a", "path": "/b"}])),
        Ok(json!({"a": [1, 2, 3], "b": [1, 2, 3]}))
    );
    assert_eq!(
        patched(&list, &json!([{"op": "replace", "path": "/b", "value": 4}])),
        Ok(json!({"a": [1, 2, 3], "b": 4}))
    );
    assert_eq!(
        patched(&list, &json!([{"op": "copy", "from": "/c", "path": "/b"}])),
        Ok(json!({"a": [1, 2, 3], "b": null}))
    );
    assert_eq!(
        patched(&list, &json!([{"op": "replace", "path": "", "value": {"b": 4}}])),
        Ok(json!({"b": 4}))
    );
}

#[test]
fn what_does_not_fit_is_unprocessable() {
    let document = json!({"spec": {"replicas": 1}, "list": [1]});
    let rows = [
        (
            json!([{"op": "test", "path": "/spec/replicas", "value": 2}]),
            "testing value /spec/replicas failed: test failed",
        ),
        (
            json!([{"op": "add", "path": "/status/x", "value": 2}]),
            "add operation does not apply: doc is missing path: \"/status/x\": missing value",
        ),
        (
            json!([{"op": "remove", "path": "/spec/paused"}]),
            "error in remove for path: '/spec/paused': Unable to remove nonexistent key: paused: missing value",
        ),
        (json!([{"op": "spoil", "path": "/spec"}]), "Unexpected kind: spoil"),
        (
            json!([{"op": "add"}]),
            "add operation failed to decode path: missing value",
        ),
        (
            json!([{"op": "add", "path": "/list/7", "value": 1}]),
            "error in add for path: '/list/7': Unable to access invalid index: 7: invalid index referenced",
        ),
        (
            json!([{"op": "replace", "path": "/list/1", "value": 1}]),
            "replace operation does not apply: doc is missing key: /list/1: missing value",
        ),
        (
            json!([{"op": "replace", "path": "/status/x", "value": 1}]),
            "replace operation does not apply: doc is missing path: /status/x: missing value",
        ),
        (
            json!([{"op": "replace", "path": "", "value": 1}]),
            "replace operation value must be object or array",
        ),
        (
            json!([{"op": "test", "path": "/status/x", "value": 1}]),
            "test operation does not apply: is missing path: /status/x: missing value",
        ),
        (
            json!([{"op": "add", "path": "", "value": {}}]),
            "add operation does not apply: doc is missing path: \"\": missing value",
        ),
        (
            json!([{"op": "copy", "from": "", "path": "/b"}]),
            "copy operation does not apply: doc is missing from path: : missing value",
        ),
        (
            json!([{"op": "move", "from": "/spec", "path": "/status/x"}]),
            "move operation does not apply: doc is missing destination path: /status/x: missing value",
        ),
        (
            json!([{"op": "add", "path": "/list/a", "value": 1}]),
            "error in add for path: '/list/a': value was not a proper array index: 'a': strconv.Atoi: parsing \"a\": invalid syntax",
        ),
    ];
    for (patch, text) in rows {
        assert_eq!(
            patched(&document, &patch),
            Err(PatchError::Unprocessable(text.to_owned())),
            "{patch}"
        );
    }
}

#[test]
fn malformed_and_oversized_patches_are_refused() {
    assert_eq!(
        patched(&json!({}), &json!({"op": "add"})),
        Err(PatchError::Malformed(
            "json: cannot unmarshal object into Go value of type []jsonpatch.Operation".to_owned()
        ))
    );
    assert_eq!(
        patched(&json!({}), &json!(["add"])),
        Err(PatchError::Malformed(
            "json: cannot unmarshal string into Go value of type jsonpatch.Operation".to_owned()
        ))
    );
    let operations = vec![json!({"op": "add", "path": "/a", "value": 1}); 10_001];
    let error = patched(&json!({}), &Value::Array(operations)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "The allowed maximum operations in a JSON patch is 10000, got 10001"
    );
}

#[test]
fn attack_24_copies_cannot_grow_a_document_without_bound() {
    let copies: Vec<_> = (0..64)
        .map(|place| json!({"op": "copy", "from": "/a", "path": format!("/a/{place}")}))
        .collect();
    let error = patched(&json!({"a": {"b": "0123456789"}}), &Value::Array(copies)).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("Unable to complete the copy, the accumulated size increase of copy is")
    );
}

#[test]
fn attack_24_a_long_list_is_not_moved_again_and_again() {
    let moves = vec![json!({"op": "move", "from": "/x/0", "path": "/x/0"}); 5_000];
    let error = patched(&json!({"x": vec![0; 240_000]}), &Value::Array(moves)).unwrap_err();
    assert!(error.to_string().starts_with("the patch moves more than"), "{error}");
}

/// Each round nests the document a hundred levels deeper: recursive readers would overflow.
#[test]
fn attack_24_moves_do_not_nest_a_document_without_bound() {
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
    let below = format!("/x{}/d", "/a".repeat(100));
    let round = [
        json!({"op": "add", "path": "/x", "value": deep}),
        json!({"op": "move", "from": "/d", "path": below}),
        json!({"op": "move", "from": "/x", "path": "/d"}),
    ];
    let patch: Vec<_> = [json!({"op": "add", "path": "/d", "value": {}})]
        .into_iter()
        .chain(std::iter::repeat_n(round, 500).flatten())
        .collect();
    let error = patched(&json!({}), &Value::Array(patch)).unwrap_err();
    assert_eq!(error.to_string(), "json: exceeded max depth");
    let replacing = [
        json!({"op": "add", "path": "/x", "value": deep}),
        json!({"op": "replace", "path": format!("/x{}", "/a".repeat(100)), "value": deep}),
    ];
    let error = patched(&json!({}), &json!(replacing)).unwrap_err();
    assert_eq!(error.to_string(), "json: exceeded max depth");
    let whole = json!({"x": vec![vec![0; 100]; 2_000]});
    let moves = vec![json!({"op": "move", "from": "/x", "path": "/x"}); 1_000];
    let error = patched(&whole, &Value::Array(moves)).unwrap_err();
    assert!(error.to_string().starts_with("the patch moves more than"), "{error}");
}

#[test]
fn the_examples_of_rfc_7396() {
    let rows = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (
            json!({"a": {"b": "c"}}),
            json!({"a": {"b": "d", "c": null}}),
            json!({"a": {"b": "d"}}),
        ),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        // The Go library removes nulls in lists, too.
        (
            json!({"a": ["b"]}),
            json!({"a": [{"b": null, "c": 1}]}),
            json!({"a": [{"c": 1}]}),
        ),
        (
            json!({"a": {}}),
            json!({"a": [{"b": null}]}),
            json!({"a": [{"b": null}]}),
        ),
    ];
    for (mut document, patch, expected) in rows {
        merge::apply(&mut document, &patch).unwrap();
        assert_eq!(document, expected, "{patch}");
    }
    let error = merge::apply(&mut json!({}), &json!(["c"])).unwrap_err();
    assert_eq!(error, PatchError::Malformed("Invalid JSON Patch".to_owned()));
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4_i64).prop_map(Value::from),
        "[ab]{0,2}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["[a-c]", "[0-3]", Just("-".to_owned())], 1..4)
        .prop_map(|parts| format!("/{}", parts.join("/")))
}

fn operation() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]);
    (kind, path(), path(), document())
        .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
}

fn has_null_in_list(value: &Value, below: bool) -> bool {
    match value {
        Value::Null => below,
        Value::Array(items) => items.iter().any(|item| has_null_in_list(item, true)),
        Value::Object(members) => members.values().any(|member| has_null_in_list(member, below)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

proptest! {
    #[test]
    fn json_patches_agree_with_an_independent_implementation(
        original in document().prop_filter("objects and lists", |value| value.is_object() || value.is_array()),
        operations in prop::collection::vec(operation(), 0..6),
    ) {
        let patch = Value::Array(operations.clone());
        let theirs: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
        let mut expected = original.clone();
        // Its variant that reverts failed patches panics on some of them.
        let result = json_patch::patch_unsafe(&mut expected, &theirs);
        let ours = patched(&original, &patch);
        // Upstream's quirks: absent members are null for test and copy, and replace adds them; moving
        // a value into itself is left to the path check.
        let habits = operations.iter().any(|operation| {
            (operation["op"] == "test" && operation["value"].is_null())
                || ["move", "copy", "replace"].iter().any(|op| operation["op"] == *op)
        });
        if let (Ok(()), Ok(document)) = (&result, &ours) {
            prop_assert_eq!(document, &expected);
        } else {
            prop_assert!(habits || result.is_ok() == ours.is_ok(), "{:?} {:?}", result, ours);
        }
    }

    #[test]
    fn merge_patches_agree_with_an_independent_implementation(
        original in document().prop_filter("objects", Value::is_object),
        patch in document().prop_filter("objects", |value| value.is_object() && !has_null_in_list(value, false)),
    ) {
        let (mut ours, mut theirs) = (original.clone(), original);
        merge::apply(&mut ours, &patch).unwrap();
        json_patch::merge(&mut theirs, &patch);
        prop_assert_eq!(ours, theirs);
    }
}
