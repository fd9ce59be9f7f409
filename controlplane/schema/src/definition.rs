//! Validation of a definition's schema (`pkg/apis/apiextensions/validation/validation.go`).

mod defaults;
mod expressions;
mod field_path;
mod invariants;
mod lists;
mod rules;

use serde_json::Value;

use crate::Invalid;
use crate::path::Path;
use crate::props::{Items, Props, PropsOrBool};
use crate::render;
use crate::structural::{META, NotStructural, Structural};

pub use field_path::FieldPathError;

/// Most errors about one schema.
const MAX_FOUND: usize = 200;

/// Options from the rest of the definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// True if the version has the subresource `status`, whose schema must then be self-contained.
    pub status_subresource: bool,
}

impl Structural {
    /// Validates the `openAPIV3Schema` of a definition, which is at `path`, and builds it.
    ///
    /// # Errors
    /// All errors of the schema.
    pub fn parse(schema: &Value, path: &str, options: Options) -> Result<Self, Vec<Invalid>> {
        let at = Path::given(path);
        let built = Self::new(schema);
        let Some(props) = Props::of(schema).filter(|_| built.as_ref().err() != Some(&NotStructural::Depth)) else {
            return built.map_err(|error| vec![Invalid::value(path, "", error.to_string())]);
        };
        let mut found = Vec::new();
        let mut with_rules = None;
        if options.status_subresource {
            found.extend(root(props, schema, &at));
        }
        if props.flag("nullable") {
            let at = format!("{path}.nullable");
            found.push(Invalid::forbidden(at, "nullable cannot be true at the root"));
        }
        if let Ok(structural) = &built {
            let mut wrong = invariants::check(props, &at);
            if wrong.is_empty() {
                wrong = defaults::check(structural.root(), &at);
            }
            // The rules of an invalid schema cannot be compiled.
            with_rules = wrong.is_empty().then(|| structural.root());
            found.extend(wrong);
        }
        let before = found.len();
        let mut check = Check { found };
        check.schema(props, &at, Place::default());
        if let Some(root) = with_rules {
            let faults = check.found.get(before..).unwrap_or_default();
            let wrong = expressions::check(root, &at, faults);
            check.found.extend(wrong);
        }
        match built {
            Ok(structural) if check.found.is_empty() => Ok(structural),
            Err(error) if check.found.is_empty() => Err(vec![Invalid::value(path, "", error.to_string())]),
            Ok(_) | Err(_) => Err(check.found),
        }
    }
}

/// With the subresource `status` the root may have only keywords that do not concern the status.
fn root(props: Props<'_>, schema: &Value, at: &Path<'_>) -> Option<Invalid> {
    const ALLOWED: [(&str, &str); 22] = [
        ("Description", "description"),
        ("Type", "type"),
        ("Format", "format"),
        ("Title", "title"),
        ("Maximum", "maximum"),
        ("ExclusiveMaximum", "exclusiveMaximum"),
        ("Minimum", "minimum"),
        ("ExclusiveMinimum", "exclusiveMinimum"),
        ("MaxLength", "maxLength"),
        ("MinLength", "minLength"),
        ("Pattern", "pattern"),
        ("MaxItems", "maxItems"),
        ("MinItems", "minItems"),
        ("UniqueItems", "uniqueItems"),
        ("MultipleOf", "multipleOf"),
        ("Required", "required"),
        ("Items", "items"),
        ("Properties", "properties"),
        ("ExternalDocs", "externalDocs"),
        ("Example", "example"),
        ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
        ("XValidations", "x-kubernetes-validations"),
    ];
    let is_other = |name: &str| !ALLOWED.iter().any(|(_, allowed)| *allowed == name) && props.is_set(name);
    // Upstream reports only the first one, in the order of its fields.
    let is_first = ["id", "$schema", "$ref"].into_iter().any(is_other);
    let kind = props.text("type");
    if !is_first && !kind.is_empty() && kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is \
                      enabled";
        return Some(Invalid::value(format!("{at}.type"), kind, detail));
    }
    if !props.names().any(is_other) {
        return None;
    }
    let names: Vec<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    let detail = format!(
        "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
        names.join(" ")
    );
    Some(Invalid::rendered(at.to_string(), render::json(schema), detail))
}

/// Position of a schema in the definition.
#[derive(Clone, Copy, Default)]
struct Place {
    is_below_root: bool,
    is_in_metadata: bool,
    /// Reason why a default is forbidden here.
    no_defaults: Option<&'static str>,
}

struct Check {
    found: Vec<Invalid>,
}

impl Check {
    fn forbid(&mut self, at: &Path<'_>, name: &str, detail: &str) {
        self.found.push(Invalid::forbidden(at.child(name).to_string(), detail));
    }

    fn require(&mut self, at: &Path<'_>, name: &str, detail: &str) {
        self.found.push(Invalid::required(at.child(name).to_string(), detail));
    }

