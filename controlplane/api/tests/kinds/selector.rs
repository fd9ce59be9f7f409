//! Label and field selectors.

use std::collections::BTreeMap;

use controlplane_api::selector::{FieldSelector, LabelSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use proptest::prelude::*;
use serde_json::json;

use crate::table;

fn labels(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[test]
fn label_selectors_match_as_upstream() {
    let cases = "
         | a=b | true
        a=b | a=b | true
        a==b | a=c | false
        a!=b | | true
        a!=b | a=b | false
        a | a= | true
        !a | a=b | false
        !a | b=c | true
        a in (b, c) | a=c | true
        a in (b,c) | | false
        a notin (b,c) | a=d | true
        a notin (b) | | true
        a= | a= | true
        a=,b=c | a=,b=c | true
        a>1 | a=2 | true
        a<1 | a=2 | false
        a>1 | a=x | false
        x.io/a=b,c | x.io/a=b,c=1 | true
        a in () | a= | true
        a in (,b) | a=b | true
        in | in=1 | true
        notin notin (in) | notin=x | true";
    for case in table(cases) {
        let parsed = LabelSelector::parse(case[0]).unwrap();
        assert_eq!(parsed.matches(&labels(case[1])).to_string(), case[2], "{case:?}");
        let again = LabelSelector::parse(&parsed.to_string()).unwrap();
        assert_eq!(again.matches(&labels(case[1])).to_string(), case[2], "{parsed}");
    }
}

#[test]
fn label_selectors_that_are_refused() {
    for text in [
        "a=b c",
        "=b",
        "a in b",
        "a in (b",
        ",",
        "a=b,",
        "!",
        "a==b==c",
        "a!b",
        "-a=b",
        "a=-b",
        "a>b",
        "a in (b c)",
    ] {
        assert!(LabelSelector::parse(text).is_err(), "{text}");
    }
    for (text, because) in [
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        (
            "a b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a=b,,c", "found ',', expected: identifier after ','"),
        ("!=a", "found '!=', expected: !, identifier, or 'end of string'"),
    ] {
        assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), because, "{text}");
    }
    for (text, begins) in [
        (
            "A/B/c",
            "unable to parse requirement: <nil>: Invalid value: \"A/B/c\": ",
        ),
        (
            "!A/B/c",
            "unable to parse requirement: <nil>: Invalid value: \"A/B/c\": ",
        ),
        (
            "a=-x",
            "unable to parse requirement: values[0][a]: Invalid value: \"-x\": ",
        ),
    ] {
        let because = LabelSelector::parse(text).unwrap_err().to_string();
        assert!(because.starts_with(begins), "{text}: {because}");
    }
}

#[test]
fn structures_match_nothing_everything_or_their_terms() {
    assert!(!LabelSelector::of(None).unwrap().matches(&labels("a=b")));
    assert!(
        LabelSelector::of(Some(&Structure::default()))
            .unwrap()
            .matches(&labels("a=b"))
    );
    let expressions =
        json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}]});
    let structure: Structure = serde_json::from_value(expressions).unwrap();
    let selector = LabelSelector::of(Some(&structure)).unwrap();
    assert!(selector.matches(&labels("a=b")) && !selector.matches(&labels("a=b,c=d")));
    assert_eq!(selector.to_string(), "a=b,c notin (d)");
}

#[test]
fn field_selectors_match_and_escape() {
    let fields = |label: &str| match label {
        "spec.nodeName" => Some("n1"),
        "status.phase" => Some("a,b=c"),
        _ => None,
    };
    let cases = r"
        spec.nodeName=n1 | true
        spec.nodeName!=n1 | false
        spec.nodeName==n1,status.phase!=x | true
        status.phase=a\,b\=c | true
        metadata.uid= | true
         | true";
    for case in table(cases) {
        assert_eq!(
            FieldSelector::parse(case[0]).unwrap().matches(fields).to_string(),
            case[1],
            "{case:?}"
        );
    }
    for text in ["a", "a=b=c", r"a=\x"] {
        assert!(FieldSelector::parse(text).is_err(), "{text}");
    }
    let selector = FieldSelector::parse("metadata.name=x,status.phase!=Failed").unwrap();
    assert_eq!(
        (selector.exact("metadata.name"), selector.exact("status.phase")),
        (Some("x"), None)
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-c=!,()<> in.]{0,40}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap().to_string(), selector.to_string());
        }
    }
}
