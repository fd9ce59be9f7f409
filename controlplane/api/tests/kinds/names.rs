//! Generated names, and hashes in names of replica sets.

use controlplane_api::Invalid;
use controlplane_api::names::{Rule, generate, of_event, pod_template_hash};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use proptest::prelude::*;
use serde_json::json;

fn template(text: &str) -> PodTemplateSpec {
    serde_json::from_str(text).unwrap()
}

#[test]
fn one_template_has_one_hash_for_ever() {
    let nginx = template(
        r#"{"metadata":{"labels":{"app":"nginx"}},"spec":{"containers":[{"name":"nginx","image":"nginx:1.14.2"}]}}"#,
    );
    let same = template(
        r#"{"spec":{"containers":[{"image":"nginx:1.14.2","name":"nginx"}],"volumes":[]},"metadata":{"labels":{"pod-template-hash":"x","app":"nginx"}}}"#,
    );
    let other = template(
        r#"{"metadata":{"labels":{"app":"nginx"}},"spec":{"containers":[{"name":"nginx","image":"nginx:1.16.1"}]}}"#,
    );
    let hash = pod_template_hash(&nginx, None);
    // A constant: a hash that changes with our version would roll every deployment.
    expect_test::expect!["5896dcd6df"].assert_eq(&hash);
    assert_eq!(hash, pod_template_hash(&same, None));
    assert_ne!(hash, pod_template_hash(&other, None));
    assert_ne!(hash, pod_template_hash(&nginx, Some(1)));
}

#[test]
fn an_event_is_named_after_its_object_where_it_can_be() {
    assert_eq!(of_event("web", "u", 255), "web.ff");
    for name in ["system:node", &"a".repeat(251)] {
        assert_eq!(of_event(name, "u", 255), "u.ff");
    }
}

#[test]
fn rules_of_names() {
    assert_eq!(Rule::Label.check("a.b", false), ["must not contain dots"]);
    assert!(Rule::Label.check("web-", true).is_empty());
    assert!(!Rule::Label.check("web-", false).is_empty());
    assert_eq!(
        Rule::Subdomain.check(&"a".repeat(254), false),
        ["must be no more than 253 bytes"]
    );
    assert_eq!(Rule::PathSegment.check("a/b", false), ["may not contain '/'"]);
    assert_eq!(Rule::PathSegment.check("..", false), ["may not be '..'"]);
}

proptest! {
    #[test]
    fn generated_names_follow_the_rules(prefix in "[a-z][a-z0-9]{0,80}-", random: u64) {
        let name = generate(&prefix, random);
        prop_assert!(name.len() <= 63);
        prop_assert_eq!(Rule::Subdomain.check(&name, false), Vec::<String>::new());
    }

    #[test]
    fn hashes_are_labels(image in "[a-z]{1,20}", collision: Option<i32>) {
        let template: PodTemplateSpec = serde_json::from_value(json!({"spec": {"containers": [{"name": "a", "image": image}]}})).unwrap();
        let hash = pod_template_hash(&template, collision);
        prop_assert!(!hash.is_empty() && hash.len() <= 10);
        prop_assert!(hash.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)));
    }
}

#[test]
fn what_cannot_be_printed_is_shown_as_go_shows_it() {
    let shown = |text: &str| Invalid::value("f", text, "d").to_string();
    for (text, quoted) in [
        ("a\u{1}b", r#""a\x01b""#),
        ("\u{0}\u{7}\u{7f}\u{200b}", r#""\x00\a\x7f\u200b""#),
        (r"\u{1} \0", r#""\\u{1} \\0""#),
        ("\n\t\"\u{1}", r#""\n\t\"\x01""#),
    ] {
        assert_eq!(shown(text), format!("f: Invalid value: {quoted}: d"));
    }
}

#[test]
fn structures_are_shown_as_gos_json_and_texts_as_they_are() {
    for (rendered, shown) in [
        (r#"{"a":"<b> & c"}"#, r#"{"a":"\u003cb\u003e \u0026 c"}"#),
        ("[\"\u{2028}\"]", r#"["\u2028"]"#),
        (r#""<b>""#, r#""<b>""#),
    ] {
        let error = Invalid::rendered("f", rendered.to_owned(), "d > e");
        assert_eq!(error.to_string(), format!("f: Invalid value: {shown}: d > e"));
    }
}
