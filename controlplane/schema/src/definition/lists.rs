//! `x-kubernetes-list-type`, `x-kubernetes-list-map-keys`, `x-kubernetes-map-type`

use std::collections::BTreeSet;

use serde_json::Value;

use super::Check;
use crate::Invalid;
use crate::path::Path;
use crate::props::{Items, Props};

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";

pub(super) fn check(check: &mut Check, props: Props<'_>, at: &Path<'_>) {
    if let Some(map_type) = props.optional_text(MAP_TYPE) {
        has_type(check, props, at, "object", MAP_TYPE);
        supported(check, at, MAP_TYPE, map_type, &["atomic", "granular"]);
    }
    let list_type = props.optional_text(LIST_TYPE);
    if let Some(list_type) = list_type {
        if has_type(check, props, at, "array", LIST_TYPE) && list_type == "set" {
            set(check, props, at);
        }
        supported(check, at, LIST_TYPE, list_type, &["atomic", "set", "map"]);
    }
    if !props.list(LIST_KEYS).is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        if list_type.is_some() {
            check.refuse(at, LIST_TYPE, props.get(LIST_TYPE), detail);
        } else {
            check.require(at, LIST_TYPE, detail);
        }
    }
    if list_type == Some("map") {
        map(check, props, at);
    }
    if let Some(list_type) = list_type.filter(|name| matches!(*name, "set" | "map")) {
        keys(check, props, list_type, at);
    }
}

fn has_type(check: &mut Check, props: Props<'_>, at: &Path<'_>, wanted: &str, because: &str) -> bool {
    let kind = props.text("type");
    let detail = format!("must be {wanted} if {because} is specified");
    if kind.is_empty() {
        check.require(at, "type", &detail);
    } else if kind != wanted {
        check.refuse(at, "type", props.get("type"), &detail);
    }
    kind == wanted
}

fn supported(check: &mut Check, at: &Path<'_>, name: &str, value: &str, all: &[&str]) {
    if !all.contains(&value) {
        check
            .found
            .push(Invalid::not_supported(at.child(name).to_string(), value, all));
    }
}

/// Items of a set must be atomic.
fn set(check: &mut Check, props: Props<'_>, at: &Path<'_>) {
    let Some(item) = props.item() else { return };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list_type = Some(item.get(LIST_TYPE).unwrap_or(&Value::Null));
    let items = at.child("items");
    match item.text("type") {
        "array" if item.optional_text(LIST_TYPE).is_some_and(|own| own != "atomic") => {
            check.refuse(&items, LIST_TYPE, list_type, detail);
        }
        // Upstream's message names the type of a list here, too.
        "object" if item.optional_text(MAP_TYPE) != Some("atomic") => {
            check.refuse(&items, MAP_TYPE, list_type, detail);
        }
        _ => {}
    }
}

fn map(check: &mut Check, props: Props<'_>, at: &Path<'_>) {
    if props.list(LIST_KEYS).is_empty() {
        check.require(at, LIST_KEYS, "must not be empty if x-kubernetes-list-type is map");
    }
    let item = match props.items() {
        None => {
            check.require(at, "items", "must have a schema if x-kubernetes-list-type is map");
            return;
        }
        Some(Items::Many(_)) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            check.refuse(at, "items", props.get("items"), detail);
            return;
        }
        Some(Items::One(item)) => item,
    };
    let items = at.child("items");
    if item.text("type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        check.refuse(&items, "type", item.get("type"), detail);
        return;
    }
    let mut seen = BTreeSet::new();
    for name in props.texts(LIST_KEYS) {
        match item.property(name) {
            Some(key) if matches!(key.text("type"), "array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                check.refuse(&items.child("properties").key(name), "type", item.get("type"), detail);
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                check.refuse(at, LIST_KEYS, props.get(LIST_KEYS), detail);
            }
        }
        if !seen.insert(name) {
            check.refuse(
                at,
                LIST_KEYS,
                props.get(LIST_KEYS),
                "must not contain duplicate entries",
            );
        }
    }
}

/// Items of sets and maps must not be nullable; keys must not be either, and must be required or
/// have a default.
fn keys(check: &mut Check, props: Props<'_>, list_type: &str, at: &Path<'_>) {
    let Some(item) = props.item() else { return };
    let items = at.child("items");
    if item.flag("nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        check.forbid(&items, "nullable", &detail);
    }
    if list_type != "map" {
        return;
    }
    let properties = items.child("properties");
    for name in props.texts(LIST_KEYS) {
        let Some(key) = item.property(name) else { continue };
        let at = properties.key(name);
        if key.get("default").is_none() && !item.texts("required").any(|required| required == name) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            check.require(&at, "default", detail);
        }
        if key.flag("nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            check.forbid(&at, "nullable", detail);
        }
    }
}