    fn refuse(&mut self, at: &Path<'_>, name: &str, value: Option<&Value>, detail: &str) {
        let value = value.map_or_else(|| "\"\"".to_owned(), render::value);
        let at = at.child(name).to_string();
        self.found.push(Invalid::rendered(at, value, detail));
    }

    fn schema(&mut self, props: Props<'_>, at: &Path<'_>, place: Place) {
        if self.found.len() >= MAX_FOUND {
            return;
        }
        self.keywords(props, at, place);
        if props.flag("uniqueItems") {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.forbid(at, "uniqueItems", detail);
        }
        self.below(props, at, place);
        if props.optional_flag("x-kubernetes-preserve-unknown-fields") == Some(false) {
            let name = "x-kubernetes-preserve-unknown-fields";
            self.refuse(at, name, props.get(name), "must be true or undefined");
        }
        lists::check(self, props, at);
        rules::check(self, props, at);
    }

    /// Forbidden keywords.
    fn keywords(&mut self, props: Props<'_>, at: &Path<'_>, place: Place) {
        const KINDS: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
        let kind = props.text("type");
        if !kind.is_empty() && !KINDS.contains(&kind) {
            self.found
                .push(Invalid::not_supported(at.child("type").to_string(), kind, &KINDS));
        }
        if let Some(reason) = place.no_defaults.filter(|_| props.get("default").is_some()) {
            self.forbid(at, "default", &format!("must not be set {reason}"));
        }
        for name in [
            "id",
            "additionalItems",
            "patternProperties",
            "definitions",
            "dependencies",
            "$ref",
        ] {
            // An empty reference and empty dependencies are forbidden as well.
            let is_set = match name {
                "dependencies" | "$ref" | "additionalItems" => props.get(name).is_some(),
                _ => props.is_set(name),
            };
            if is_set {
                self.forbid(at, name, &format!("{name} is not supported"));
            }
        }
        if kind == "null" {
            self.forbid(at, "type", "type cannot be set to null, use nullable as an alternative");
        }
        if matches!(props.items(), Some(Items::Many(items)) if !items.is_empty()) {
            self.forbid(at, "items", "items must be a schema object and not an array");
        }
        if place.is_in_metadata && props.flag("x-kubernetes-embedded-resource") {
            let name = "x-kubernetes-embedded-resource";
            self.forbid(at, name, "must not be used inside of resource meta");
        }
    }

    fn below(&mut self, props: Props<'_>, at: &Path<'_>, place: Place) {
        let is_root = !place.is_below_root;
        let place = Place {
            is_below_root: true,
            ..place
        };
        if let Some(additional) = props.props_or_bool("additionalProperties") {
            let has_properties = props.named("properties").next().is_some();
            if has_properties && !matches!(additional, PropsOrBool::Bool(true)) {
                let detail = "additionalProperties and properties are mutual exclusive";
                self.forbid(at, "additionalProperties", detail);
            }
            if let PropsOrBool::Props(below) = additional {
                let reason = "inside additionalProperties applying to object metadata";
                let place = Place {
                    no_defaults: if place.is_in_metadata {
                        Some(reason)
                    } else {
                        place.no_defaults
                    },
                    ..place
                };
                self.schema(below, &at.child("additionalProperties"), place);
            }
        }
        let properties = at.child("properties");
        let is_object = is_root || props.flag("x-kubernetes-embedded-resource");
        for (name, below) in props.named("properties") {
            let is_meta = is_object && META.contains(&name);
            let top_level = match name {
                "apiVersion" => "in top-level apiVersion",
                "kind" => "in top-level kind",
                _ => "in top-level metadata",
            };
            let place = Place {
                is_in_metadata: place.is_in_metadata || is_meta,
                no_defaults: if is_meta && is_root {
                    Some(top_level)
                } else {
                    place.no_defaults
                },
                ..place
            };
            self.schema(below, &properties.key(name), place);
        }
        self.branches(props, at, place);
    }

    fn branches(&mut self, props: Props<'_>, at: &Path<'_>, place: Place) {
        if let Some(below) = props.one("not") {
            self.schema(below, &at.child("not"), place);
        }
        for name in ["allOf", "oneOf", "anyOf"] {
            let branches = at.child(name);
            for (index, below) in props.many(name).enumerate() {
                self.schema(below, &branches.index(index), place);
            }
        }
        let definitions = at.child("definitions");
        for (name, below) in props.named("definitions") {
            self.schema(below, &definitions.key(name), place);
        }
        let items = at.child("items");
        match props.items() {
            None => {}
            Some(Items::One(below)) => self.schema(below, &items, place),
            Some(Items::Many(several)) => {
                for (index, below) in several.into_iter().enumerate() {
                    self.schema(below, &items.index(index), place);
                }
            }
        }
        let dependencies = at.child("dependencies");
        for (name, below) in props.named("dependencies") {
            self.schema(below, &dependencies.key(name), place);
        }
    }
}
