//! Rules of structural schemas (`pkg/apiserver/schema/{validation,complete}.go`).

use serde_json::Value;

use super::MAX_FOUND;
use crate::Invalid;
use crate::path::Path;
use crate::pattern;
use crate::props::{Props, PropsOrBool};
use crate::render;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns all violations of structural schemas, sorted by text.
pub(super) fn check(props: Props<'_>, at: &Path<'_>) -> Vec<Invalid> {
    let mut check = Check { found: Vec::new() };
    check.node(props, Level::Root, at);
    check.complete(props, Some(props), at, at);
    check.found.sort_by_cached_key(ToString::to_string);
    check.found
}

struct Check {
    found: Vec<Invalid>,
}

impl Check {
    fn require(&mut self, at: &Path<'_>, detail: impl Into<String>) {
        self.found.push(Invalid::required(at.to_string(), detail));
    }

    fn forbid(&mut self, at: &Path<'_>, detail: &str) {
        self.found.push(Invalid::forbidden(at.to_string(), detail));
    }

    fn refuse(&mut self, at: &Path<'_>, value: Option<&Value>, detail: &str) {
        let value = value.map_or_else(|| "\"\"".to_owned(), render::value);
        self.found.push(Invalid::rendered(at.to_string(), value, detail));
    }

    fn node(&mut self, props: Props<'_>, level: Level, at: &Path<'_>) {
        if self.found.len() >= MAX_FOUND {
            return;
        }
        let items = at.child("items");
        match props.item() {
            Some(item) => self.node(item, Level::Item, &items),
            None if props.text("type") == "array" => self.require(&items, "must be specified"),
            None => {}
        }
        let properties = at.child("properties");
        for (name, below) in props.named("properties") {
            self.node(below, Level::Field, &properties.key(name));
        }
        let additional = at.child("additionalProperties");
        if let Some(below) = props.props_or_bool("additionalProperties") {
            if level == Level::Root {
                self.forbid(&additional, "must not be used at the root");
            }
            if let PropsOrBool::Props(below) = below {
                self.node(below, Level::Field, &additional);
            }
        }
        if props.flag(INT_OR_STRING) {
            for name in [PRESERVE, EMBEDDED] {
                if props.flag(name) {
                    let detail = "must be false if x-kubernetes-int-or-string is true";
                    self.refuse(&at.child(name), props.get(name), detail);
                }
            }
        }
        let is_first = props.many("allOf").next().is_some_and(is_int_or_string);
        self.values(props, is_int_or_string(props), is_first, at);
        self.kind(props, level, at);
        self.meta(props, level, at);
    }

    /// Checks the type and the keywords that depend on it.
    fn kind(&mut self, props: Props<'_>, level: Level, at: &Path<'_>) {
        let (kind, path) = (props.text("type"), at.child("type"));
        if props.flag(EMBEDDED) && kind != "object" {
            let detail = "must be object if x-kubernetes-embedded-resource is true";
            if kind.is_empty() {
                self.require(&path, detail);
            } else {
                self.refuse(&path, props.get("type"), detail);
            }
        } else if kind.is_empty() && !props.flag(INT_OR_STRING) && !props.flag(PRESERVE) {
            let detail = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            self.require(&path, detail);
        }
        if props.flag(EMBEDDED) && props.props_or_bool("additionalProperties").is_some() {
            let path = at.child("additionalProperties");
            self.forbid(&path, "must not be used if x-kubernetes-embedded-resource is set");
        }
        if level == Level::Root && !kind.is_empty() && kind != "object" {
            self.refuse(&path, props.get("type"), "must be object at the root");
        }
    }

    fn meta(&mut self, props: Props<'_>, level: Level, at: &Path<'_>) {
        let properties = at.child("properties");
        let is_object = level == Level::Root || props.flag(EMBEDDED);
        for name in ["kind", "apiVersion"] {
            let Some(own) = props
                .property(name)
                .filter(|own| is_object && own.text("type") != "string")
            else {
                continue;
            };
            self.refuse(&properties.key(name).child("type"), own.get("type"), "must be string");
        }
        if let Some(own) = props.property("metadata") {
            let path = properties.key("metadata");
            if is_object && own.text("type") != "object" {
                self.refuse(&path.child("type"), own.get("type"), "must be object");
            }
            if level == Level::Root && !is_plain_metadata(own) {
                let detail = "must not specify anything other than name and generateName, but metadata is implicitly \
                              specified";
                self.forbid(&path, detail);
            }
        }
        let is_open = props.flag(PRESERVE) || props.named("properties").next().is_some();
        if props.flag(EMBEDDED) && !is_open {
            let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                          x-kubernetes-preserve-unknown-fields";
            self.require(&properties, detail);
        }
    }

