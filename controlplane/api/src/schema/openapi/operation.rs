//! Operations of a path: parameters, bodies and responses of each method.

use serde_json::{Map, Value, json};

use super::components::{self, reference};
use super::group_version_kind;

pub(super) const ANSWERS: [&str; 3] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
];
/// Media types of responses to lists and watches.
pub(super) const LISTS: [&str; 5] = [
    "application/json",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/yaml",
];
/// Media types of responses with logs.
pub(super) const LOGS: [&str; 4] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
    "text/plain",
];
pub(super) const BODIES: [&str; 1] = ["*/*"];
pub(super) const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Type of a request's or a response's body.
pub(super) struct Type {
    pub(super) definition: String,
    pub(super) kind: String,
    pub(super) group_version_kind: Value,
}

impl Type {
    pub(super) fn new(definition: &str, group: &str, version: &str, kind: &str) -> Self {
        Self {
            definition: definition.to_owned(),
            kind: kind.to_owned(),
            group_version_kind: group_version_kind(group, version, kind),
        }
    }
}

/// Operation of a path, while it is built.
pub(super) struct Operation(pub(super) Value);

impl Operation {
    fn set(mut self, member: &str, value: Value) -> Self {
        if let Value::Object(members) = &mut self.0 {
            members.insert(member.to_owned(), value);
        }
        self
    }

    pub(super) fn with(self, parameters: Vec<Value>) -> Self {
        self.set("parameters", Value::from(parameters))
    }

    pub(super) fn takes(self, types: &[&str], definition: &str) -> Self {
        self.set(
            "requestBody",
            json!({"content": content(types, definition), "required": true}),
        )
    }

    /// Adds the parameters, body and responses of a deletion.
    pub(super) fn deletes(self, parameters: Vec<Value>, codes: &[&str], answer: Option<&Type>) -> Value {
        let status = Type::new(components::STATUS, "", "v1", "Status");
        let body = json!({"content": content(&BODIES, components::DELETE_OPTIONS)});
        self.set("requestBody", body)
            .with(parameters)
            .answers(codes, answer.unwrap_or(&status))
    }

    pub(super) fn answers(self, codes: &[&str], of: &Type) -> Value {
        self.answers_in(&ANSWERS, codes, of)
    }

    pub(super) fn answers_in(self, types: &[&str], codes: &[&str], of: &Type) -> Value {
        let mut responses = Map::new();
        for code in codes {
            let description = match *code {
                "201" => "Created",
                "202" => "Accepted",
                _ => "OK",
            };
            responses.insert(
                (*code).to_owned(),
                json!({"description": description, "content": content(types, &of.definition)}),
            );
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        self.set("responses", Value::Object(responses)).0
    }

    pub(super) fn answers_text(self, types: &[&str]) -> Value {
        let text = json!({"schema": {"type": "string"}});
        let content: Map<String, Value> = types.iter().map(|name| ((*name).to_owned(), text.clone())).collect();
        let text = json!({"description": "OK", "content": content});
        self.set(
            "responses",
            json!({"200": text, "401": {"description": "Unauthorized"}}),
        )
        .0
    }
}

fn content(types: &[&str], definition: &str) -> Map<String, Value> {
    types
        .iter()
        .map(|name| ((*name).to_owned(), json!({"schema": reference(definition)})))
        .collect()
}
