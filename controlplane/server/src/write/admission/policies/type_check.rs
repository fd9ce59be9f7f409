//! Type checking of policies' expressions against the matched kinds, with warnings in their status
//! (`pkg/admission/plugin/policy/validating/typechecking.go` of `k8s.io/apiserver`,
//! `pkg/controller/validatingadmissionpolicystatus/controller.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::Row;
use api::schema::{self, Form, Schema as Message};
use axum::Router;
use expressions::Type;
use expressions::schema::{Field, Format, ListKind, ObjectSchema, Schema, Shape, escape};
use k8s_openapi::api::admissionregistration::v1::{ExpressionWarning, RuleWithOperations};
use serde_json::json;
use store::{Entry, Prefix, Store};

use super::compiled::Environments;
use super::definition::{Definition, Spec};
use super::params::parts;
use super::source::Constraints;
use crate::extensions::definitions::{self, Table};
use crate::server::bootstrap::Client;
use crate::server::shared::Shared;
use crate::write::admission::webhooks::source::GROUP;

const PLURAL: &str = "validatingadmissionpolicies";
const MANAGER: &str = "validatingadmissionpolicy-status-controller";
/// Maximum number of kinds against which a policy's expressions are checked (`maxTypesToCheck`).
const MOST_KINDS: usize = 10;
/// The time after which a status that could not be written is written again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Checks policies that were not checked since they changed, for as long as it is polled.
pub(crate) async fn run(shared: Arc<Shared>, router: Router) -> Infallible {
    let client = Client::new(router);
    let prefix = Prefix::resource(GROUP, PLURAL);
    let mut changed = shared.store.last_change(&prefix);
    loop {
        changed.mark_unchanged();
        let mut is_whole = true;
        for entry in shared.store.present(&prefix) {
            is_whole &= look_at(&shared, &client, &entry).await;
        }
        let change = async {
            if changed.changed().await.is_err() {
                // The store is closed: nothing changes any more.
                std::future::pending::<()>().await;
            }
        };
        if is_whole {
            change.await;
        } else {
            // Either there is news or it is time to look again.
            drop(tokio::time::timeout(RETRY_AFTER, change).await);
        }
    }
}

/// Type-checks one policy if needed; returns whether its status is up to date.
async fn look_at(shared: &Shared, client: &Client, entry: &Entry) -> bool {
    let Ok(policy) = serde_json::from_slice::<Definition>(&entry.bytes) else {
        return true;
    };
    let generation = policy.metadata.generation.unwrap_or_default();
    if generation <= policy.status.observed_generation.unwrap_or_default() {
        return true;
    }
    let warnings = warnings(&shared.definitions.current(), &shared.store, &policy.spec);
    let checking = if warnings.is_empty() {
        json!({})
    } else {
        json!({"expressionWarnings": warnings})
    };
    let name = entry.key.name();
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "status": {"observedGeneration": generation, "typeChecking": checking},
    });
    let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status?fieldManager={MANAGER}&force=true");
    let written = client.apply(path, object).await;
    // A deleted policy needs no status.
    written.is_ok() || shared.store.get(&entry.key).is_none()
}

/// A kind as Go prints it.
type Kind = (String, String, String);

/// Warnings about the validations of a policy for the types that it matches.
fn warnings(table: &Table, store: &Store, spec: &Spec) -> Vec<ExpressionWarning> {
    let mut texts: Vec<(String, &str, Vec<String>)> = Vec::new();
    for (index, own) in spec.validations.iter().flatten().enumerate() {
        let path = format!("spec.validations[{index}]");
        texts.push((format!("{path}.expression"), &own.expression, Vec::new()));
        let message = own.message_expression.as_deref().filter(|text| !text.is_empty());
        texts.extend(message.map(|text| (format!("{path}.messageExpression"), text, Vec::new())));
    }
    let params = spec.param_kind.as_ref().map(|kind| {
        let (group, version, kind) = parts(kind);
        let row = table.kinds.find_kind(group, version, kind);
        let of = row.and_then(|row| declared(store, &row, &format!("params.{kind}")));
        of.map_or(Type::Dyn, |schema| schema.as_type())
    });
    for ((group, version, kind), row) in kinds(
        table,
        &Constraints::new(spec.match_constraints.clone().unwrap_or_default()),
    ) {
        let Some(object) = declared(store, &row, &kind) else {
            continue;
        };
        let mut environments = Environments::typed(&object.as_type(), params.as_ref());
        for own in spec.variables.iter().flatten() {
            // A variable that does not compile has the type `dyn`.
            drop(environments.variable(&own.name, &own.expression));
        }
        for (_, text, found) in &mut texts {
            if let Some(issues) = environments.issues(text) {
                found.push(format!("{group}/{version}, Kind={kind}: {issues}\n"));
            }
        }
    }
    let found = texts.into_iter().filter(|(_, _, found)| !found.is_empty());
    let warnings = found.map(|(field_ref, _, found)| ExpressionWarning {
        field_ref,
        warning: found.join("\n"),
    });
    warnings.collect()
}

/// The kinds that are matched by rules without wildcards.
fn kinds(table: &Table, constraints: &Constraints) -> BTreeMap<Kind, Row> {
    let mut found = BTreeMap::new();
    for (rule, _) in constraints.included() {
        if of_rule(table, rule, &mut found) >= MOST_KINDS {
            break;
        }
    }
    found
}

