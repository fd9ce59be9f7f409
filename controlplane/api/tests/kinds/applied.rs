//! Server-side apply of every kind's fixture.

use controlplane_api::managed::{Application, Managed, Set, Writer, apply, compare, splice};
use controlplane_api::schema::Schema;
use controlplane_api::{KINDS, Kinds, Registration};
use serde_json::{Value, json};

use super::every::fixture;

fn rows() -> impl Iterator<Item = (&'static Registration, Schema)> {
    let stored = KINDS.iter().filter(|row| row.verbs.are_stored());
    stored.map(|row| {
        let schema = Schema::of_kind(&row.api_version(), row.kind);
        (row, schema.unwrap_or_else(|| panic!("{} has no schema", row.kind)))
    })
}

/// The object after defaults, and its entries.
fn applied(row: &Registration, schema: Schema, live: &Value, wanted: &Value, managed: Managed) -> (Value, Managed) {
    let writer = Writer {
        manager: "me".to_owned(),
        api_version: row.api_version(),
        subresource: String::new(),
        time: "2026-01-01T00:00:00Z".to_owned(),
    };
    let kinds = Kinds::default();
    let application = Application {
        kinds: (&kinds).into(),
        types: schema.into(),
        kind: row.kind,
        live,
        applied: wanted,
        writer: &writer,
        force: false,
        ignored: &Set::default(),
    };
    let done = apply(&application, managed).unwrap_or_else(|error| panic!("{}: {error}", row.kind));
    let mut object = row.decode(done.object.to_string().as_bytes()).unwrap();
    row.set_defaults(object.as_mut());
    (serde_json::from_slice(&object.to_json()).unwrap(), done.managed)
}

#[test]
fn a_second_apply_changes_nothing() {
    for (row, schema) in rows() {
        let wanted: Value = serde_json::from_slice(&fixture(row)).unwrap();
        let (first, mut managed) = applied(row, schema, &json!({}), &wanted, Managed::default());
        if managed.is_empty() {
            // No manager owns the name alone: the second apply finds fields that the server added,
            // and assigns them.
            managed = applied(row, schema, &first, &wanted, managed).1;
        }
        let (second, again) = applied(row, schema, &first, &wanted, managed.clone());
        assert_eq!(second, first, "{}", row.kind);
        assert!(again.equals_without_times(&managed), "{}", row.kind);
    }
}

#[test]
fn what_is_no_longer_applied_goes() {
    for (row, schema) in rows() {
        let wanted: Value = serde_json::from_slice(&fixture(row)).unwrap();
        let mut more = wanted.clone();
        more["metadata"]["annotations"]["extra"] = json!("x");
        let (first, managed) = applied(row, schema, &json!({}), &more, Managed::default());
        assert_eq!(first["metadata"]["annotations"]["extra"], "x", "{}", row.kind);
        let (second, managed) = applied(row, schema, &first, &wanted, managed);
        assert!(second["metadata"]["annotations"].get("extra").is_none(), "{}", row.kind);
        let (third, _) = applied(row, schema, &json!({}), &wanted, Managed::default());
        assert_eq!(second, third, "{}", row.kind);
        assert_eq!(Managed::parse(&managed.to_json()).unwrap(), managed, "{}", row.kind);
    }
}

#[test]
fn every_field_of_every_fixture_is_compared() {
    for (row, schema) in rows() {
        let object = String::from_utf8(row.decode(&fixture(row)).unwrap().to_json()).unwrap();
        assert!(compare(schema, &object, &object).is_empty(), "{}", row.kind);
        let all = compare(schema, "{}", &object);
        assert!(all.removed.is_empty() && !all.changed.is_empty(), "{}", row.kind);
        let joined = splice::join(object.clone().into_bytes(), "[1]");
        assert_eq!(splice::split(&joined).managed, "[1]", "{}", row.kind);
        assert_eq!(&*splice::split(&joined).object, object.as_bytes(), "{}", row.kind);
    }
}
