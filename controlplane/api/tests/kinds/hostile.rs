//! Replaces every value of every fixture by an unexpected one: it must be rejected or accepted
//! without a panic.

use controlplane_api::KINDS;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::every::fixture;

/// JSON pointers of every value inside a value.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(member, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn strange() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(i64::MAX),
        json!(1.5),
        json!(""),
        json!("../é\u{0}%2f"),
        json!("x".repeat(300)),
        json!({}),
        json!([]),
        json!([null]),
        json!([{}]),
        json!({"": ""}),
    ]
}

#[test]
fn no_value_makes_a_kind_worse_than_refused() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut borne = 0;
    for row in KINDS {
        let whole: Value = serde_json::from_slice(&fixture(row)).unwrap();
        let old = row.decode(&fixture(row)).unwrap();
        let mut found = Vec::new();
        pointers(&whole, "", &mut found);
        for (pointer, odd) in found
            .iter()
            .flat_map(|pointer| strange().into_iter().map(move |odd| (pointer, odd)))
        {
            let mut changed = whole.clone();
            *changed.pointer_mut(pointer).unwrap() = odd;
            let Ok((mut object, _)) = row.decode_reporting(&serde_json::to_vec(&changed).unwrap()) else {
                continue;
            };
            borne += 1;
            row.set_defaults(object.as_mut());
            let once = object.to_json();
            row.set_defaults(object.as_mut());
            assert_eq!(
                once,
                object.to_json(),
                "{} {pointer}: defaults are not idempotent",
                row.kind
            );
            assert!(
                row.decode(&once).is_ok(),
                "{} {pointer}: what was written is not read",
                row.kind
            );
            row.prepare_create(object.as_mut());
            row.validate(object.as_ref());
            row.prepare_update(object.as_mut(), old.as_ref());
            row.validate_update(object.as_ref(), old.as_ref(), &mut Vec::new());
            row.prepare_status(object.as_mut(), old.as_ref());
            row.validate_status(object.as_ref(), old.as_ref(), &mut Vec::new());
            assert_eq!(row.row(object.as_ref(), now).len(), row.columns().len());
            row.fields(object.as_ref());
            row.scale(object.as_ref());
            row.grace(object.as_ref(), Some(i64::MIN));
        }
    }
    assert!(borne > 1000, "only {borne} were decoded");
}
