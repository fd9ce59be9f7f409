//! Parameters of paths, in upstream's words.

use serde_json::{Value, json};

static TEXT: &str = include_str!("../../../schema/parameters.txt");

/// Parameters of a type of operation.
pub(super) fn of(sort: &str) -> Vec<Value> {
    let lines = TEXT.lines().filter_map(|line| line.split_once('\t'));
    let own = lines.filter(|(own, _)| *own == sort);
    own.filter_map(|(_, json)| serde_json::from_str(json).ok())
        .map(nest)
        .collect()
}

/// Parameters of deletions of collections, which also take selectors.
pub(super) fn of_collections() -> Vec<Value> {
    let watches = |one: &Value| matches!(place(one), [Some("allowWatchBookmarks" | "watch"), _]);
    let select = of("list").into_iter().filter(|one| !watches(one));
    of("delete").into_iter().chain(select).collect()
}

/// The name of an object in a path.
pub(super) fn name(kind: &str) -> Value {
    nest(json!({
        "name": "name",
        "in": "path",
        "required": true,
        "description": format!("name of the {kind}"),
        "type": "string",
        "uniqueItems": true,
    }))
}

/// Type of a parameter in the v3 form.
fn nest(mut parameter: Value) -> Value {
    if let Some(members) = parameter.as_object_mut() {
        let own = ["type", "uniqueItems"].map(|name| members.remove(name).unwrap_or_default());
        let [kind, unique] = own;
        members.insert("schema".to_owned(), json!({"type": kind, "uniqueItems": unique}));
    }
    parameter
}

fn place(parameter: &Value) -> [Option<&str>; 2] {
    ["name", "in"].map(|member| parameter.get(member).and_then(Value::as_str))
}

pub(super) fn sort(parameters: &mut [Value]) {
    parameters.sort_by(|left, right| place(left).cmp(&place(right)));
}

/// Moves parameters that all operations share to the path, and sorts all parameters in upstream's
/// order.
pub(super) fn hoist(item: &mut Value) {
    let Some(members) = item.as_object_mut() else { return };
    let mut all = members.remove("parameters").map(into_list).unwrap_or_default();
    let lists: Vec<&Value> = members.values().filter_map(|own| own.get("parameters")).collect();
    let takes = |list: &&Value, one: &Value| list.as_array().is_some_and(|list| list.contains(one));
    let first = lists.first().and_then(|list| list.as_array());
    let common: Vec<Value> = first
        .into_iter()
        .flatten()
        .filter(|one| lists.len() == members.len() && lists.iter().all(|list| takes(list, one)))
        .cloned()
        .collect();
    for operation in members.values_mut().filter_map(Value::as_object_mut) {
        let mut own = operation.remove("parameters").map(into_list).unwrap_or_default();
        own.retain(|one| !common.contains(one));
        sort(&mut own);
        if !own.is_empty() {
            operation.insert("parameters".to_owned(), own.into());
        }
    }
    all.extend(common);
    sort(&mut all);
    if !all.is_empty() {
        members.insert("parameters".to_owned(), all.into());
    }
}

fn into_list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) => list,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Vec::new(),
    }
}