/// Adds the kinds of a rule and counts them.
fn of_rule(table: &Table, rule: &RuleWithOperations, found: &mut BTreeMap<Kind, Row>) -> usize {
    fn sorted(list: Option<&Vec<String>>) -> BTreeSet<&str> {
        list.into_iter().flatten().map(String::as_str).collect()
    }
    let (groups, versions) = (sorted(rule.api_groups.as_ref()), sorted(rule.api_versions.as_ref()));
    if groups.iter().chain(&versions).any(|own| own.contains('*')) {
        return 0;
    }
    let resources = sorted(rule.resources.as_ref());
    let mut count = 0;
    for group in &groups {
        for version in &versions {
            for resource in resources.iter().filter(|own| !own.contains(['*', '/'])) {
                let is_meant = |row: &Row| {
                    // Without a group, those of all groups are found.
                    (group.is_empty() || row.group == *group)
                        && row.version == *version
                        && (row.plural == *resource || row.singular == *resource)
                };
                for row in table.kinds.rows().filter(is_meant) {
                    let kind = (row.group.to_owned(), row.version.to_owned(), row.kind.to_owned());
                    found.insert(kind, row);
                    count += 1;
                    if count == MOST_KINDS {
                        return count;
                    }
                }
            }
        }
    }
    count
}

/// The type of a kind's objects, as its OpenAPI declares it.
fn declared(store: &Store, row: &Row, name: &str) -> Option<Schema> {
    if !row.is_defined() {
        let message = Message::of_kind(&row.api_version(), row.kind)?;
        return Some(object(message, name, true, &mut Vec::new()));
    }
    let published = definitions::published_schema(store, row)?;
    let mut own = ::schema::Structural::new(&published).ok()?.declared(name)?;
    if let (Shape::Object(object_schema), Some(metadata)) = (&mut own.shape, Message::named("meta.v1.ObjectMeta")) {
        let metadata = object(metadata, &format!("{name}.metadata"), false, &mut Vec::new());
        if let Some(object_schema) = Arc::get_mut(object_schema) {
            object_schema
                .fields
                .insert("metadata".to_owned(), field("metadata", metadata));
        }
    }
    Some(own)
}

fn field(json: &str, schema: Schema) -> Field {
    Field {
        json: json.to_owned(),
        required: false,
        schema,
    }
}

fn text(format: Format) -> Schema {
    Schema::new(Shape::String(format))
}

fn list(items: Schema) -> Schema {
    Schema::new(Shape::List {
        items: Box::new(items),
        kind: ListKind::Atomic,
    })
}

/// The type of a message; one that is within itself has no fields there (`PopulateRefs` of
/// `pkg/cel/openapi/resolver/refs.go`).
fn object(message: Message, name: &str, is_root: bool, around: &mut Vec<&'static str>) -> Schema {
    let mut fields = BTreeMap::new();
    if !around.contains(&message.name()) {
        around.push(message.name());
        add_fields(message, name, around, &mut fields);
        around.pop();
    }
    if is_root {
        for json in ["apiVersion", "kind"] {
            fields.insert(json.to_owned(), field(json, text(Format::Text)));
        }
    }
    Schema::new(Shape::Object(Arc::new(ObjectSchema {
        name: name.to_owned(),
        fields,
    })))
}

fn add_fields(message: Message, name: &str, around: &mut Vec<&'static str>, fields: &mut BTreeMap<String, Field>) {
    for own in message.fields() {
        let path = format!("{name}.{}", own.json);
        let found = match own.shape {
            schema::Shape::Inline => {
                if let Some(inner) = own.message() {
                    add_fields(inner, name, around, fields);
                }
                None
            }
            schema::Shape::One => value(own, &path, around),
            schema::Shape::List => value(own, &format!("{path}.@idx"), around).map(list),
            schema::Shape::Map => {
                value(own, &format!("{path}.@elem"), around).map(|values| Schema::new(Shape::Map(Box::new(values))))
            }
        };
        if let (Some(schema), Some(escaped)) = (found, escape(own.json)) {
            fields.insert(escaped, field(own.json, schema));
        }
    }
}

/// Type of a field's value; `None` for values of several types, such as quantities.
fn value(own: &schema::Field, name: &str, around: &mut Vec<&'static str>) -> Option<Schema> {
    Some(match own.form {
        Form::String | Form::Duration => text(Format::Text),
        Form::Bytes => text(Format::Bytes),
        Form::Bool => Schema::new(Shape::Bool),
        Form::Int32 | Form::Int64 => Schema::new(Shape::Int),
        Form::Double => Schema::new(Shape::Double),
        Form::IntOrString => Schema::new(Shape::IntOrString),
        Form::Time | Form::MicroTime => text(Format::DateTime),
        Form::Strings => list(text(Format::Text)),
        Form::RawExtension | Form::FieldsV1 => Schema::new(Shape::Object(Arc::new(ObjectSchema {
            name: name.to_owned(),
            fields: BTreeMap::new(),
        }))),
        Form::Message(_) => object(own.message()?, name, false, around),
        Form::Quantity | Form::Alternative(_) => return None,
    })
}
