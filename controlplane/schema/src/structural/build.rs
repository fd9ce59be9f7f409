//! Building schemas from JSON (`pkg/apiserver/schema/convert.go`).

use serde_json::Value;

use super::{Additional, Kind, ListType, MAX_DEPTH, MapType, Node, Rule, Structural, Values};
use crate::pattern::LazyPattern;
use crate::props::{Items, Props, PropsOrBool};

/// Reason why a schema is not structural; `Display` is upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStructural {
    /// A keyword is not supported.
    #[error("OpenAPIV3Schema '{0}' is not supported")]
    Unsupported(&'static str),
    /// `items` is an array of schemas.
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    Items,
    /// `x-kubernetes-preserve-unknown-fields` is false.
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    Preserve,
    /// The schema is deeper than [`MAX_DEPTH`].
    #[error("OpenAPIV3Schema must not be nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

impl Structural {
    /// Builds the schema of a validated definition from its `openAPIV3Schema`.
    ///
    /// # Errors
    /// The schema is not structural: the definition was not validated.
    pub fn new(schema: &Value) -> Result<Self, NotStructural> {
        match Props::of(schema) {
            Some(props) => Self::of_props(props),
            None => Ok(Self { root: Node::default() }),
        }
    }

    pub(crate) fn of_props(props: Props<'_>) -> Result<Self, NotStructural> {
        Ok(Self { root: node(props, 0)? })
    }
}

fn unsupported(props: Props<'_>) -> Option<&'static str> {
    const NAMES: [&str; 7] = [
        "id",
        "$schema",
        "$ref",
        "patternProperties",
        "dependencies",
        "additionalItems",
        "definitions",
    ];
    let is_used = |name: &&str| match *name {
        "additionalItems" => props.get(name).is_some(),
        name => props.is_set(name),
    };
    let name = NAMES.into_iter().find(is_used);
    name.map(|name| if name == "$schema" { "schema" } else { name })
}

fn node(props: Props<'_>, depth: usize) -> Result<Node, NotStructural> {
    if depth > MAX_DEPTH {
        return Err(NotStructural::Depth);
    }
    if let Some(name) = unsupported(props) {
        return Err(NotStructural::Unsupported(name));
    }
    if props.optional_flag("x-kubernetes-preserve-unknown-fields") == Some(false) {
        return Err(NotStructural::Preserve);
    }
    let items = match props.items() {
        None => None,
        Some(Items::One(item)) => Some(Box::new(node(item, depth + 1)?)),
        Some(Items::Many(_)) => return Err(NotStructural::Items),
    };
    let additional = match props.props_or_bool("additionalProperties") {
        None => None,
        Some(PropsOrBool::Bool(allowed)) => Some(Additional::Any(allowed)),
        Some(PropsOrBool::Props(below)) => Some(Additional::Schema(Box::new(node(below, depth + 1)?))),
    };
    let properties = props
        .named("properties")
        .map(|(name, below)| Ok((name.into(), node(below, depth + 1)?)));
    let mut properties: Vec<(Box<str>, Node)> = properties.collect::<Result<_, _>>()?;
    properties.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Node {
        kind: Kind::of(props.text("type")),
        list_type: match props.text("x-kubernetes-list-type") {
            "atomic" => Some(ListType::Atomic),
            "set" => Some(ListType::Set),
            "map" => Some(ListType::Map),
            _ => None,
        },
        map_type: match props.text("x-kubernetes-map-type") {
            "atomic" => Some(MapType::Atomic),
            "granular" => Some(MapType::Granular),
            _ => None,
        },
        nullable: props.flag("nullable"),
        preserves: props.flag("x-kubernetes-preserve-unknown-fields"),
        embedded: props.flag("x-kubernetes-embedded-resource"),
        int_or_string: props.flag("x-kubernetes-int-or-string"),
        additional,
        items,
        properties: properties.into(),
        default: props.get("default").cloned().map(Box::new),
        rules: rules(props).collect(),
        list_keys: props.texts("x-kubernetes-list-map-keys").map(Box::from).collect(),
        values: values(props, depth)?,
    })
}

/// The rules of a node, not compiled.
fn rules(props: Props<'_>) -> impl Iterator<Item = Rule> {
    let rules = props.many("x-kubernetes-validations");
    rules.map(|rule| Rule {
        rule: rule.text("rule").to_owned(),
        message: rule.text("message").to_owned(),
        message_expression: rule.text("messageExpression").to_owned(),
        reason: rule.optional_text("reason").map(str::to_owned),
        field_path: rule.text("fieldPath").to_owned(),
        optional_old_self: rule.optional_flag("optionalOldSelf"),
    })
}

fn values(props: Props<'_>, depth: usize) -> Result<Option<Box<Values>>, NotStructural> {
    const NAMES: [&str; 17] = [
        "format",
        "maximum",
        "minimum",
        "multipleOf",
        "maxLength",
        "minLength",
        "maxItems",
        "minItems",
        "maxProperties",
        "minProperties",
        "pattern",
        "enum",
        "required",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
    ];
    if !NAMES.iter().any(|name| props.get(name).is_some()) {
        return Ok(None);
    }
    let branches = |name| {
        let branches = props.many(name).map(|below| node(below, depth + 1));
        branches.collect::<Result<Box<[Node]>, _>>()
    };
    Ok(Some(Box::new(Values {
        format: props.text("format").into(),
        maximum: props.float("maximum"),
        exclusive_maximum: props.flag("exclusiveMaximum"),
        minimum: props.float("minimum"),
        exclusive_minimum: props.flag("exclusiveMinimum"),
        multiple_of: props.float("multipleOf"),
        max_length: props.integer("maxLength"),
        min_length: props.integer("minLength"),
        max_items: props.integer("maxItems"),
        min_items: props.integer("minItems"),
        max_properties: props.integer("maxProperties"),
        min_properties: props.integer("minProperties"),
        pattern: Some(props.text("pattern"))
            .filter(|pattern| !pattern.is_empty())
            .map(LazyPattern::new),
        enumeration: props.list("enum").into(),
        required: props.texts("required").map(Box::from).collect(),
        all_of: branches("allOf")?,
        any_of: branches("anyOf")?,
        one_of: branches("oneOf")?,
        not: props
            .one("not")
            .map(|below| node(below, depth + 1))
            .transpose()?
            .map(Box::new),
    })))
}
