//! A typed view of a `JSONSchemaProps` in JSON. `null` is treated as absent, and so are fields of a
//! wrong type, which decoding has refused before.

use serde_json::{Map, Value};

/// A schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Props<'a>(&'a Map<String, Value>);

/// Forms of `items`.
pub(crate) enum Items<'a> {
    One(Props<'a>),
    Many(Vec<Props<'a>>),
}

/// Forms of `additionalProperties` and `additionalItems`.
pub(crate) enum PropsOrBool<'a> {
    Props(Props<'a>),
    Bool(bool),
}

impl<'a> Props<'a> {
    pub(crate) fn of(value: &'a Value) -> Option<Self> {
        value.as_object().map(Self)
    }

    /// A field that is set.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// True if a field has another value than Go's zero value.
    pub(crate) fn is_set(self, name: &str) -> bool {
        match self.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true) | Value::Number(_)) => true,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(members)) => !members.is_empty() || matches!(name, "not" | "items"),
        }
    }

    /// Names of the fields that are set.
    pub(crate) fn names(self) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name.as_str())
    }

    /// A string, empty if it is not set.
    pub(crate) fn text(self, name: &str) -> &'a str {
        self.optional_text(name).unwrap_or_default()
    }

    pub(crate) fn optional_text(self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    pub(crate) fn flag(self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or_default()
    }

    pub(crate) fn optional_flag(self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    pub(crate) fn float(self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    pub(crate) fn integer(self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    pub(crate) fn list(self, name: &str) -> &'a [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn texts(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.list(name).iter().filter_map(Value::as_str)
    }

    /// A schema, as `not`.
    pub(crate) fn one(self, name: &str) -> Option<Self> {
        Self::of(self.get(name)?)
    }

    /// Schemas in a list, as `allOf`.
    pub(crate) fn many(self, name: &str) -> impl Iterator<Item = Self> {
        self.list(name).iter().filter_map(Self::of)
    }

    /// Schemas by name, as `properties`, sorted.
    pub(crate) fn named(self, name: &str) -> impl Iterator<Item = (&'a str, Self)> {
        let members = self.get(name).and_then(Value::as_object).into_iter().flatten();
        members.filter_map(|(name, value)| Some((name.as_str(), Self::of(value)?)))
    }

    /// The schema of a property.
    pub(crate) fn property(self, name: &str) -> Option<Self> {
        Self::of(self.get("properties")?.get(name)?)
    }

    pub(crate) fn items(self) -> Option<Items<'a>> {
        let items = self.get("items")?;
        Some(match items.as_array() {
            Some(items) => Items::Many(items.iter().filter_map(Self::of).collect()),
            None => Items::One(Self::of(items)?),
        })
    }

    /// `items` that are one schema.
    pub(crate) fn item(self) -> Option<Self> {
        match self.items()? {
            Items::One(item) => Some(item),
            Items::Many(_) => None,
        }
    }

    pub(crate) fn props_or_bool(self, name: &str) -> Option<PropsOrBool<'a>> {
        let value = self.get(name)?;
        Some(match value.as_bool() {
            Some(allowed) => PropsOrBool::Bool(allowed),
            None => PropsOrBool::Props(Self::of(value)?),
        })
    }
}
