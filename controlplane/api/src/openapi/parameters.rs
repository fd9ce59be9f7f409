//! The parameters that paths take.

use serde_json::{Value, json};

/// A parameter in the path.
pub(super) fn in_path(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": description,
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn in_query(name: &str, kind: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": kind, "uniqueItems": true},
    })
}

/// What every path takes.
pub(super) fn pretty() -> Value {
    in_query("pretty", "string", "If 'true', then the output is pretty printed.")
}

/// What lists and watches take.
pub(super) fn list() -> Vec<Value> {
    vec![
        in_query(
            "allowWatchBookmarks",
            "boolean",
            "Asks a watch for events of type BOOKMARK, which carry only a resource version.",
        ),
        in_query(
            "continue",
            "string",
            "The token of the previous page of a list; all other parameters must be the same as there.",
        ),
        in_query(
            "fieldSelector",
            "string",
            "Restricts the objects by their fields. Defaults to everything.",
        ),
        in_query(
            "labelSelector",
            "string",
            "Restricts the objects by their labels. Defaults to everything.",
        ),
        in_query(
            "limit",
            "integer",
            "The most objects on a page; more are announced by a continue token in the list's metadata.",
        ),
        in_query(
            "resourceVersion",
            "string",
            "Which version may be answered from. Defaults to unset.",
        ),
        in_query(
            "resourceVersionMatch",
            "string",
            "How resourceVersion is meant: Exact or NotOlderThan.",
        ),
        in_query(
            "sendInitialEvents",
            "boolean",
            "Begins a watch with the objects that are there.",
        ),
        in_query(
            "timeoutSeconds",
            "integer",
            "The longest time for a list or watch, whatever happens in it.",
        ),
        in_query(
            "watch",
            "boolean",
            "Streams changes from resourceVersion on instead of a list.",
        ),
    ]
}

fn dry_run() -> Value {
    in_query(
        "dryRun",
        "string",
        "Goes through all stages without storing anything. The only value is All.",
    )
}

/// What creations and updates take.
pub(super) fn write() -> Vec<Value> {
    vec![
        dry_run(),
        in_query(
            "fieldManager",
            "string",
            "The name of the actor that makes the change: at most 128 printable characters.",
        ),
        in_query(
            "fieldValidation",
            "string",
            "What to do with unknown and duplicate fields: Ignore, Warn (the default) or Strict.",
        ),
    ]
}

/// What patches take.
pub(super) fn patch() -> Vec<Value> {
    let mut parameters = write();
    parameters.push(in_query(
        "force",
        "boolean",
        "Takes over conflicting fields of other managers when applying.",
    ));
    parameters
}

/// What deletions take.
pub(super) fn delete() -> Vec<Value> {
    vec![
        dry_run(),
        in_query(
            "gracePeriodSeconds",
            "integer",
            "Seconds until the object goes. Zero deletes immediately; unset is the kind's default.",
        ),
        in_query(
            "orphanDependents",
            "boolean",
            "Deprecated: use propagationPolicy. Whether dependents stay.",
        ),
        in_query(
            "propagationPolicy",
            "string",
            "What becomes of dependents: Orphan, Background or Foreground.",
        ),
    ]
}

/// What deletions of collections take.
pub(super) fn delete_collection() -> Vec<Value> {
    let not_here = ["allowWatchBookmarks", "watch"];
    let select = list()
        .into_iter()
        .filter(|parameter| !not_here.iter().any(|name| parameter.get("name") == Some(&json!(name))));
    delete().into_iter().chain(select).collect()
}

/// What logs take.
pub(super) fn log() -> Vec<Value> {
    vec![
        in_query(
            "container",
            "string",
            "The container. Defaults to the only one of the pod.",
        ),
        in_query("follow", "boolean", "Goes on as the log grows."),
        in_query("limitBytes", "integer", "The most bytes to return."),
        in_query("previous", "boolean", "The log of the previous, terminated container."),
        in_query("sinceSeconds", "integer", "Only what is newer than this many seconds."),
        in_query("tailLines", "integer", "Only this many lines from the end."),
        in_query("timestamps", "boolean", "Begins every line with its time, RFC 3339."),
    ]
}

/// A container and its streams.
pub(super) fn attach() -> Vec<Value> {
    vec![
        in_query(
            "container",
            "string",
            "The container. Defaults to the only one of the pod.",
        ),
        in_query("stderr", "boolean", "Whether to get standard error."),
        in_query("stdin", "boolean", "Whether to give standard input."),
        in_query("stdout", "boolean", "Whether to get standard output."),
        in_query("tty", "boolean", "Whether to have a terminal."),
    ]
}

pub(super) fn exec() -> Vec<Value> {
    let mut all = attach();
    all.push(in_query(
        "command",
        "string",
        "Program and arguments; repeated for each word.",
    ));
    all
}

pub(super) fn port_forward() -> Vec<Value> {
    vec![in_query("ports", "integer", "Ports, needed over WebSocket.")]
}

pub(super) fn proxy() -> Vec<Value> {
    vec![in_query("path", "string", "The path behind the object.")]
}
