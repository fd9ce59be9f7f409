//! CEL types of schemas (`SchemaDeclType` of `k8s.io/apiserver/pkg/cel/common/schemas.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use expressions::schema::{Field, Format, ListKind, ObjectSchema, Schema, Shape, escape};

use crate::structural::{Additional, Kind, ListType, Node, Structural};

impl Structural {
    /// CEL type of the whole object, with a name; `None` if expressions cannot access it.
    pub fn declared(&self, name: &str) -> Option<Schema> {
        named(self.root(), true, name)
    }
}

/// CEL type of a node; `None` if expressions cannot access it. The root of an object always has
/// `apiVersion`, `kind`, `metadata.name` and `metadata.generateName`.
pub(crate) fn declared(node: &Node, is_root: bool) -> Option<Schema> {
    named(node, is_root, "selfType")
}

fn named(node: &Node, is_root: bool, name: &str) -> Option<Schema> {
    let mut schema = bare(node, is_root, name)?;
    schema.nullable = node.is_nullable();
    Some(schema)
}

fn bare(node: &Node, is_root: bool, name: &str) -> Option<Schema> {
    let values = node.values();
    if node.is_int_or_string() {
        let most = values.and_then(|values| values.max_length);
        return Some(Schema::new(Shape::IntOrString).at_most(most.map(in_bytes)));
    }
    Some(match node.kind()? {
        Kind::Array => {
            let items = named(node.items()?, node.items()?.is_embedded(), &format!("{name}.@idx"))?;
            let kind = match node.list_type() {
                None | Some(ListType::Atomic) => ListKind::Atomic,
                Some(ListType::Set) => ListKind::Set,
                Some(ListType::Map) => ListKind::Map(node.list_keys().map(str::to_owned).collect()),
            };
            let items = Box::new(items);
            let most = values.and_then(|values| values.max_items);
            Schema::new(Shape::List { items, kind }).at_most(most.map(positive))
        }
        Kind::Object => return object(node, is_root, name),
        Kind::String => text(node),
        Kind::Boolean => Schema::new(Shape::Bool),
        Kind::Number => Schema::new(Shape::Double),
        Kind::Integer => Schema::new(Shape::Int),
    })
}

fn positive(limit: i64) -> u64 {
    u64::try_from(limit).unwrap_or(0)
}

/// A character has at most four bytes.
fn in_bytes(characters: i64) -> u64 {
    positive(characters).saturating_mul(4)
}

fn text(node: &Node) -> Schema {
    let format = match node.format() {
        "byte" => Format::Bytes,
        "duration" => Format::Duration,
        "date" => Format::Date,
        "date-time" => Format::DateTime,
        _ => Format::Text,
    };
    let length = node.values().and_then(|values| values.max_length);
    let longest = || {
        let listed = node.values().map(|values| &*values.enumeration).unwrap_or_default();
        let sizes = listed
            .iter()
            .filter_map(|one| one.as_str())
            .map(|one| u64::try_from(one.len()).unwrap_or(u64::MAX));
        (!listed.is_empty()).then(|| sizes.max().unwrap_or(0))
    };
    let most = match format {
        Format::Text => length.map(in_bytes).or_else(longest),
        Format::Bytes => length.map(positive),
        Format::Duration | Format::Date | Format::DateTime => None,
    };
    Schema::new(Shape::String(format)).at_most(most)
}

fn object(node: &Node, is_root: bool, name: &str) -> Option<Schema> {
    if let Some(Additional::Schema(below)) = node.additional() {
        let values = named(below, below.is_embedded(), &format!("{name}.@elem"))?;
        let most = node.values().and_then(|values| values.max_properties);
        return Some(Schema::new(Shape::Map(Box::new(values))).at_most(most.map(positive)));
    }
    let mut fields = BTreeMap::new();
    // `{}`, and each required property with its quotes, colon and comma.
    let mut least = 2;
    let mut add = |json: &str, is_required: bool, schema: Schema| {
        if is_required {
            let length = u64::try_from(json.len()).unwrap_or(0);
            least += length + schema.least + 4;
        }
        if let Some(escaped) = escape(json) {
            let json = json.to_owned();
            fields.insert(
                escaped,
                Field {
                    json,
                    required: is_required,
                    schema,
                },
            );
        }
    };
    let is_required = |json: &str| node.required().any(|own| own == json);
    let has_own_meta = !is_root || declares_meta(node);
    for (json, below) in node.properties() {
        if !has_own_meta && crate::structural::META.contains(&json) {
            continue;
        }
        if let Some(schema) = named(below, below.is_embedded(), &format!("{name}.{json}")) {
            add(json, is_required(json) && below.default_value().is_none(), schema);
        }
    }
    if !has_own_meta {
        let text = || Schema::new(Shape::String(Format::Text));
        add("apiVersion", is_required("apiVersion"), text());
        add("kind", is_required("kind"), text());
        add("metadata", is_required("metadata"), metadata(name));
    }
    let shape = Shape::Object(Arc::new(ObjectSchema {
        name: name.to_owned(),
        fields,
    }));
    Some(Schema {
        shape,
        nullable: false,
        max: Some(0),
        least,
    })
}

/// `WithTypeAndObjectMeta` of `pkg/apiserver/schema/cel/model/schemas.go`
fn declares_meta(node: &Node) -> bool {
    let is = |node: &Node, name: &str, kind| node.property(name).is_some_and(|own| own.kind() == Some(kind));
    is(node, "kind", Kind::String)
        && is(node, "apiVersion", Kind::String)
        && is(node, "metadata", Kind::Object)
        && node
            .property("metadata")
            .is_some_and(|metadata| is(metadata, "name", Kind::String) && is(metadata, "generateName", Kind::String))
}

fn metadata(name: &str) -> Schema {
    let fields = ["name", "generateName"].map(|json| {
        let field = Field {
            json: json.to_owned(),
            required: false,
            schema: Schema::new(Shape::String(Format::Text)),
        };
        (json.to_owned(), field)
    });
    Schema::new(Shape::Object(Arc::new(ObjectSchema {
        name: format!("{name}.metadata"),
        fields: BTreeMap::from(fields),
    })))
}
