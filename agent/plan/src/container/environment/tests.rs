use serde_json::json;

use super::*;

fn known(variables: &[(&str, &str)]) -> Environment {
    let mut known = Environment::default();
    for (name, value) in variables {
        known.set(name, value).unwrap();
    }
    known
}

#[test]
fn references_are_expanded_as_elsewhere() {
    let known = known(&[("A", "1"), ("B", "$(A)"), ("EMPTY", "")]);
    for (text, expected) in [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y$(A)z"),
        ("$$(A)", "$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$(A)$(A$(A", "1$(A$(A"),
        ("$$$$", "$$"),
    ] {
        assert_eq!(expand(text, &known).as_deref(), Ok(expected), "{text}");
    }
    assert_eq!(expand_known("a/$(A)$$(C)", &known).as_deref(), Ok("a/1$(C)"));
    for name in ["C", "EMPTY"] {
        let missing = ReferenceError::Variable(name.to_owned());
        assert_eq!(expand_known(&format!("a/$({name})"), &known), Err(missing));
    }
}

fn built(container: serde_json::Value, image: &[String], sources: &Sources) -> Result<Environment, ReferenceError> {
    let container: Container = serde_json::from_value(container).unwrap();
    let (pod, surroundings) = (Pod::default(), Surroundings::default());
    let own = own(&pod, &container, sources, &surroundings)?;
    build(&pod, image, &own, &surroundings)
}

#[test]
fn labels_and_annotations_are_quoted_as_go_quotes() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"annotations": {
        "a": "\"q\" \\ 'é'\n\t", "b": "\u{1b}[0m\u{b}\u{a0}\u{feff}", "c": "",
        "d": "e\u{301}\u{fe0f}\u{0}",
    }}}))
    .unwrap();
    let told = field_value(&pod, "metadata.annotations", &Surroundings::default()).unwrap();
    let expected = [
        r#"a="\"q\" \\ 'é'\n\t""#,
        r#"b="\x1b[0m\v\u00a0\ufeff""#,
        r#"c="""#,
        "d=\"e\u{301}\u{fe0f}\\x00\"",
    ];
    assert_eq!(told, expected.join("\n"));
}

#[test]
fn later_values_take_the_place_of_earlier_ones() {
    let container = json!({"name": "c", "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "$(B)3"},
        {"name": "B", "value": "4"}]});
    let image = ["A=a".to_owned(), "B=b".to_owned(), "PATH=/bin".to_owned()];
    let all = built(container, &image, &Sources::default()).unwrap();
    let shown: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown.join(" "), "A=a B=4 PATH=/bin HOSTNAME= C=23");
}

#[test]
fn a_probe_sees_the_stated_values_as_they_are() {
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let container: Container = serde_json::from_value(json!({"name": "c", "env": [
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LONG", "value": "x".repeat(100_000)},
    ]}))
    .unwrap();
    let expanded = probe_command(&container, &words("-u=$(A) $(B) [$(C)] $(D) $$(A)"));
    assert_eq!(expanded, Ok(words("-u=1 $(A) [] $(D) $(A)")));
    let many = vec!["$(LONG)".to_owned(); 100];
    assert_eq!(probe_command(&container, &many), Err(ReferenceError::TooMany));
}

#[test]
fn a_resource_is_that_of_the_named_container() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
        {"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "b", "resources": {"limits": {"cpu": "2"}}},
    ]}}))
    .unwrap();
    let value = |own: Option<&str>, name: &str| {
        let own = own.and_then(|own| pods::container(&pod, own));
        let reference = serde_json::from_value(json!({"containerName": name, "resource": "limits.cpu"})).unwrap();
        resource_value(&pod, own.as_deref(), &reference, &Surroundings::default()).map_err(|error| error.to_string())
    };
    assert_eq!(value(Some("a"), ""), Ok("1".to_owned()));
    assert_eq!(value(Some("a"), "b"), Ok("2".to_owned()));
    assert_eq!(value(Some("a"), "c"), Err("container c not found".to_owned()));
    assert_eq!(value(None, "b"), Ok("2".to_owned()));
}

#[test]
fn attack_references_that_multiply_end_at_a_bound() {
    let mut env = vec![json!({"name": "V0", "value": "0123456789"})];
    for number in 1..12 {
        let before = format!("$(V{})", number - 1);
        env.push(json!({"name": format!("V{number}"), "value": before.repeat(10)}));
    }
    let container = json!({"name": "c", "env": env});
    let outcome = built(container, &[], &Sources::default());
    assert_eq!(outcome.unwrap_err(), ReferenceError::TooLong);
    // Each one fits, but not all together.
    let long = "x".repeat(100_000);
    let mut env = vec![json!({"name": "L", "value": long})];
    env.extend((0..100).map(|number| json!({"name": format!("L{number}"), "value": "$(L)"})));
    let outcome = built(json!({"name": "c", "env": env}), &[], &Sources::default());
    assert_eq!(outcome.unwrap_err(), ReferenceError::TooMany);
    assert_eq!(
        expand(&"$(".repeat(1 << 19), &Environment::default()).unwrap().len(),
        1 << 20
    );
}

#[test]
fn attack_many_variables_take_no_time() {
    // Quadratic time would be a million million comparisons.
    let image: Vec<String> = (0..1_000_000).map(|number| format!("a{number}=")).collect();
    let container = json!({"name": "c"});
    let outcome = built(container, &image, &Sources::default());
    assert_eq!(outcome.unwrap_err(), ReferenceError::TooMany);
    let image: Vec<String> = (0..60_000).map(|number| format!("a{number}=")).collect();
    assert_eq!(
        built(json!({"name": "c"}), &image, &Sources::default())
            .unwrap()
            .iter()
            .count(),
        60_002
    );
    let data = (0..60_000).map(|number| (number.to_string(), String::new())).collect();
    let object = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    let sources = Sources {
        config_maps: BTreeMap::from([("m".to_owned(), object)]),
        ..Sources::default()
    };
    let from = |prefix: &str| json!({"prefix": prefix, "configMapRef": {"name": "m"}});
    let container = json!({"name": "c", "envFrom": [from("a")]});
    assert_eq!(built(container, &[], &sources).unwrap().iter().count(), 60_002);
    let container = json!({"name": "c", "envFrom": [from("a"), from("b")]});
    assert_eq!(built(container, &[], &sources).unwrap_err(), ReferenceError::TooMany);
}

#[test]
fn a_secrets_value_may_be_any_bytes() {
    assert_eq!(text("hé".as_bytes()), "hé");
    assert_eq!(text(b"a\xff\xc3z"), "a\u{10ffff}\u{10ffc3}z");
    // Characters that stand for an escaped byte are themselves escaped.
    let escaped = "\u{10fff4}\u{10ff8f}\u{10ffbf}\u{10ffbf}";
    assert_eq!(text("\u{10ffff}".as_bytes()), escaped);
}
