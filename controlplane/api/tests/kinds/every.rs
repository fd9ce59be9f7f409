//! Properties of every row of the table of kinds. A new kind only needs a fixture.

use controlplane_api::{KINDS, Object, Registration, find, find_kind};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Fixture of a kind as JSON. If several groups or versions have a kind of the same name, all but
/// one carry the group's name, or the group's and the version's.
pub(crate) fn fixture(row: &Registration) -> Vec<u8> {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/tests/kinds/fixtures";
    let (kind, group, version) = (row.kind.to_lowercase(), row.group, row.version);
    let names = [
        format!("{kind}.{group}.{version}"),
        format!("{kind}.{group}"),
        kind.clone(),
    ];
    let text = names
        .iter()
        .find_map(|name| std::fs::read_to_string(format!("{folder}/{name}.yaml")).ok())
        .unwrap_or_else(|| panic!("no fixture of {kind}"));
    let value: Value = serde_yaml::from_str(&text).unwrap();
    serde_json::to_vec(&value).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:05:00Z".parse().unwrap()
}

fn defaulted(row: &Registration) -> Box<dyn Object> {
    let mut object = row.decode(&fixture(row)).unwrap();
    row.set_defaults(object.as_mut());
    object
}

#[test]
fn every_kind_is_found_by_path_and_by_name() {
    for row in KINDS {
        assert_eq!(find(row.group, row.version, row.plural).unwrap().kind, row.kind);
        assert_eq!(find_kind(row.group, row.version, row.kind).unwrap().plural, row.plural);
        assert_eq!(row.list_kind, format!("{}List", row.kind));
        assert_eq!(row.singular, row.kind.to_lowercase());
    }
}

#[test]
fn every_fixture_is_known_in_every_field() {
    for row in KINDS {
        let (_, unknown) = row.decode_reporting(&fixture(row)).unwrap();
        assert_eq!(unknown, Vec::<String>::new(), "{}", row.kind);
    }
}

#[test]
fn every_object_survives_the_round_trip() {
    for row in KINDS {
        let object = defaulted(row);
        let again = row.decode(&object.to_json()).unwrap();
        assert!(row.same(again.as_ref(), object.as_ref()), "{}", row.kind);
        let stored = row.decode_stored(&row.encode_stored(object.as_ref())).unwrap();
        assert_eq!(text(stored.as_ref()), text(object.as_ref()), "{}", row.kind);
    }
}

fn text(object: &dyn Object) -> String {
    String::from_utf8(object.to_json()).unwrap()
}

#[test]
fn defaults_are_set_once() {
    for row in KINDS {
        let object = defaulted(row);
        let mut again = object.clone_box();
        row.set_defaults(again.as_mut());
        assert_eq!(text(again.as_ref()), text(object.as_ref()));
    }
}

#[test]
fn every_fixture_is_valid_once_it_is_defaulted() {
    for row in KINDS {
        let mut object = defaulted(row);
        row.prepare_create(object.as_mut());
        let errors: Vec<String> = row.validate(object.as_ref()).iter().map(ToString::to_string).collect();
        assert_eq!(errors, Vec::<String>::new(), "{}", row.kind);
        let mut updated = object.clone_box();
        row.prepare_update(updated.as_mut(), object.as_ref());
        let errors: Vec<String> = row
            .validate_update(updated.as_ref(), object.as_ref(), &mut Vec::new())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "update of {}", row.kind);
    }
}

#[test]
fn an_update_that_changes_nothing_is_seen_as_such() {
    for row in KINDS {
        let mut old = defaulted(row);
        row.prepare_create(old.as_mut());
        let mut new = old.clone_box();
        new.metadata_mut().generation = None;
        row.prepare_update(new.as_mut(), old.as_ref());
        assert!(row.same(new.as_ref(), old.as_ref()), "{}", row.kind);
        row.prepare_status(new.as_mut(), old.as_ref());
        assert!(row.same(new.as_ref(), old.as_ref()), "{}", row.kind);
        assert_eq!(old.metadata().generation.is_some(), row.counts_generations);
    }
}

#[test]
fn an_empty_object_has_defaults_and_columns_and_is_refused() {
    for row in KINDS {
        let mut object = row.decode(b"{}").unwrap();
        assert_eq!(
            row.row(object.as_ref(), now()).len(),
            row.columns().len(),
            "{}",
            row.kind
        );
        assert_eq!(
            row.fields(object.as_ref()).len(),
            row.field_labels().len(),
            "{}",
            row.kind
        );
        row.set_defaults(object.as_mut());
        row.prepare_create(object.as_mut());
        assert!(!row.validate(object.as_ref()).is_empty(), "{}", row.kind);
    }
}

#[test]
fn kinds_that_are_stored_can_be_listed_and_watched() {
    for row in KINDS {
        let stored = row.verbs.are_stored();
        assert_eq!(row.verbs.names().contains(&"watch"), stored);
        let passing = row.plural == "bindings" || row.plural == "componentstatuses" || row.plural.ends_with("reviews");
        let measured = row.group == "metrics.k8s.io";
        assert_eq!(passing || measured, !stored, "{}", row.kind);
    }
}
