//! YAML bodies: upstream's interpretation, errors, and limits.

use std::fmt::Write as _;

use controlplane_api::yaml::{self, MAX_DEPTH};
use proptest::prelude::*;
use serde_json::{Value, json};

fn value(text: &str) -> Value {
    yaml::to_json(text.as_bytes()).expect("the document can be read").value
}

fn refused(text: &str) -> String {
    yaml::to_json(text.as_bytes())
        .expect_err("the document cannot be read")
        .to_string()
}

#[test]
fn a_manifest_reads_as_its_json() {
    let text = "\
# a comment
apiVersion: v1
kind: ConfigMap
metadata:
  name: web   # another
  labels: {app: web, \"on\": 'yes'}
data:
  literal: |
    line 1
      line 2
  folded: >-
    one
    two
  quoted: \"a\\tb\"
  number: \"1\"
  mode: 0644
  switch: on
  nothing:
  list: [1, 2.5, -3, true, ~]
";
    assert_eq!(
        value(text),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "web", "labels": {"app": "web", "on": "yes"}},
            "data": {
                "literal": "line 1\n  line 2\n",
                "folded": "one two",
                "quoted": "a\tb",
                "number": "1",
                "mode": 420,
                "switch": true,
                "nothing": null,
                "list": [1, 2.5, -3, true, null],
            },
        })
    );
}

#[test]
fn json_is_yaml() {
    let document = json!({"a": [1, {"b": null}], "c": "x\"y\n", "d": {}, "e": [], "f": 1.5});
    assert_eq!(value(&document.to_string()), document);
    assert_eq!(value(&serde_json::to_string_pretty(&document).unwrap()), document);
    assert_eq!(value(""), Value::Null);
    assert_eq!(value("---\na: 1\n...\n"), json!({"a": 1}));
}

#[test]
fn keys_become_strings() {
    assert_eq!(
        value("1: a\ntrue: b\ny: c\n1.5: d"),
        json!({"1": "a", "true": "c", "1.5": "d"})
    );
    assert_eq!(
        refused("[a]: 1"),
        "yaml: line 1: unsupported map key: null, a list or a map"
    );
}

#[test]
fn anchors_aliases_and_merge_keys_are_expanded() {
    let text = "\
base: &base {a: 1, b: 2}
list: [&x 5, *x]
one: {<<: *base, b: 3}
two:
  <<: [{c: 4}, *base]
  a: 9
";
    assert_eq!(
        value(text),
        json!({
            "base": {"a": 1, "b": 2},
            "list": [5, 5],
            "one": {"a": 1, "b": 3},
            "two": {"a": 9, "b": 2, "c": 4},
        })
    );
}

#[test]
fn tags_decide() {
    assert_eq!(
        value("a: !!str 1\nb: !!int '7'\nc: !!float 3\nd: ! x"),
        json!({"a": "1", "b": 7, "c": 3, "d": "x"})
    );
    assert_eq!(refused("a: !!int x"), "yaml: line 1: the value does not fit its tag");
}

#[test]
fn duplicate_keys_are_reported_with_their_lines() {
    let yaml = yaml::to_json(b"a: 1\nspec:\n  containers:\n  - name: x\n    name: z\na: 2\na: 3\n").unwrap();
    let said: Vec<String> = yaml.duplicates.iter().map(ToString::to_string).collect();
    let expected =
        [(5, "name"), (6, "a"), (7, "a")].map(|(line, key)| format!("line {line}: key {key:?} already set in map"));
    assert_eq!(said, expected);
    assert_eq!(yaml.value, json!({"a": 3, "spec": {"containers": [{"name": "z"}]}}));
}

#[test]
fn of_several_documents_the_first_counts() {
    for text in ["a: 1\n---\nb: 2", "---\na: 1\n...\n---\n- [", "a: 1\n--- *nowhere"] {
        assert_eq!(yaml::to_json(text.as_bytes()).unwrap().value, json!({"a": 1}), "{text}");
    }
    assert!(refused("a: 1\n]\n---\nb: 2").starts_with("yaml: line "));
}

#[test]
fn what_cannot_be_read_says_where() {
    assert!(refused("a: [1\nb: 2").starts_with("yaml: line "));
    assert!(refused("a: *nowhere").starts_with("yaml: line 1: "));
    assert_eq!(
        refused("a: .inf"),
        "yaml: line 1: json: unsupported value: not a finite number"
    );
    assert!(yaml::to_json(b"a: \xff").is_err());
}

#[test]
fn attack_24_aliases_do_not_explode() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").unwrap();
    }
    assert!(refused(&text).contains("excessive aliasing"));
    let long = format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
    assert!(refused(&long).contains("excessive aliasing"));
    assert!(refused("a: &a [*a]").contains("anchor"));
}

#[test]
fn attack_24_depth_and_width_are_bounded() {
    for nested in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
        assert!(refused(&nested).starts_with("yaml: line 1: "));
    }
    assert!(refused(&format!("[{}]", "0,".repeat(1_500_000))).contains("values"));
    let deepest = format!("{}1{}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
    assert!(yaml::to_json(deepest.as_bytes()).is_ok());
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-a-c0-9:\\[\\]{},&*!|>'\"# \\n\\t<.?%@]{0,80}") {
        drop(yaml::to_json(text.as_bytes()));
    }

    #[test]
    fn every_json_document_reads_as_itself(document in document()) {
        prop_assert_eq!(value(&document.to_string()), document);
    }
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z:\\- ]{1,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
