//! The v2 documents of servers that have no v3, in v3 (`vendor/k8s.io/kube-openapi/pkg/openapiconv/convert.go`).

use serde_json::{Map, Value, json};

use super::merge::{DEFINITIONS, Other, PARAMETERS};
use super::{gnostic_v3, title};

const SCHEMAS: &str = "#/components/schemas/";
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

type Members = Map<String, Value>;

impl Other {
    /// The document in v3.
    pub fn v3_document(&self) -> Value {
        let schemas = self.definitions.iter().map(|(name, own)| (name.clone(), schema(own)));
        let paths = self
            .paths
            .iter()
            .map(|(path, item)| (path.clone(), self.path_item(item)));
        json!({
            "openapi": "3.0.0",
            "info": title(),
            "paths": paths.collect::<Members>(),
            "components": {"schemas": schemas.collect::<Members>()},
        })
    }

    /// The same in gnostic's protobuf.
    pub fn v3_protobuf(&self) -> Vec<u8> {
        gnostic_v3::document(&self.v3_document())
    }

    fn path_item(&self, item: &Value) -> Value {
        let members = item.as_object().into_iter().flatten();
        let converted = members.map(|(name, own)| {
            let own = match name.as_str() {
                "parameters" => self.parameters(own).collect(),
                method if METHODS.contains(&method) => self.operation(own),
                _ => own.clone(),
            };
            (name.clone(), own)
        });
        Value::Object(converted.collect())
    }

    fn operation(&self, operation: &Value) -> Value {
        let media_types = |name: &str| operation.get(name).and_then(Value::as_array);
        let content = |of: &Value, types: Option<&Vec<Value>>| {
            let types = types.into_iter().flatten().filter_map(Value::as_str);
            let each = types.map(|name| (name.to_owned(), json!({"schema": schema(of)})));
            each.collect::<Members>()
        };
        let mut converted = operation.as_object().cloned().unwrap_or_default();
        for name in ["consumes", "produces", "schemes", "security"] {
            converted.remove(name);
        }
        if let Some(parameters) = converted.remove("parameters") {
            let others: Vec<Value> = self.parameters(&parameters).collect();
            if !others.is_empty() {
                converted.insert("parameters".to_owned(), others.into());
            }
            let all = parameters
                .as_array()
                .into_iter()
                .flatten()
                .map(|own| self.resolved(own));
            if let Some(body) = all.filter(|own| is_body(own)).find_map(|own| own.get("schema")) {
                let content = content(body, media_types("consumes"));
                converted.insert("requestBody".to_owned(), json!({ "content": content }));
            }
        }
        let responses = converted.get_mut("responses").and_then(Value::as_object_mut);
        for response in responses
            .into_iter()
            .flat_map(Members::values_mut)
            .filter_map(Value::as_object_mut)
        {
            if let Some(of) = response.remove("schema") {
                response.insert("content".to_owned(), content(&of, media_types("produces")).into());
            }
        }
        Value::Object(converted)
    }

    /// A parameter, or the shared one that it refers to.
    fn resolved<'v>(&'v self, parameter: &'v Value) -> &'v Value {
        let reference = parameter.get("$ref").and_then(Value::as_str);
        let shared = reference.and_then(|reference| self.parameters.get(reference.strip_prefix(PARAMETERS)?));
        shared.unwrap_or(parameter)
    }

    /// All parameters but the body.
    fn parameters<'v>(&'v self, parameters: &'v Value) -> impl Iterator<Item = Value> {
        let all = parameters
            .as_array()
            .into_iter()
            .flatten()
            .map(|own| self.resolved(own));
        all.filter(|own| !is_body(own)).map(parameter)
    }
}

fn is_body(parameter: &Value) -> bool {
    parameter.get("in").is_some_and(|place| place == "body")
}

/// Moves the type of a parameter into its schema.
fn parameter(parameter: &Value) -> Value {
    let members = parameter.as_object().cloned().unwrap_or_default();
    let is_own = |name: &str| {
        matches!(name, "name" | "in" | "description" | "required" | "allowEmptyValue") || name.starts_with("x-")
    };
    let (mut own, of): (Members, Members) = members.into_iter().partition(|(name, _)| is_own(name));
    own.insert("schema".to_owned(), schema(&Value::Object(of)));
    Value::Object(own)
}

/// Converts the references within a schema; one has nothing beside it in v3.
fn schema(of: &Value) -> Value {
    match of {
        Value::Object(members) => {
            let mut converted: Members = members.iter().map(|(name, own)| (name.clone(), schema(own))).collect();
            let reference = members.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|reference| reference.strip_prefix(DEFINITIONS)) {
                let reference = json!({"$ref": format!("{SCHEMAS}{name}")});
                converted.remove("$ref");
                if converted.is_empty() {
                    return reference;
                }
                converted.insert("allOf".to_owned(), json!([reference]));
            }
            Value::Object(converted)
        }
        Value::Array(items) => items.iter().map(schema).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => of.clone(),
    }
}
