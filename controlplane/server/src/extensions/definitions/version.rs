//! Version of a custom resource, parsed from its definition once.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use api::descriptions::described;
use api::go;
use api::intern;
use api::managed::{Keys, Members, Scalar, Shape};
use api::registration::ColumnDefinition;
use api::schema::Schema;
use api::table;
use api::{Invalid, InvalidKind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schema::{Additional, Kind, ListType, MapType, Node, Rules, Structural, Verdict};
use serde_json::{Map, Value, json};

use super::json_path::JsonPath;
use crate::write::admission::expressions::aside;

/// Behavior of the objects of one version of a kind.
pub(super) struct Version {
    /// `example.com/v1`
    pub(super) qualified: String,
    pub(super) kind: &'static str,
    pub(super) schema: Structural,
    /// Its CEL rules, compiled at the first write; `None` if it has none.
    rules: OnceLock<Option<Rules>>,
    /// The same for server-side apply.
    pub(super) shape: Shape,
    /// True if it has the subresource `status`.
    pub(super) has_status: bool,
    pub(super) replicas: Option<Replicas>,
    pub(super) columns: Columns,
    pub(super) selectable: Vec<(&'static str, JsonPath)>,
}

/// Paths of the `scale` subresource.
pub(super) struct Replicas {
    pub(super) spec: &'static str,
    pub(super) status: String,
    pub(super) selector: Option<String>,
}

impl Version {
    /// Parses a version of an accepted definition; `None` where its schema is invalid, which an
    /// older server may have accepted.
    pub(super) fn of(definition: &CustomResourceDefinition, version: &CustomResourceDefinitionVersion) -> Option<Self> {
        let own = version.schema.as_ref().and_then(|own| own.open_api_v3_schema.as_ref());
        let json = own.map_or(Value::Null, |own| serde_json::to_value(own).unwrap_or_default());
        let schema = Structural::new(&json).ok()?;
        let subresources = version.subresources.as_ref();
        let scale = subresources.and_then(|own| own.scale.as_ref());
        let selectable = version.selectable_fields.iter().flatten();
        let selectable = selectable.filter_map(|field| {
            let label = intern::text(field.json_path.trim_start_matches('.'));
            Some((label, JsonPath::parse(&field.json_path)?))
        });
        Some(Self {
            qualified: format!("{}/{}", definition.spec.group, version.name),
            kind: intern::text(&definition.spec.names.kind),
            shape: root(schema.root()),
            schema,
            rules: OnceLock::new(),
            has_status: subresources.is_some_and(|own| own.status.is_some()),
            replicas: scale.map(|scale| Replicas {
                spec: intern::text(&scale.spec_replicas_path),
                status: scale.status_replicas_path.clone(),
                selector: scale.label_selector_path.clone().filter(|path| !path.is_empty()),
            }),
            columns: Columns::of(version.additional_printer_columns.as_deref().unwrap_or_default()),
            selectable: selectable.collect(),
        })
    }

    /// Prunes unknown fields and sets defaults (`schemaCoercingDecoder` of
    /// `pkg/apiserver/customresource_handler.go`). Returns the pruned paths.
    pub(super) fn coerce(&self, value: &mut Value) -> Result<Vec<String>, Invalid> {
        let dropped = self.schema.decode(value)?;
        self.schema.apply_defaults(value);
        Ok(dropped)
    }

    /// Validation error of an object; `old` is the one that it replaces. Violations in unchanged
    /// parts are only warnings.
    pub(super) fn validate(&self, new: &Value, old: Option<&Value>, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let mut errors = self.schema.validate(new, old);
        errors.extend(self.scale_errors(new, true));
        errors.extend(self.scale_errors(new, false));
        self.add_rules(errors, new, old, warnings)
    }

    /// The fault of the status of an object.
    pub(super) fn validate_status(&self, new: &Value, old: &Value, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let mut errors = self.schema.validate_status(new, old);
        errors.extend(self.scale_errors(new, false));
        self.add_rules(errors, new, Some(old), warnings)
    }

    fn ask(&self, new: &Value, old: Option<&Value>) -> Verdict {
        match self.rules.get_or_init(|| Rules::compile(&self.schema)) {
            Some(rules) => aside(|| rules.validate(&self.schema, new, old)),
            None => Verdict::default(),
        }
    }

    /// Rules are evaluated only on values that the schema admits (`hasBlockingErr` of
    /// `pkg/registry/customresource/strategy.go`).
    fn add_rules(
        &self,
        mut errors: Vec<Invalid>,
        new: &Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Vec<Invalid> {
        let is_blocking = |error: &Invalid| {
            matches!(
                error.kind,
                InvalidKind::NotSupported
                    | InvalidKind::Required
                    | InvalidKind::TooLong
                    | InvalidKind::TooMany
                    | InvalidKind::TypeInvalid
            )
        };
        if !errors.iter().any(is_blocking) {
            let verdict = self.ask(new, old);
            errors.extend(verdict.errors);
            warnings.extend(verdict.tolerated.into_iter().map(|error| error.to_string()));
        } else if self.rules.get_or_init(|| Rules::compile(&self.schema)).is_some() {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors \
                          to complete validation";
            errors.push(Invalid::rendered("<nil>", "null".to_owned(), detail));
        }
        errors
    }

    /// `ValidateScaleSpec` and `ValidateScaleStatus` of `pkg/registry/customresource/validator.go`
    fn scale_errors(&self, object: &Value, of_spec: bool) -> Vec<Invalid> {
        let (Some(replicas), Some(members)) = (&self.replicas, object.as_object()) else {
            return Vec::new();
        };
        let path = if of_spec { replicas.spec } else { &replicas.status };
        let mut errors = Vec::new();
        match nested(members, path).map(|own| (own, own.as_i64())) {
            None | Some((Value::Null, _)) => {}
            Some((_, Some(number))) if number < 0 => {
                errors.push(Invalid::value(path, number, "should be a non-negative integer"));
            }
            Some((_, Some(number))) if number > i64::from(i32::MAX) => {
                let detail = format!("should be less than or equal to {}", i32::MAX);
                errors.push(Invalid::value(path, number, detail));
            }
            Some((_, Some(_))) => {}
            Some((own, None)) => {
                let detail = format!(
                    "{path} accessor error: {own} is of the type {}, expected int64",
                    go::type_name(own)
                );
                errors.push(Invalid::value(path, 0, detail));
            }
        }
        if let Some(path) = replicas.selector.as_deref().filter(|_| !of_spec)
            && let Some(own) = nested(members, path).filter(|own| !own.is_string() && !own.is_null())
        {
            let detail = format!(
                "{path} accessor error: {own} is of the type {}, expected string",
                go::type_name(own)
            );
            errors.push(Invalid::value(path, "", detail));
        }
        errors
    }
}

/// The types of a whole object.
fn root(node: &Node) -> Shape {
    let mut members = match shape(node) {
        Shape::Map(members) => members,
        Shape::Deduced | Shape::Scalar(_) | Shape::Message(_) | Shape::List { .. } => Members {
            others: Some(Box::new(Shape::Deduced)),
            ..Members::default()
        },
    };
    identify(&mut members.fields);
    Shape::Map(members)
}

/// Sets the types of the fields that every object has, embedded ones too (`addEmbeddedProperties` of
/// `pkg/controller/openapi/builder/builder.go`).
fn identify(fields: &mut BTreeMap<String, Shape>) {
    for name in ["apiVersion", "kind"] {
        fields.insert(name.to_owned(), Shape::Scalar(Scalar::Text));
    }
    if let Some(metadata) = Schema::named("meta.v1.ObjectMeta") {
        fields.insert("metadata".to_owned(), Shape::Message(metadata));
    }
}

fn shape(node: &Node) -> Shape {
    if node.is_int_or_string() {
        return Shape::Scalar(Scalar::Any);
    }
    match node.kind() {
        None => Shape::Deduced,
        Some(Kind::String) => Shape::Scalar(Scalar::Text),
        Some(Kind::Boolean) => Shape::Scalar(Scalar::Boolean),
        Some(Kind::Integer | Kind::Number) => Shape::Scalar(Scalar::Number),
        Some(Kind::Object) => Shape::Map(members(node)),
        Some(Kind::Array) => Shape::List {
            item: Box::new(node.items().map_or(Shape::Deduced, shape)),
            keys: match node.list_type() {
                None | Some(ListType::Atomic) => Keys::Atomic,
                Some(ListType::Set) => Keys::Set,
                Some(ListType::Map) => Keys::Map(node.list_keys().map(|key| keyed(node, key)).collect()),
            },
        },
    }
}

fn keyed(list: &Node, key: &str) -> (String, Option<String>) {
    let member = list.items().and_then(|item| item.property(key));
    let default = member.and_then(Node::default_value);
    (key.to_owned(), default.map(Value::to_string))
}

fn members(node: &Node) -> Members {
    let mut fields: BTreeMap<String, Shape> = node
        .properties()
        .map(|(name, below)| (name.to_owned(), shape(below)))
        .collect();
    if node.is_embedded() {
        identify(&mut fields);
    }
    let others = match node.additional() {
        Some(Additional::Schema(below)) => Some(shape(below)),
        Some(Additional::Any(true)) => Some(Shape::Deduced),
        Some(Additional::Any(false)) | None => node.preserves_unknown_fields().then_some(Shape::Deduced),
    };
    Members {
        fields,
        others: others.map(Box::new),
        atomic: node.map_type() == Some(MapType::Atomic),
    }
}

/// The columns of the table (`pkg/registry/customresource/tableconvertor/tableconvertor.go`).
pub(super) struct Columns(Vec<(ColumnDefinition, JsonPath)>);

impl Columns {
    fn of(columns: &[CustomResourceColumnDefinition]) -> Self {
        let age = CustomResourceColumnDefinition {
            name: "Age".to_owned(),
            type_: "date".to_owned(),
            description: Some(described("meta.v1.ObjectMeta.creationTimestamp").to_owned()),
            json_path: ".metadata.creationTimestamp".to_owned(),
            ..CustomResourceColumnDefinition::default()
        };
        let columns = if columns.is_empty() {
            std::slice::from_ref(&age)
        } else {
            columns
        };
        // Upstream shows the columns before the first whose path it cannot read.
        let read = columns.iter().map_while(|column| {
            let path = JsonPath::parse(&column.json_path)?;
            let description = column.description.clone().filter(|text| !text.is_empty());
            let description = description.unwrap_or_else(|| {
                format!(
                    "Custom resource definition column (in JSONPath format): {}",
                    column.json_path
                )
            });
            let heading = ColumnDefinition {
                name: column.name.clone().into(),
                cell_type: intern::text(&column.type_),
                format: intern::text(column.format.as_deref().unwrap_or_default()),
                description: description.into(),
                priority: column.priority.unwrap_or(0),
            };
            Some((heading, path))
        });
        Self(read.collect())
    }

    pub(super) fn headings(&self) -> Vec<ColumnDefinition> {
        let name = ColumnDefinition {
            name: "Name".into(),
            cell_type: "string",
            format: "name",
            description: described("meta.v1.ObjectMeta.name").into(),
            priority: 0,
        };
        let others = self.0.iter().map(|(heading, _)| heading.clone());
        std::iter::once(name).chain(others).collect()
    }

    pub(super) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
        let others = self.0.iter().map(|(heading, path)| match path.find(object) {
            Some(value) => cell(heading.cell_type, value, now),
            None => Value::Null,
        });
        std::iter::once(name).chain(others).collect()
    }
}

fn cell(cell_type: &str, value: &Value, now: Timestamp) -> Value {
    match (cell_type, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("string", Value::Null) => Value::from("<no value>"),
        ("string", other) => Value::from(other.to_string()),
        ("integer", Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::from(number),
            #[expect(clippy::cast_possible_truncation, reason = "Go cuts off the fraction as well")]
            (None, Some(number)) => Value::from(number as i64),
            (None, None) => Value::Null,
        },
        ("number", Value::Number(number)) => json!(number),
        ("date", Value::String(text)) if ["", "null"].contains(&text.as_str()) => Value::from(table::since(None, now)),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => Value::from(table::since(Some(&Time(then)), now)),
            Err(_no_time) => Value::from("<invalid>"),
        },
        _ => Value::Null,
    }
}

/// The names of a path of dots.
pub(super) fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches('.').split('.')
}

/// The value at a path of dots.
pub(super) fn nested<'v>(members: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let mut names = parts(path);
    let first = members.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}
