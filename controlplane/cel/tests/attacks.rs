//! Malicious expressions: each is refused or stopped, and none crashes the process.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use controlplane_cel::schema::{Field, ListKind, ObjectSchema, Schema, Shape};
use controlplane_cel::{Bindings, Environment, Error, Type, Value, view};
use proptest::prelude::*;
use serde_json::json;

fn environment() -> Environment {
    Environment::default().with("self", Type::Dyn)
}

fn refusal(text: &str) -> String {
    match environment().compile(text) {
        Ok(_) => panic!("{} bytes compiled", text.len()),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

/// Result of an expression, which must come in time.
fn run(text: &str) -> Result<String, Error> {
    let object = json!({"a": "x".repeat(1000), "list": (0..10).collect::<Vec<_>>()});
    let program = environment().compile(text).unwrap_or_else(|error| panic!("{error}"));
    let bindings = [("self", view(&object, None).expect("a view"))];
    let mut budget = 10_000_000;
    let value = program.evaluate(&bindings, &mut budget)?;
    Ok(value.type_name().to_owned())
}

/// A variable for which nobody waits any more.
struct Interrupted(AtomicU64);

impl<'a> Bindings<'a> for Interrupted {
    fn get(&self, _: &str) -> Option<Result<Value<'a>, Error>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(Ok(Value::Bool(false)))
    }

    fn is_interrupted(&self) -> bool {
        true
    }
}

#[test]
fn an_evaluation_for_which_nobody_waits_ends_within_a_hundred_rounds() {
    for text in [
        "lists.range(1000).exists(i, self)",
        "lists.range(30).exists(i, lists.range(1000).exists(j, self) || self)",
    ] {
        let program = environment().compile(text).unwrap_or_else(|error| panic!("{error}"));
        let read = Interrupted(AtomicU64::new(0));
        assert_eq!(
            program.evaluate(&read, &mut 10_000_000).err(),
            Some(Error::Cost),
            "{text}"
        );
        assert!(read.0.into_inner() <= 100, "{text}");
    }
}

#[test]
fn deep_brackets_are_refused_and_those_that_upstream_takes_work() {
    for open in ["(", "[", "{1:", "-(", "!(", "size(", "self["] {
        assert!(refusal(&open.repeat(20_000)).contains("recursion"), "{open}");
    }
    assert!(refusal(&format!("{}1{}", "(".repeat(300), ")".repeat(300))).contains("recursion"));
    let text = format!("{}1{}", "(".repeat(240), ")".repeat(240));
    assert_eq!(run(&text).as_deref(), Ok("int"));
}

#[test]
fn long_literals_are_paid_for_and_long_lists_are_not_copied() {
    let literal = format!("[{}, string(self.a)]", vec!["'x'"; 15_000].join(", "));
    let text = format!("lists.range(2000).all(i, {literal}.size() > i)");
    assert_eq!(run(&text), Err(Error::Cost));
    let text = "[lists.range(100000)].all(l, lists.range(5000).all(i, (l + [i]).size() > i && (l + [i])[100000] == i))";
    assert_eq!(run(text).as_deref(), Ok("bool"));
}

#[test]
fn long_chains_are_refused() {
    for (start, link) in [
        ("1", "+1"),
        ("self", ".a"),
        ("self", "[0]"),
        ("self", ".?a"),
        ("self", ".a()"),
        ("1", "<1"),
    ] {
        let text = format!("{start}{}", link.repeat(15_000));
        assert!(refusal(&text).contains("max recursion depth exceeded"), "{link}");
    }
    let conditions = format!("{}1", "true?1:".repeat(14_000));
    assert!(refusal(&conditions).contains("recursion"), "{}", refusal(&conditions));
    let minus = format!("{}1", "-".repeat(50_000));
    assert_eq!(run(&minus).as_deref(), Ok("int"));
}

#[test]
fn long_and_balanced_chains_of_conditions_work() {
    let text = vec!["self.list.size() > 0"; 2_000].join(" && ");
    assert_eq!(run(&text).as_deref(), Ok("bool"));
}

#[test]
fn texts_beyond_the_limit_are_refused() {
    let text = format!("'{}'", "x".repeat(100_000));
    assert!(refusal(&text).contains("expression code point size exceeds limit: size: 100002, limit 100000"));
}

#[test]
fn nested_quantifiers_stop_at_the_budget() {
    let mut text = "true".to_owned();
    for level in 0..8 {
        text = format!("self.list.all(x{level}, {text})");
    }
    assert_eq!(run(&text), Err(Error::Cost));
    let mut text = "x0".to_owned();
    for level in 0..8 {
        text = format!("self.list.map(x{level}, {text})");
    }
    assert_eq!(run(&text), Err(Error::Cost));
}

#[test]
fn chains_of_optional_macros_stay_linear() {
    let text = format!("optional.of(1){}", ".optMap(x, x + 1)".repeat(80));
    assert_eq!(run(&text).as_deref(), Ok("optional_type"));
}

#[test]
fn macros_nested_in_macros_are_bounded() {
    let mut text = "x".to_owned();
    for _ in 0..2_000 {
        text = format!("[1].map(x, {text})");
    }
    assert!(refusal(&text).contains("recursion"), "{}", refusal(&text));
}

#[test]
fn texts_and_lists_grow_only_so_far() {
    for text in [
        "self.a.replace('', self.a).replace('', self.a)",
        "lists.range(100000000).size()",
        "lists.range(9223372036854775807).size()",
        "lists.range(100000).map(x, self.a.replace('', self.a)).join()",
        "lists.range(10000).map(x, lists.range(10000)).size()",
        "lists.range(5000).map(x, self.a.split('')).size()",
    ] {
        assert_eq!(run(text), Err(Error::Cost), "{text}");
    }
    let mut doubled = "self.a".to_owned();
    for level in 0..26 {
        doubled = format!("[{doubled}].map(x{level}, x{level} + x{level})[0]");
    }
    assert!(matches!(run(&doubled), Err(Error::Cost)), "{:?}", run(&doubled));
}

#[test]
fn types_that_hold_themselves_twice_are_refused() {
    for (start, step) in [
        ("[1]", ".map(x, {x: x})"),
        ("[[]]", ".map(x, {x: x})"),
        ("[optional.none()]", ".map(x, {x: x})"),
    ] {
        let text = format!("{start}{}", step.repeat(40));
        assert!(refusal(&text).contains("types are too large"), "{}", refusal(&text));
    }
}

#[test]
fn values_that_hold_themselves_twice_cost_what_a_walk_through_them_costs() {
    let nested = |levels| format!("[1]{}", ".map(x, [dyn(x), dyn(x)])".repeat(levels));
    assert_eq!(run(&nested(40)), Err(Error::Cost));
    let text = format!(
        "{}.map(x, self.list.all(a, self.list.all(b, self.list.all(c, x == x && [x].indexOf(x) == 0))))",
        nested(16)
    );
    assert_eq!(run(&text), Err(Error::Cost));
}

#[test]
fn formats_grow_only_so_far() {
    assert!(refusal("'%.1000000f'.format([1.0])").contains("precision is too large"));
    let text = format!("'{}'.format(lists.range(2).map(x, 1.0))", "%.999f".repeat(3));
    assert!(run(&text).is_err());
    let text = format!(
        "lists.range(100000).map(x, '{}'.format([1.0,1.0,1.0,1.0])).size()",
        "%.999f".repeat(4)
    );
    assert_eq!(run(&text), Err(Error::Cost));
}

#[test]
fn patterns_are_linear_and_bounded() {
    for pattern in ["(a|aa)+$", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"] {
        assert_eq!(
            run(&format!("self.a.matches('{pattern}')")).as_deref(),
            Ok("bool"),
            "{pattern}"
        );
    }
    assert!(refusal("self.a.matches('(((a{60}){60}){60}){60}')").contains("invalid matches argument"));
    assert!(refusal("self.a.matches('a{1001}')").contains("invalid matches argument"));
    assert!(run("self.a.matches('(((a{60}){60}){60}){60}' + '')").is_err());
}

#[test]
fn patterns_that_an_expression_makes_run_out() {
    let text = "lists.range(9000).all(i, 'a'.matches('[^a]{900}' + string(i)) || true)";
    assert_eq!(run(text), Err(Error::Cost));
}

#[test]
fn brackets_within_texts_do_not_hide_levels() {
    let text = format!("{}1{}", "(size(')')+".repeat(240), ")".repeat(240));
    assert_eq!(run(&text).as_deref(), Ok("int"));
}

/// A list of objects with a name and a number, as an atomic list, a set or a map.
fn listed(kind: ListKind) -> Schema {
    let field = |json: &str, shape| {
        let (json, schema) = (json.to_owned(), Schema::new(shape));
        (
            json.clone(),
            Field {
                json,
                required: true,
                schema,
            },
        )
    };
    let fields = BTreeMap::from([field("name", Shape::Int), field("value", Shape::Int)]);
    let item = Schema::new(Shape::Object(Arc::new(ObjectSchema {
        name: "Item".to_owned(),
        fields,
    })));
    Schema::new(Shape::List {
        items: Box::new(item),
        kind,
    })
}

#[test]
fn lists_that_are_equal_in_another_order_are_compared_at_once() {
    let many = |numbers: &mut dyn Iterator<Item = i64>| {
        let items: Vec<_> = numbers
            .map(|number| json!({"name": number, "value": number % 7}))
            .collect();
        json!(items)
    };
    let (forth, back) = (many(&mut (0..40_000)), many(&mut (0..40_000).rev()));
    let other = many(&mut (1..40_001).rev());
    for kind in [ListKind::Set, ListKind::Map(vec!["name".to_owned()])] {
        let schema = listed(kind);
        let environment = Environment::default()
            .with("self", schema.as_type())
            .with("old", schema.as_type());
        let told = |text: &str, old| {
            let program = environment.compile(text).unwrap_or_else(|error| panic!("{error}"));
            let view = |value| view(value, Some(&schema)).expect("a view");
            let value = program.evaluate(&[("self", view(&forth)), ("old", view(old))], &mut 10_000_000);
            value.map(|value| value.as_bool())
        };
        assert_eq!(told("self == old", &back), Ok(Some(true)));
        assert_eq!(told("self == old", &other), Ok(Some(false)));
        assert_eq!(told("size(self + old) == 40000", &back), Ok(Some(true)));
        assert_eq!(told("size(self + old) == 40001", &other), Ok(Some(true)));
    }
}

#[test]
fn messages_of_protocol_buffers_are_refused() {
    assert!(refusal("google.protobuf.Value{string_value: 'x'}").contains("undeclared reference"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_compiles_or_is_refused(text in ".{0,80}") {
        drop(environment().compile(&text));
    }

    #[test]
    fn any_mixture_of_words_evaluates_or_fails(words in prop::collection::vec(prop::sample::select(vec![
        "self", ".", "a", "list", "(", ")", "[", "]", "{", "}", "+", "-", "*", "/", "%", "<", "==", "&&", "||", "!", "?", ":", ",",
        "1", "-9223372036854775808", "0", "2.5", "3u", "'é😀'", "b'x'", "null", "true", "x", ".map(x, ", ".all(x, ", ".filter(x, ",
        ".exists(i, x, ", ".size()", ".replace('', 'y')", ".split('')", ".substring(1)", "lists.range(3)", "duration('1h')",
        "timestamp('2023-01-01T00:00:00Z')", ".getHours('Asia/Kolkata')", "quantity('1')", "optional.of(", ".?a", "[?0]", "'%s'.format([",
        "dyn(", "string(", "int(", "in", "url('/x')", "ip('::1')", "cidr('::/0')", ".masked()", ".sort()", ".flatten(", ".slice(0, ",
    ]), 1..14)) {
        let object = json!({"a": "é", "list": [1, "x", null, {"b": []}]});
        if let Ok(program) = environment().compile(&words.concat()) {
            let bindings = [("self", view(&object, None).expect("a view"))];
            let mut budget = 100_000;
            let outcome = program.evaluate(&bindings, &mut budget);
            prop_assert_ne!(outcome.map(|value| Value::type_name(&value).to_owned()), Err(Error::Evaluation { message: "internal error".into() }));
        }
    }
}
