//! Validation of definitions.

use controlplane_schema::{Options, Structural};

use super::{lines, read};

fn check(schema: &str, wanted: &str) {
    let found = Structural::parse(&read(schema), "s", Options::default()).map(|_| ());
    let found = found.err().map(|errors| lines(&errors)).unwrap_or_default();
    assert_eq!(found, wanted, "{schema}");
}

/// A schema below a valid root.
fn spec(schema: &str, wanted: &str) {
    check(&format!("{{type: object, properties: {{spec: {schema}}}}}"), wanted);
}

#[test]
fn schemas_are_structural() {
    check("{}", "s.type: Required value: must not be empty at the root");
    check(
        "{type: array, items: {type: string}}",
        "s.type: Invalid value: \"array\": must be object at the root",
    );
    check(
        "{type: object, additionalProperties: {type: string}}",
        "s.additionalProperties: Forbidden: must not be used at the root",
    );
    check(
        "{type: object, nullable: true}",
        "s.nullable: Forbidden: nullable cannot be true at the root",
    );
    for (schema, wanted) in [
        (
            "{}",
            "s.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            "{type: array}",
            "s.properties[spec].items: Required value: must be specified",
        ),
        (
            "{type: array, items: {}}",
            "s.properties[spec].items.type: Required value: must not be empty for specified array items",
        ),
        (
            "{type: foo}",
            "s.properties[spec].type: Unsupported value: \"foo\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        ("{x-kubernetes-preserve-unknown-fields: true}", ""),
        ("{x-kubernetes-int-or-string: true}", ""),
        (
            "{x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}",
            "",
        ),
        (
            "{x-kubernetes-int-or-string: true, allOf: [{anyOf: [{type: integer}, {type: string}]}, {pattern: a}]}",
            "",
        ),
        (
            "{type: string, anyOf: [{type: string}]}",
            "s.properties[spec].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            "{type: string, not: {nullable: true, default: a}}",
            "s.properties[spec].not.default: Forbidden: must be undefined to be structural\ns.properties[spec].not.nullable: Forbidden: must be false to be structural",
        ),
        (
            "{type: string, pattern: '(?=a)'}",
            "s.properties[spec].pattern: Invalid value: \"(?=a)\": must be a valid regular expression, but isn't: error parsing regexp: invalid or unsupported Perl syntax: `(?=`",
        ),
        (
            "{x-kubernetes-int-or-string: true, x-kubernetes-preserve-unknown-fields: true}",
            "s.properties[spec].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
        (
            "{type: object, x-kubernetes-embedded-resource: true}",
            "s.properties[spec].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            "{type: object, x-kubernetes-preserve-unknown-fields: false}",
            "s.properties[spec].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
    ] {
        spec(schema, wanted);
    }
    check(
        "{type: object, properties: {metadata: {type: object, properties: {name: {type: string, pattern: a}}}}}",
        "",
    );
    check(
        "{type: object, properties: {metadata: {type: object, properties: {labels: {type: object}}}}}",
        "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
    );
    check(
        "{type: object, properties: {kind: {type: integer}}}",
        "s.properties[kind].type: Invalid value: \"integer\": must be string",
    );
}

#[test]
fn what_branches_speak_of_exists_outside_of_them() {
    check(
        "{type: object, allOf: [{properties: {a: {minimum: 1}}}]}",
        "s.properties[a]: Required value: because it is defined in s.allOf[0].properties[a]",
    );
}

#[test]
fn keywords_are_those_that_upstream_knows() {
    for (schema, wanted) in [
        (
            "{type: string, $ref: '#/a'}",
            "s.properties[spec].$ref: Forbidden: $ref is not supported",
        ),
        (
            "{type: string, id: a}",
            "s.properties[spec].id: Forbidden: id is not supported",
        ),
        (
            "{type: array, items: [{type: string}]}",
            "s.properties[spec].items: Forbidden: items must be a schema object and not an array",
        ),
        (
            "{type: array, uniqueItems: true, items: {type: string}}",
            "s.properties[spec].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            "{type: object, properties: {a: {type: string}}, additionalProperties: {type: string}}",
            "s.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            "{type: object, properties: {a: {type: string}}, additionalProperties: true}",
            "",
        ),
        (
            "{type: object, patternProperties: {a: {type: string}}}",
            "s.properties[spec].patternProperties: Forbidden: patternProperties is not supported",
        ),
    ] {
        spec(schema, wanted);
    }
}

#[test]
fn lists_and_maps_say_what_tells_items_apart() {
    let map = |more: &str, item: &str| format!("{{type: array, x-kubernetes-list-type: map, {more} items: {item}}}");
    for (schema, wanted) in [
        (
            "{type: string, x-kubernetes-list-type: set}".to_owned(),
            "s.properties[spec].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
        ),
        (
            "{type: array, x-kubernetes-list-type: bag, items: {type: string}}".to_owned(),
            "s.properties[spec].x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            "{type: string, x-kubernetes-map-type: atomic}".to_owned(),
            "s.properties[spec].type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
        ),
        (
            "{type: array, x-kubernetes-list-map-keys: [a], items: {type: string}}".to_owned(),
            "s.properties[spec].x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            "{type: array, x-kubernetes-list-type: set, items: {type: object}}".to_owned(),
            "s.properties[spec].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            "{type: array, x-kubernetes-list-type: set, items: {type: string, nullable: true}}".to_owned(),
            "s.properties[spec].items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        ),
        (
            map("", "{type: object}"),
            "s.properties[spec].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            map("x-kubernetes-list-map-keys: [a],", "{type: string}"),
            "s.properties[spec].items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
        ),
        (
            map("x-kubernetes-list-map-keys: [a],", "{type: object}"),
            "s.properties[spec].x-kubernetes-list-map-keys: Invalid value: [\"a\"]: entries must all be names of item properties",
        ),
        (
            map(
                "x-kubernetes-list-map-keys: [a, a],",
                "{type: object, required: [a], properties: {a: {type: string}}}",
            ),
            "s.properties[spec].x-kubernetes-list-map-keys: Invalid value: [\"a\",\"a\"]: must not contain duplicate entries",
        ),
        (
            map(
                "x-kubernetes-list-map-keys: [a],",
                "{type: object, properties: {a: {type: string}}}",
            ),
            "s.properties[spec].items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
    ] {
        spec(&schema, wanted);
    }
}

#[test]
fn defaults_are_pruned_and_valid() {
    for (schema, wanted) in [
        (
            "{type: string, default: 1}",
            "s.properties[spec].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
        ),
        (
            "{type: object, default: {a: 1}}",
            "s.properties[spec].default: Invalid value: {\"a\":1}: must not have unknown fields",
        ),
        (
            "{type: object, default: {}, properties: {a: {type: integer, default: 1}}}",
            "",
        ),
        (
            "{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true, default: {kind: A}}",
            "s.properties[spec].default.apiVersion: Required value",
        ),
        (
            "{type: object, x-kubernetes-embedded-resource: true, properties: {metadata: {type: object, properties: {name: {type: string, default: a/b}}}}}",
            "s.properties[spec].properties[metadata].properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'",
        ),
    ] {
        spec(schema, wanted);
    }
    check(
        "{type: object, properties: {kind: {type: string, default: A}}}",
        "s.properties[kind].default: Forbidden: must not be set in top-level kind",
    );
}

#[test]
fn rules_are_complete() {
    for (rule, wanted) in [
        ("{rule: 'true'}", ""),
        ("{rule: ' '}", "rule: Required value: rule is not specified"),
        (
            "{rule: 'true', message: ' '}",
            "message: Invalid value: \" \": must be non-empty if specified",
        ),
        (
            "{rule: \"a\\nb\"}",
            "message: Required value: message must be specified if rule contains line breaks",
        ),
        (
            "{rule: 'true', message: \"a\\nb\"}",
            "message: Invalid value: \"a\\nb\": must not contain line breaks",
        ),
        (
            "{rule: 'true', messageExpression: ' '}",
            "messageExpression: Required value: messageExpression must be non-empty if specified",
        ),
        (
            "{rule: 'true', reason: Foo}",
            "reason: Unsupported value: \"Foo\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        ("{rule: 'true', fieldPath: .a}", ""),
        (
            "{rule: 'true', fieldPath: .b}",
            "fieldPath: Invalid value: \".b\": must be a valid path",
        ),
    ] {
        let schema =
            format!("{{type: object, properties: {{a: {{type: string}}}}, x-kubernetes-validations: [{rule}]}}");
        let wanted = if wanted.is_empty() {
            String::new()
        } else {
            format!("s.properties[spec].x-kubernetes-validations[0].{wanted}")
        };
        spec(&schema, &wanted);
    }
}

#[test]
fn a_root_with_a_status_of_its_own_says_nothing_of_it() {
    let options = Options {
        status_subresource: true,
    };
    let found = Structural::parse(
        &read("{type: object, anyOf: [{required: [status]}], properties: {status: {type: object}}}"),
        "s",
        options,
    );
    let found = lines(&found.expect_err("anyOf at the root"));
    assert!(found.starts_with("s: Invalid value: {"), "{found}");
    assert!(found.ends_with("XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled"), "{found}");
    assert!(
        Structural::parse(
            &read("{type: object, description: d, required: [spec], properties: {spec: {type: object}}}"),
            "s",
            options
        )
        .is_ok()
    );
}
