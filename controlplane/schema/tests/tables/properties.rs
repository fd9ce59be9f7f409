//! Properties that hold for any schema and any value.

use controlplane_schema::{Options, Structural};
use proptest::prelude::*;
use serde_json::{Value, json};

const NAMES: [&str; 6] = ["a", "b", "metadata", "kind", "apiVersion", "spec"];

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9./:-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4).prop_map(|members| {
                Value::Object(
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

fn schemas() -> impl Strategy<Value = Value> {
    const FORMATS: [&str; 8] = ["date-time", "duration", "byte", "int32", "uri", "email", "isbn", "x"];
    const KINDS: [&str; 6] = ["string", "integer", "number", "boolean", "object", "array"];
    let leaf = (
        prop::sample::select(&KINDS[..]),
        prop::sample::select(&FORMATS[..]),
        any::<bool>(),
        values(),
    )
        .prop_map(|(kind, format, nullable, default)| {
            json!({
                "type": kind, "format": format, "nullable": nullable, "default": default, "maximum": 3, "minLength": 2,
                "multipleOf": 0.5, "enum": [1, "a", null, 2.5], "pattern": "^[a-z]+$",
            })
        });
    leaf.prop_recursive(4, 24, 3, |inner| {
        let members = prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner.clone(), 0..3);
        prop_oneof![
            (members, any::<bool>(), any::<bool>()).prop_map(|(properties, preserve, embedded)| {
                let mut node = json!({"type": "object", "properties": properties, "required": ["a"]});
                if preserve {
                    node["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                if embedded {
                    node["x-kubernetes-embedded-resource"] = true.into();
                }
                node
            }),
            inner.clone().prop_map(|items| json!({"type": "array", "items": items, "x-kubernetes-list-type": "set"})),
            inner.clone().prop_map(|items| {
                json!({"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})
            }),
            inner.clone().prop_map(|below| json!({"type": "object", "additionalProperties": below})),
            prop::collection::vec(inner, 1..3).prop_map(|branches| json!({
                "x-kubernetes-int-or-string": true, "anyOf": branches, "oneOf": branches, "allOf": branches,
                "not": branches[0],
            })),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_and_defaulting_twice_is_once(schema in schemas(), value in values()) {
        let schema = Structural::new(&schema).expect("structural");
        let mut once = value;
        schema.prune(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(schema.prune(&mut twice), Vec::<String>::new());
        prop_assert_eq!(&twice, &once);
        schema.drop_nulls(&mut once);
        schema.apply_defaults(&mut once);
        let mut twice = once.clone();
        schema.apply_defaults(&mut twice);
        prop_assert_eq!(&twice, &once);
    }

    #[test]
    fn any_value_is_validated_to_the_end(schema in schemas(), value in values(), old in values()) {
        let schema = Structural::new(&schema).expect("structural");
        let fresh = schema.validate(&value, None);
        let ratcheted = schema.validate(&value, Some(&old));
        prop_assert!(ratcheted.len() <= fresh.len() + 400);
        schema.validate_status(&value, &old);
        let mut value = value;
        let _ = schema.decode(&mut value);
    }

    #[test]
    fn any_json_is_checked_as_a_definition(schema in schemas(), other in values()) {
        let _ = Structural::parse(&schema, "schema", Options { status_subresource: true });
        let _ = Structural::parse(&other, "schema", Options::default());
        let _ = Structural::parse(&json!({"type": other, "properties": other, "items": other, "allOf": other}), "s", Options::default());
    }

    #[test]
    fn any_text_is_a_pattern_or_an_error(text in r"[\[\]\\(){}*+?|^$.a-cpPdwQEx0-9:<>=!,-]{0,24}") {
        let _ = controlplane_schema::pattern::compile(&text);
    }
}

#[test]
fn a_schema_that_is_too_deep_is_an_error() {
    let mut deep = json!({"type": "string"});
    for _ in 0..1_000 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let found = Structural::parse(&deep, "schema", Options::default()).expect_err("too deep");
    assert_eq!(
        super::lines(&found),
        "schema: Invalid value: \"\": OpenAPIV3Schema must not be nested deeper than 100 levels"
    );
}