    /// Checks value validations and logical junctors.
    fn values(&mut self, props: Props<'_>, skips_any: bool, skips_first: bool, at: &Path<'_>) {
        if !skips_any {
            self.branches(props, "anyOf", at);
        }
        let all = at.child("allOf");
        for (index, below) in props.many("allOf").enumerate() {
            self.nested(below, skips_first && index == 0, &all.index(index));
        }
        self.branches(props, "oneOf", at);
        if let Some(not) = props.one("not") {
            self.nested(not, false, &at.child("not"));
        }
        let text = props.text("pattern");
        if let Some(error) = Some(text)
            .filter(|text| !text.is_empty())
            .and_then(|text| pattern::compile(text).err())
        {
            let detail = format!("must be a valid regular expression, but isn't: {error}");
            self.refuse(&at.child("pattern"), props.get("pattern"), &detail);
        }
    }

    fn branches(&mut self, props: Props<'_>, name: &str, at: &Path<'_>) {
        let path = at.child(name);
        for (index, below) in props.many(name).enumerate() {
            self.nested(below, false, &path.index(index));
        }
    }

    /// A schema in `allOf`, `anyOf`, `oneOf` or `not`.
    fn nested(&mut self, props: Props<'_>, skips_any: bool, at: &Path<'_>) {
        const EMPTY: &str = "must be empty to be structural";
        const FALSE: &str = "must be false to be structural";
        const UNDEFINED: &str = "must be undefined to be structural";
        const FORBIDDEN: [(&str, &str); 13] = [
            ("type", EMPTY),
            ("additionalProperties", UNDEFINED),
            ("default", UNDEFINED),
            ("title", EMPTY),
            ("description", EMPTY),
            ("nullable", FALSE),
            (PRESERVE, FALSE),
            (EMBEDDED, FALSE),
            (INT_OR_STRING, FALSE),
            ("x-kubernetes-list-map-keys", EMPTY),
            ("x-kubernetes-list-type", UNDEFINED),
            ("x-kubernetes-map-type", UNDEFINED),
            ("x-kubernetes-validations", EMPTY),
        ];
        if self.found.len() >= MAX_FOUND {
            return;
        }
        self.values(props, skips_any, false, at);
        if let Some(item) = props.item() {
            self.nested(item, false, &at.child("items"));
        }
        let properties = at.child("properties");
        for (name, below) in props.named("properties") {
            self.nested(below, false, &properties.key(name));
        }
        for (name, detail) in FORBIDDEN {
            let is_set = match name {
                "default" | "x-kubernetes-list-type" | "x-kubernetes-map-type" => props.get(name).is_some(),
                _ => props.is_set(name),
            };
            if is_set {
                self.forbid(&at.child(name), detail);
            }
        }
        if props.property("metadata").is_some() {
            self.forbid(&properties.key("metadata"), "must not be specified in a nested context");
        }
    }

    /// Checks that fields of branches exist outside of them.
    fn complete(&mut self, branch: Props<'_>, node: Option<Props<'_>>, at: &Path<'_>, of: &Path<'_>) {
        if self.found.len() >= MAX_FOUND {
            return;
        }
        let Some(node) = node else {
            self.require(at, format!("because it is defined in {of}"));
            return;
        };
        if let Some(not) = branch.one("not") {
            self.complete_nested(not, node, at, &of.child("not"));
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            let branches = of.child(name);
            for (index, below) in branch.many(name).enumerate() {
                self.complete_nested(below, node, at, &branches.index(index));
            }
        }
    }

    fn complete_nested(&mut self, branch: Props<'_>, node: Props<'_>, at: &Path<'_>, of: &Path<'_>) {
        self.complete(branch, Some(node), at, of);
        if let Some(item) = branch.item() {
            self.complete_below(item, node.item(), &at.child("items"), &of.child("items"));
        }
        let (own, other) = (at.child("properties"), of.child("properties"));
        for (name, below) in branch.named("properties") {
            self.complete_below(below, node.property(name), &own.key(name), &other.key(name));
        }
    }

    fn complete_below(&mut self, branch: Props<'_>, node: Option<Props<'_>>, at: &Path<'_>, of: &Path<'_>) {
        match node {
            Some(node) => self.complete_nested(branch, node, at, of),
            None => self.require(at, format!("because it is defined in {of}")),
        }
    }
}

/// `anyOf: [{type: integer}, {type: string}]`
fn is_int_or_string(props: Props<'_>) -> bool {
    let is_only = |branch: Props<'_>, kind: &str| {
        branch.text("type") == kind && branch.names().all(|name| name == "type" || !branch.is_set(name))
    };
    let branches: Vec<Props<'_>> = props.many("anyOf").take(3).collect();
    matches!(branches.as_slice(), [one, other] if is_only(*one, "integer") && is_only(*other, "string"))
}

/// True if only name and generateName are restricted.
fn is_plain_metadata(props: Props<'_>) -> bool {
    let is_known = |name: &str| matches!(name, "type" | "default" | "properties") || !props.is_set(name);
    props.names().all(is_known)
        && props
            .named("properties")
            .all(|(name, _)| matches!(name, "name" | "generateName"))
}
