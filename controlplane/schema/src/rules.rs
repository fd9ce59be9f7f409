//! Validation rules in CEL (`x-kubernetes-validations`), compiled once for a version of a
//! definition (`pkg/apiserver/schema/cel/{compilation,validation}.go`).
//!
//! [`Rules`] is a tree parallel to the schema's: the nodes with rules, and those on the way to
//! them. `declared` provides the types for expressions, `evaluate` evaluates the rules on an
//! object.

#[cfg(test)]
mod costs;
mod declared;
mod evaluate;

use expressions::schema::{MAX_REQUEST_BYTES, ObjectSchema, Schema, Shape, escape};
use expressions::{CompileError, Environment, Program, Type};

use crate::structural::{Additional, Kind, Node, Rule, Structural};

pub(crate) use declared::declared;
pub(crate) use evaluate::Budget;
pub use evaluate::Verdict;

/// The compiled rules of a schema.
#[derive(Debug)]
pub struct Rules {
    root: Scope,
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none.
    pub fn compile(schema: &Structural) -> Option<Self> {
        let root = Scope::of_node(schema.root(), true)?;
        Some(Self { root })
    }
}

/// Rules of a node and of the nodes below.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    kind: Option<Kind>,
    /// CEL type of the node; `None` if expressions cannot access it.
    schema: Option<Schema>,
    /// There are rules, but no type to compile them for.
    is_unseen: bool,
    rules: Vec<Compiled>,
    items: Option<Box<Scope>>,
    additional: Option<Box<Scope>>,
    properties: Vec<(Box<str>, Scope)>,
    all_of: Vec<Scope>,
}

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) rule: Rule,
    /// `None` for an empty rule.
    pub(crate) program: Option<Result<Program, String>>,
    pub(crate) uses_old_self: bool,
    pub(crate) message: Option<Result<Program, String>>,
    /// The normalized `fieldPath`; may be empty.
    pub(crate) field: String,
}

impl Compiled {
    /// Compiles a rule of a node whose CEL type is `schema`.
    pub(crate) fn new(node: &Node, rule: &Rule, schema: &Schema) -> Self {
        let own = schema.as_type();
        let old = if rule.optional_old_self == Some(true) {
            Type::optional(own.clone())
        } else {
            own.clone()
        };
        let environment = Environment::default().with("self", own).with("oldSelf", old);
        let program = (!rule.rule.trim().is_empty()).then(|| match environment.compile(&rule.rule) {
            Ok(program) if *program.result() == Type::Bool => Ok(program),
            Ok(_) => Err("cel expression must evaluate to a bool".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        let is_good = matches!(program, Some(Ok(_)));
        let has_message = is_good && !rule.message_expression.is_empty();
        let message = has_message.then(|| match environment.compile(&rule.message_expression) {
            Ok(program) if *program.result() == Type::String => Ok(program),
            Ok(_) => Err("messageExpression must evaluate to a string".to_owned()),
            Err(CompileError::Issues(issues)) => Err(format!("messageExpression compilation failed: {issues}")),
            Err(CompileError::Constant(error)) => Err(format!("messageExpression instantiation failed: {error}")),
        });
        let field = Some(&rule.field_path).filter(|path| is_good && !path.is_empty());
        Self {
            uses_old_self: matches!(&program, Some(Ok(program)) if program.uses("oldSelf")),
            program,
            message,
            field: field
                .and_then(|path| node.field(path).ok())
                .map_or_else(String::new, |(path, _)| path),
            rule: rule.clone(),
        }
    }

    /// Highest cost of a rule's expressions at one place.
    pub(crate) fn cost(program: Option<&Result<Program, String>>, schema: &Schema) -> u64 {
        match program {
            Some(Ok(program)) => program.estimate(&[("self", schema), ("oldSelf", schema)]).max,
            Some(Err(_)) | None => 0,
        }
    }
}

/// Most values of a type that fit into a request.
pub(crate) fn cardinality(schema: &Schema) -> u64 {
    MAX_REQUEST_BYTES / (schema.least + 1)
}

/// The declared type of a property.
pub(crate) fn property<'s>(schema: &'s Schema, name: &str) -> Option<&'s Schema> {
    let Shape::Object(object) = &schema.shape else {
        return None;
    };
    let object: &ObjectSchema = object;
    object.fields.get(&escape(name)?).map(|field| &field.schema)
}

/// The declared type of a list's items or a map's values.
pub(crate) fn element(schema: &Schema) -> Option<&Schema> {
    match &schema.shape {
        Shape::List { items, .. } => Some(items),
        Shape::Map(values) => Some(values),
        Shape::Object(_)
        | Shape::String(_)
        | Shape::Int
        | Shape::Double
        | Shape::Bool
        | Shape::IntOrString
        | Shape::Dyn => None,
    }
}

fn has_rules(node: &Node) -> bool {
    !node.rules().is_empty()
        || node.items().is_some_and(has_rules)
        || matches!(node.additional(), Some(Additional::Schema(below)) if has_rules(below))
        || node.properties().any(|(_, below)| has_rules(below))
}

impl Scope {
    /// Rules of a single node: of a whole object, or of a default.
    pub(crate) fn of_node(node: &Node, is_root: bool) -> Option<Self> {
        if !has_rules(node) {
            return None;
        }
        let schema = declared(node, is_root);
        Self::new(node, node, schema.as_ref())
    }

    /// Rules of `own`, the node or a branch of its `allOf`, for a node.
    fn new(own: &Node, node: &Node, schema: Option<&Schema>) -> Option<Self> {
        let items = own.items().zip(node.items()).and_then(|(own, below)| {
            let scope = Self::new(own, below, schema.and_then(element));
            scope.map(Box::new)
        });
        let mut properties = Vec::new();
        for (name, own) in own.properties() {
            let Some(below) = node.property(name) else { continue };
            let unescaped;
            let known = if escape(name).is_some() {
                schema.and_then(|schema| property(schema, name))
            } else {
                unescaped = declared(below, below.is_embedded());
                unescaped.as_ref()
            };
            if known.is_some()
                && let Some(scope) = Self::new(own, below, known)
            {
                properties.push((name.into(), scope));
            }
        }
        let additional = match (own.additional(), node.additional()) {
            (Some(Additional::Schema(own)), Some(Additional::Schema(below))) => {
                Self::new(own, below, schema.and_then(element)).map(Box::new)
            }
            _ => None,
        };
        let branches = own.values().into_iter().flat_map(|values| &values.all_of);
        let scope = Self {
            kind: node.kind(),
            schema: schema.cloned(),
            is_unseen: schema.is_none() && !own.rules().is_empty(),
            rules: schema.map_or_else(Vec::new, |schema| {
                let rules = own.rules().iter();
                rules.map(|rule| Compiled::new(node, rule, schema)).collect()
            }),
            items,
            additional,
            properties,
            all_of: branches.filter_map(|own| Self::new(own, node, schema)).collect(),
        };
        let is_empty = !scope.is_unseen
            && scope.rules.is_empty()
            && scope.items.is_none()
            && scope.additional.is_none()
            && scope.properties.is_empty()
            && scope.all_of.is_empty();
        (!is_empty).then_some(scope)
    }
}
