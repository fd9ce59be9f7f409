//! Pruning, defaulting and validation of values.

use controlplane_schema::Structural;

use super::{lines, read};

fn structural(text: &str) -> Structural {
    Structural::new(&read(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A schema below `spec`, which every case has.
fn spec(text: &str) -> Structural {
    structural(&format!("{{type: object, properties: {{spec: {text}}}}}"))
}

#[test]
fn what_a_schema_does_not_specify_is_pruned() {
    for (schema, value, wanted, dropped) in [
        (
            "{type: object, properties: {a: {type: string}}}",
            "{a: x, b: 1}",
            "{a: x}",
            "spec.b",
        ),
        ("{type: object}", "{a: {b: 1}, c: 1}", "{}", "spec.a spec.c"),
        (
            "{type: object, additionalProperties: {type: object}}",
            "{a: {b: 1}}",
            "{a: {}}",
            "spec.a.b",
        ),
        (
            "{type: object, additionalProperties: true}",
            "{a: {b: 1}, c: [{d: 1}]}",
            "{a: {}, c: [{}]}",
            "spec.a.b spec.c[0].d",
        ),
        (
            "{type: array, items: {type: object, properties: {a: {}}}}",
            "[{a: 1}, {b: 2}]",
            "[{a: 1}, {}]",
            "spec[1].b",
        ),
        (
            "{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: object}}}",
            "{a: {b: 1}, c: {d: 1}}",
            "{a: {}, c: {d: 1}}",
            "spec.a.b",
        ),
        (
            "{type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}",
            "{apiVersion: v1, kind: Pod, metadata: {x: 1}, spec: {b: 1}, other: 1}",
            "{apiVersion: v1, kind: Pod, metadata: {x: 1}, spec: {}}",
            "spec.other spec.spec.b",
        ),
        (
            "{type: object, properties: {metadata: {type: object}}}",
            "{metadata: {name: x}}",
            "{metadata: {}}",
            "spec.metadata.name",
        ),
        ("{type: string}", "5", "5", ""),
    ] {
        let mut object = read(&format!(
            "{{apiVersion: g/v1, kind: K, metadata: {{name: a}}, spec: {value}}}"
        ));
        let found = spec(schema).prune(&mut object);
        assert_eq!(object["spec"], read(wanted), "{schema} {value}");
        assert_eq!(found.join(" "), dropped, "{schema} {value}");
        assert_eq!(object["metadata"]["name"], "a");
    }
}

#[test]
fn defaults_and_nulls_are_as_upstream() {
    for (schema, value, wanted) in [
        (
            "{type: object, properties: {a: {type: string, default: x}}}",
            "{}",
            "{a: x}",
        ),
        (
            "{type: object, properties: {a: {type: string, default: x}}}",
            "{a: null}",
            "{a: x}",
        ),
        (
            "{type: object, properties: {a: {type: string, default: x, nullable: true}}}",
            "{a: null}",
            "{a: null}",
        ),
        ("{type: object, properties: {a: {type: string}}}", "{a: null}", "{}"),
        (
            "{type: object, properties: {a: {type: string, nullable: true}}}",
            "{a: null}",
            "{a: null}",
        ),
        (
            "{type: object, properties: {a: {type: object, default: {}, properties: {b: {type: integer, default: 1}}}}}",
            "{}",
            "{a: {b: 1}}",
        ),
        (
            "{type: array, items: {type: integer, default: 3}}",
            "[null, 1]",
            "[3, 1]",
        ),
        (
            "{type: array, items: {type: object, properties: {b: {type: integer, default: 1}}}}",
            "[{}]",
            "[{b: 1}]",
        ),
        (
            "{type: object, additionalProperties: {type: integer, default: 3}}",
            "{a: null, b: 1}",
            "{a: 3, b: 1}",
        ),
        (
            "{type: object, additionalProperties: {type: object, properties: {b: {type: integer, default: 1}}}}",
            "{x: {}}",
            "{x: {b: 1}}",
        ),
    ] {
        let schema_of = spec(schema);
        let mut object = read(&format!("{{spec: {value}}}"));
        schema_of.decode(&mut object).expect("no metadata inside");
        schema_of.apply_defaults(&mut object);
        assert_eq!(object["spec"], read(wanted), "{schema} {value}");
    }
}

#[test]
fn metadata_inside_objects_is_coerced() {
    let embedded =
        spec("{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}");
    let mut object = read(
        "{spec: {apiVersion: v1, kind: Pod, metadata: {name: a, foo: 1, labels: {x: y}, creationTimestamp: null}}}",
    );
    assert_eq!(embedded.decode(&mut object).expect("coerced"), ["spec.metadata.foo"]);
    assert_eq!(
        object,
        read("{spec: {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {x: y}}}}")
    );
    let mut wrong = read("{spec: {apiVersion: v1, kind: Pod, metadata: {labels: {x: 1}}}}");
    assert_eq!(
        embedded.decode(&mut wrong).expect_err("a number").to_string(),
        "spec.metadata: Invalid value: {\"labels\":{\"x\":1}}: json: cannot unmarshal number into Go struct field \
         ObjectMeta.labels of type string"
    );
    let found = embedded.validate(
        &read("{spec: {apiVersion: a/b/c, kind: '', metadata: {name: a/b, labels: {x: '?'}}}}"),
        None,
    );
    assert_eq!(
        lines(&found),
        "spec.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c\n\
         spec.kind: Invalid value: \"\": must not be empty\n\
         spec.metadata.name: Invalid value: \"a/b\": may not contain '/'\n\
         spec.metadata.labels: Invalid value: \"?\": a valid label must be an empty string or consist of alphanumeric \
         characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
         'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
    );
}

#[test]
fn values_are_refused_in_upstreams_words() {
    for (schema, value, wanted) in [
        (
            "{type: string}",
            "1",
            "spec: Invalid value: \"integer\": spec in body must be of type string: \"integer\"",
        ),
        (
            "{type: string}",
            "1.5",
            "spec: Invalid value: \"number\": spec in body must be of type string: \"number\"",
        ),
        (
            "{type: string}",
            "null",
            "spec: Invalid value: \"null\": spec in body must be of type string: \"null\"",
        ),
        (
            "{type: object}",
            "[]",
            "spec: Invalid value: \"array\": spec in body must be of type object: \"array\"",
        ),
        ("{type: integer}", "1.0", ""),
        (
            "{type: integer}",
            "1.5",
            "spec: Invalid value: \"number\": spec in body must be of type integer: \"number\"\n<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec",
        ),
        ("{type: number}", "1", ""),
        (
            "{type: integer, format: int32}",
            "4294967296",
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec",
        ),
        (
            "{type: integer, minimum: 2}",
            "1",
            "spec: Invalid value: 1: spec in body should be greater than or equal to 2",
        ),
        (
            "{type: integer, minimum: 1, exclusiveMinimum: true}",
            "1",
            "spec: Invalid value: 1: spec in body should be greater than 1",
        ),
        (
            "{type: number, maximum: 1.5}",
            "2.5",
            "spec: Invalid value: 2.5: spec in body should be less than or equal to 1.5",
        ),
        (
            "{type: number, maximum: 2, exclusiveMaximum: true}",
            "2",
            "spec: Invalid value: 2: spec in body should be less than 2",
        ),
        (
            "{type: integer, multipleOf: 5}",
            "7",
            "spec: Invalid value: 7: spec in body should be a multiple of 5",
        ),
        (
            "{type: string, maxLength: 2}",
            "abc",
            "spec: Too long: may not be more than 2 bytes",
        ),
        ("{type: string, maxLength: 2}", "éé", ""),
        (
            "{type: string, minLength: 2}",
            "a",
            "spec: Invalid value: \"a\": spec in body should be at least 2 chars long",
        ),
        (
            "{type: string, pattern: ^a$}",
            "b",
            "spec: Invalid value: \"b\": spec in body should match '^a$'",
        ),
        (
            "{type: string, enum: [a, b]}",
            "c",
            "spec: Unsupported value: \"c\": supported values: \"a\", \"b\"",
        ),
        (
            "{type: integer, enum: [1, 2]}",
            "3",
            "spec: Unsupported value: 3: supported values: \"1\", \"2\"",
        ),
        (
            "{type: string, nullable: true, enum: [a]}",
            "null",
            "spec: Unsupported value: null: supported values: \"a\"",
        ),
        (
            "{type: array, maxItems: 1, items: {type: integer}}",
            "[1, 2]",
            "spec: Too many: 2: must have at most 1 items",
        ),
        (
            "{type: array, minItems: 1, items: {type: integer}}",
            "[]",
            "spec: Invalid value: 0: spec in body should have at least 1 items",
        ),
        (
            "{type: array, items: {type: integer}}",
            "[a]",
            "spec[0]: Invalid value: \"string\": spec[0] in body must be of type integer: \"string\"",
        ),
        (
            "{type: object, maxProperties: 1, additionalProperties: {type: integer}}",
            "{a: 1, b: 2}",
            "spec: Too many: 2: must have at most 1 items",
        ),
        (
            "{type: object, minProperties: 1, additionalProperties: {type: integer}}",
            "{}",
            "spec: Invalid value: 0: spec in body should have at least 1 properties",
        ),
        (
            "{type: object, additionalProperties: {type: integer}}",
            "{a: x}",
            "spec.a: Invalid value: \"string\": spec.a in body must be of type integer: \"string\"",
        ),
        (
            "{type: object, required: [a], properties: {a: {type: string}}}",
            "{}",
            "spec.a: Required value",
        ),
        (
            "{x-kubernetes-int-or-string: true}",
            "true",
            "spec: Invalid value: \"boolean\": spec in body must be of type integer,string: \"boolean\"",
        ),
        ("{x-kubernetes-int-or-string: true}", "5", ""),
        ("{x-kubernetes-int-or-string: true}", "5%", ""),
        (
            "{type: object, properties: {a: {type: integer}, b: {type: integer}}, oneOf: [{required: [a]}, {required: [b]}]}",
            "{a: 1, b: 1}",
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ),
        (
            "{type: object, properties: {a: {type: integer}, b: {type: integer}}, oneOf: [{required: [a]}, {required: [b]}]}",
            "{}",
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid\nspec.a: Required value",
        ),
        (
            "{type: string, anyOf: [{pattern: ^a}, {minLength: 3}]}",
            "b",
            "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)\nspec: Invalid value: \"b\": spec in body should match '^a'",
        ),
        (
            "{type: string, allOf: [{pattern: ^a}, {minLength: 1}]}",
            "b",
            "spec: Invalid value: \"b\": spec in body should match '^a'\n<nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf)",
        ),
        (
            "{type: string, not: {pattern: ^b}}",
            "b",
            "<nil>: Invalid value: \"\": \"spec\" must not validate the schema (not)",
        ),
        (
            "{type: array, x-kubernetes-list-type: set, items: {type: string}}",
            "[a, b, a, a]",
            "spec[2]: Duplicate value: \"a\"",
        ),
        (
            "{type: array, x-kubernetes-list-type: set, items: {type: integer, nullable: true}}",
            "[null, 1, null]",
            "spec[2]: Duplicate value: null",
        ),
        (
            "{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, properties: {k: {type: string}}}}",
            "[{k: a}, {k: a}, {}, {}]",
            "spec[1]: Duplicate value: {\"k\":\"a\"}\nspec[3]: Duplicate value: {}",
        ),
    ] {
        let object = read(&format!("{{spec: {value}}}"));
        assert_eq!(lines(&spec(schema).validate(&object, None)), wanted, "{schema} {value}");
    }
}

#[test]
fn what_was_wrong_before_and_has_not_changed_is_taken() {
    let keyed = "{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, \
                 properties: {k: {type: string}, v: {type: integer, maximum: 5}}}}";
    let nested = "{type: object, properties: {a: {type: integer, maximum: 5}, b: {type: integer}}}";
    for (schema, old, new, wanted) in [
        (nested, "{a: 9}", "{a: 9, b: 1}", ""),
        (
            nested,
            "{a: 9}",
            "{a: 8}",
            "spec.a: Invalid value: 8: spec.a in body should be less than or equal to 5",
        ),
        (
            nested,
            "{}",
            "{a: 9}",
            "spec.a: Invalid value: 9: spec.a in body should be less than or equal to 5",
        ),
        (
            keyed,
            "[{k: a, v: 9}, {k: b, v: 1}]",
            "[{k: b, v: 2}, {k: a, v: 9}]",
            "",
        ),
        (
            keyed,
            "[{k: a, v: 9}]",
            "[{k: c, v: 9}]",
            "spec[0].v: Invalid value: 9: spec[0].v in body should be less than or equal to 5",
        ),
        // Items without keys are not correlated.
        (
            "{type: array, items: {type: integer, maximum: 5}}",
            "[9, 1]",
            "[9, 2]",
            "spec[0]: Invalid value: 9: spec[0] in body should be less than or equal to 5",
        ),
        ("{type: array, items: {type: integer, maximum: 5}}", "[9]", "[9]", ""),
        (
            "{type: array, x-kubernetes-list-type: set, items: {type: string}}",
            "[a, a]",
            "[a, a, b, b]",
            "",
        ),
        (
            "{type: object, properties: {a: {type: integer}, b: {type: integer}}, allOf: [{properties: {a: {maximum: 5}}}]}",
            "{a: 9}",
            "{a: 9, b: 1}",
            "spec.a: Invalid value: 9: spec.a in body should be less than or equal to 5\n\
             <nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf). None validated",
        ),
    ] {
        let (old, new) = (
            read(&format!("{{spec: {old}}}")),
            read(&format!("{{spec: {new}, other: 1}}")),
        );
        assert_eq!(
            lines(&spec(schema).validate(&new, Some(&old))),
            wanted,
            "{schema} {new}"
        );
    }
}

#[test]
fn a_status_is_checked_alone() {
    let schema = structural(
        "{type: object, properties: {spec: {type: string}, status: {type: object, properties: {a: {type: integer}}}}}",
    );
    let found = schema.validate_status(&read("{spec: 1, status: {a: x}}"), &read("{spec: 1, status: {a: 1}}"));
    assert_eq!(
        lines(&found),
        "status.a: Invalid value: \"string\": a in body must be of type integer: \"string\""
    );
}

#[test]
fn fields_are_found_by_their_path() {
    let schema = structural(
        "{type: object, properties: {spec: {type: object, properties: {color: {type: string}, m: {type: object, additionalProperties: {type: string}}}}}}",
    );
    assert_eq!(schema.field(".spec.color").expect("a field").0, "spec.color");
    assert_eq!(schema.root().field(".spec.m['a.b']").expect("a field").0, "spec.m[a.b]");
    for (path, wanted) in [
        (".spec.x", "does not refer to a valid field"),
        (".spec['color']", "array notation is not allowed"),
        (".spec.", "unexpected end of JSON path"),
        ("spec", "expected [ or . but got: spec"),
    ] {
        assert_eq!(schema.field(path).expect_err("no field").to_string(), wanted, "{path}");
    }
}
