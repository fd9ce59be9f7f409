//! The v2 document: the contents of the v3 documents, in the older form, for all group versions
//! together.
//!
//! It is written path by path and definition by definition, which takes only the memory of one
//! group version.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde_json::{Map, Value, json};

use super::merge::{Merged, Other};
use super::{Defined, components, documents, gnostic, paths_at, schemas_at, title};
use crate::registration::Registration;

const V3: &str = "#/components/schemas/";
const V2: &str = "#/definitions/";

/// Writes the document, with those of other servers, as JSON.
///
/// # Errors
/// The writer fails.
pub fn v2_json(
    kinds: &[Registration],
    defined: &[Defined<'_>],
    others: Vec<Other>,
    out: &mut impl Write,
) -> io::Result<()> {
    let merged = merge(kinds, defined, others)?;
    let info = title();
    write!(out, r#"{{"swagger":"2.0","info":{info},"paths":{{"#)?;
    let mut separator = "";
    let shared = each_path(kinds, defined, &merged, |path, item| {
        write!(out, "{separator}{}:{item}", json!(path))?;
        separator = ",";
        Ok(())
    })?;
    write!(out, r#"}},"parameters":{}"#, json!(shared))?;
    write!(out, r#","definitions":{{"#)?;
    separator = "";
    each_merged(kinds, defined, &merged, |name, definition| {
        write!(out, "{separator}{}:{definition}", json!(name))?;
        separator = ",";
        Ok(())
    })?;
    let token = components::bearer_token();
    write!(
        out,
        r#"}},"securityDefinitions":{{"BearerToken":{token}}},"security":[{{"BearerToken":[]}}]}}"#
    )
}

/// Writes the document, with those of other servers, in gnostic's protobuf, as clients up to 1.28 request it.
///
/// # Errors
/// The writer fails.
pub fn v2_protobuf(
    kinds: &[Registration],
    defined: &[Defined<'_>],
    others: Vec<Other>,
    out: &mut impl Write,
) -> io::Result<()> {
    let merged = merge(kinds, defined, others)?;
    out.write_all(&gnostic::head(&title()))?;
    let shared = each_path(kinds, defined, &merged, |path, item| {
        out.write_all(&gnostic::path(path, item))
    })?;
    out.write_all(&gnostic::shared(&shared))?;
    each_merged(kinds, defined, &merged, |name, definition| {
        out.write_all(&gnostic::definition(name, definition))
    })
}

/// Path whose PATCH tells kubectl, by its parameter `fieldValidation`, if the server validates
/// fields of custom resources.
const NAMESPACE: &str = "/api/v1/namespaces/{name}";

/// Removes `fieldValidation` from the PATCH of a namespace. For an unknown kind, kubectl looks
/// there for server-side validation of custom resources, and if it is supported requests their
/// definitions before it reports that there is no such kind. That request would fail.
fn without_validation(namespace: &mut Value) {
    if let Some(Value::Array(parameters)) = namespace.pointer_mut("/patch/parameters") {
        parameters.retain(|parameter| parameter.get("name") != Some(&json!("fieldValidation")));
    }
}

/// Shared parameters by name.
type Shared = BTreeMap<String, Value>;

/// Visits all paths; returns the shared parameters.
fn each_path(
    kinds: &[Registration],
    defined: &[Defined<'_>],
    merged: &Merged,
    mut visit: impl FnMut(&str, &Value) -> io::Result<()>,
) -> io::Result<Shared> {
    let mut shared = Shared::new();
    let own = documents(kinds).into_iter().map(|document| paths_at(kinds, &document));
    for paths in own.chain(defined.iter().map(Defined::paths)) {
        for (path, item) in paths {
            let mut item = path_item(item);
            if path == NAMESPACE {
                without_validation(&mut item);
            }
            let operations = item.as_object_mut().into_iter().flat_map(|item| item.iter_mut());
            for (name, member) in operations {
                let own = if name == "parameters" {
                    Some(member)
                } else {
                    member.get_mut("parameters")
                };
                own.and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                    .for_each(|parameter| share(parameter, &mut shared));
            }
            visit(&path, &item)?;
        }
    }
    for (path, item) in &merged.paths {
        visit(path, item)?;
    }
    // Names of shared parameters have a hash of their content.
    shared.extend(merged.parameters.clone());
    Ok(shared)
}

/// Replaces a parameter by a reference, except for parameters of single kinds and those by which
/// old kubectls detect server features (`vendor/k8s.io/kube-openapi/pkg/builder/parameters.go`).
fn share(parameter: &mut Value, shared: &mut Shared) {
    let get = |name: &str| parameter.get(name).and_then(Value::as_str).unwrap_or_default();
    let (name, place) = (get("name").to_owned(), get("in"));
    let of = parameter.pointer("/schema/$ref").and_then(Value::as_str);
    let is_own = match place {
        "body" => !of.is_some_and(|of| of.starts_with("#/definitions/io.k8s.apimachinery")),
        "query" => matches!(name.as_str(), "name" | "fieldValidation" | "dryRun"),
        _ => name == "name",
    };
    if is_own {
        return;
    }
    let order = ["uniqueItems", "type", "description", "name", "in", "required", "schema"];
    let members = order.iter().filter_map(|name| Some((*name, parameter.get(name)?)));
    let members: Vec<String> = members.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let name = format!("{name}-{}", hash(&format!("{{{}}}", members.join(","))));
    let reference = json!({ "$ref": format!("#/parameters/{name}") });
    shared.insert(name, std::mem::replace(parameter, reference));
}

/// First six bytes of FNV-1 of Go's JSON, in base64.
fn hash(json: &str) -> String {
    let escapes = [("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")];
    let json = escapes
        .iter()
        .fold(json.to_owned(), |json, (from, to)| json.replace(from, to));
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = json.bytes().fold(start, |hash, byte| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
    });
    URL_SAFE.encode(hash.to_be_bytes().get(..6).unwrap_or_default())
}

/// Merges documents of other servers, except group versions that this server documents itself.
fn merge(kinds: &[Registration], defined: &[Defined<'_>], others: Vec<Other>) -> io::Result<Merged> {
    let mut merged = Merged::default();
    let rows = || {
        kinds
            .iter()
            .chain(defined.iter().flat_map(|own| own.rows.iter().copied()))
    };
    let is_own = |other: &Other| rows().any(|row| row.group == other.group && row.version == other.version);
    let others: Vec<Other> = others.into_iter().filter(|other| !is_own(other)).collect();
    if others.is_empty() {
        return Ok(merged);
    }
    each_definition(kinds, defined, |name, definition| {
        if others.iter().any(|other| other.definitions.contains_key(name)) {
            merged.shared.insert(name.to_owned(), definition.clone());
        }
        Ok(())
    })?;
    for other in others {
        merged.add(other);
    }
    Ok(merged)
}

/// Visits all definitions, those of other servers after this one's.
fn each_merged(
    kinds: &[Registration],
    defined: &[Defined<'_>],
    merged: &Merged,
    mut visit: impl FnMut(&str, &Value) -> io::Result<()>,
) -> io::Result<()> {
    each_definition(kinds, defined, |name, definition| {
        visit(name, &merged.marked(name, definition))
    })?;
    merged
        .definitions
        .iter()
        .try_for_each(|(name, definition)| visit(name, definition))
}

fn each_definition(
    kinds: &[Registration],
    defined: &[Defined<'_>],
    mut visit: impl FnMut(&str, &Value) -> io::Result<()>,
) -> io::Result<()> {
    let mut seen = BTreeSet::new();
    let own = documents(kinds)
        .into_iter()
        .map(|document| schemas_at(kinds, &document));
    for schemas in own.chain(defined.iter().map(Defined::v2_schemas)) {
        for (name, mut definition) in schemas {
            if seen.contains(&name) {
                continue;
            }
            for (_, kind) in components::EVERYWHERE.iter().filter(|(own, _)| *own == name) {
                let rows = defined.iter().flat_map(|own| own.rows.iter().copied());
                components::mark_everywhere(&mut definition, kind, kinds.iter().chain(rows));
            }
            if !defined.iter().any(|own| own.defines(&name)) {
                schema(&mut definition);
            }
            visit(&name, &definition)?;
            seen.insert(name);
        }
    }
    Ok(())
}

/// Converts a v3 schema to the v2 form.
fn schema(value: &mut Value) {
    let Some(members) = value.as_object_mut() else {
        return;
    };
    // Upstream's v2 has no defaults.
    members.remove("default");
    if let Some(all) = members.remove("allOf")
        && let Some(only) = all.get(0).and_then(|first| first.get("$ref"))
    {
        members.insert("$ref".to_owned(), only.clone());
    }
    if members.remove("oneOf").is_some() {
        members.insert("type".to_owned(), Value::from("string"));
    }
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(name) = reference.strip_prefix(V3)
    {
        *reference = format!("{V2}{name}");
    }
    for nested in ["items", "additionalProperties"] {
        members.get_mut(nested).into_iter().for_each(schema);
    }
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        properties.values_mut().for_each(schema);
    }
}

fn path_item(mut item: Value) -> Value {
    if let Some(members) = item.as_object_mut() {
        for (name, member) in members {
            if name == "parameters" {
                flatten(member);
            } else {
                operation(member);
            }
        }
    }
    item
}

/// Moves the type of parameters from their schema to the parameter.
fn flatten(parameters: &mut Value) {
    for parameter in parameters.as_array_mut().into_iter().flatten() {
        let Some(members) = parameter.as_object_mut() else {
            continue;
        };
        if let Some(Value::Object(own)) = members.remove("schema") {
            members.extend(own);
        }
    }
}

fn operation(operation: &mut Value) {
    let Some(members) = operation.as_object_mut() else {
        return;
    };
    let mut parameters = members.remove("parameters").unwrap_or_else(|| json!([]));
    flatten(&mut parameters);
    let mut consumes = vec!["*/*".to_owned()];
    if let Some(Value::Object(mut body)) = members.remove("requestBody") {
        let mut parameter = json!({"name": "body", "in": "body"});
        if let (Some(content), Some(parameter)) = (body.remove("content"), parameter.as_object_mut()) {
            let (types, of) = content_of(content);
            consumes = types;
            parameter.insert("schema".to_owned(), of);
            parameter.extend(body);
        }
        if let Some(all) = parameters.as_array_mut() {
            all.insert(0, parameter);
        }
    }
    let mut produces = Vec::new();
    for response in members
        .get_mut("responses")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(Map::values_mut)
        .filter_map(Value::as_object_mut)
    {
        if let Some(content) = response.remove("content") {
            let (types, of) = content_of(content);
            produces = types;
            response.insert("schema".to_owned(), of);
        }
    }
    // Discovery consumes and produces the same media types.
    if members.get("x-kubernetes-action").is_none() {
        consumes.clone_from(&produces);
    }
    members.insert("consumes".to_owned(), json!(consumes));
    members.insert("produces".to_owned(), json!(produces));
    members.insert("schemes".to_owned(), json!(["https"]));
    if parameters.as_array().is_some_and(|all| !all.is_empty()) {
        members.insert("parameters".to_owned(), parameters);
    }
}

/// Media types in upstream's order.
const TYPES: [&str; 10] = [
    "text/plain",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Media types of a content, and its one schema.
fn content_of(content: Value) -> (Vec<String>, Value) {
    let Value::Object(content) = content else {
        return (Vec::new(), Value::Null);
    };
    let rank = |name: &&String| TYPES.iter().position(|own| *own == name.as_str());
    let mut types: Vec<&String> = content.keys().collect();
    types.sort_by_key(rank);
    let types = types.into_iter().cloned().collect();
    let mut of = content
        .into_iter()
        .next()
        .and_then(|(_, mut media)| media.get_mut("schema").map(Value::take))
        .unwrap_or_default();
    schema(&mut of);
    (types, of)
}
