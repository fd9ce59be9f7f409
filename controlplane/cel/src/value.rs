//! Values of expressions. Objects of a request are not copied: a view of JSON with its schema
//! becomes a value only as far as an expression reads it.

mod digest;
pub(crate) mod json;
pub(crate) mod object;
pub(crate) mod opaque;
pub(crate) mod time;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use api::cidr::Cidr;
use api::quantity::Quantity;

use crate::types::Type;
use json::{List, Map};
use object::Object;
use opaque::{Check, NamedFormat, Semver, Url};
use time::Timestamp;

/// A failed evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The evaluation failed.
    #[error("{message}")]
    Evaluation {
        /// Message in upstream's words.
        message: Cow<'static, str>,
    },
    /// The cost exceeded the budget.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cost,
}

impl Error {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Evaluation {
            message: message.into(),
        }
    }

    pub(crate) fn overload() -> Self {
        Self::new("no such overload")
    }
}

/// A string, borrowed from an object if possible.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Borrowed from an object.
    Borrowed(&'a str),
    /// Created by an expression.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

/// A value.
#[derive(Clone, Debug, Default)]
pub enum Value<'a> {
    /// `null`
    #[default]
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A list.
    List(List<'a>),
    /// A map or an object.
    Map(Map<'a>),
    /// A patch object.
    Object(Arc<Object<'a>>),
    /// A timestamp.
    Timestamp(Timestamp),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A type.
    Type(Text<'a>),
    /// A value that may be absent.
    Optional(Option<Arc<Value<'a>>>),
    /// A URL.
    Url(Arc<Url>),
    /// An IP address.
    Ip(IpAddr),
    /// A range of IP addresses.
    Cidr(Cidr),
    /// A quantity.
    Quantity(Quantity),
    /// A semantic version.
    Semver(Arc<Semver>),
    /// A named format.
    Format(&'static NamedFormat),
    /// An authorization check, or its decision.
    Check(Arc<Check<'a>>),
    /// State of a quantifier after a failed element.
    Failed(Arc<Error>),
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<Arc<str>> for Value<'_> {
    fn from(text: Arc<str>) -> Self {
        Self::String(Text::Shared(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::String(Text::Shared(text.into()))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::String(Text::Borrowed(text))
    }
}

impl<'a> From<Vec<Value<'a>>> for Value<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        Self::List(List::from(items))
    }
}

impl<'a> Value<'a> {
    /// A length as a number.
    pub(crate) fn length(length: usize) -> Self {
        Self::Int(i64::try_from(length).unwrap_or(i64::MAX))
    }

    /// An optional that holds a value.
    pub(crate) fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// The string, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self {
            Some(text)
        } else {
            None
        }
    }

    /// The boolean, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    /// Name of the value's type.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Object(object) => object.type_name(),
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Check(check) => check.type_name(),
            Self::Failed(_) => "error",
        }
    }

    /// Type of a literal.
    pub(crate) fn literal_type(&self) -> Type {
        match self.type_name() {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "null_type" => Type::Null,
            _ => Type::Dyn,
        }
    }

    /// Size for the cost: characters, bytes, items or entries, and 1 for all other values.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => return value.size(),
            Self::Url(url) => url.text.chars().count(),
            Self::Ip(IpAddr::V4(_)) => 4,
            Self::Ip(IpAddr::V6(_)) => 16,
            Self::Cidr(cidr) => usize::from(cidr.prefix.div_ceil(8)),
            _ => 1,
        };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// Number of values that a traversal visits, this one included.
    pub(crate) fn all(&self) -> u64 {
        match self {
            Self::List(list) => list.all().saturating_add(1),
            Self::Map(map) => map.all().saturating_add(1),
            Self::Object(object) => object.all().saturating_add(1),
            Self::Optional(Some(value)) => value.all().saturating_add(1),
            _ => 1,
        }
    }

    fn number(&self) -> Option<Number> {
        match self {
            Self::Int(value) => Some(Number::Whole(i128::from(*value))),
            Self::Uint(value) => Some(Number::Whole(i128::from(*value))),
            Self::Double(value) => Some(Number::Broken(*value)),
            _ => None,
        }
    }

    /// Equality of any two values: numbers compare by value, other values of different types
    /// differ.
    pub fn equals(&self, other: &Self) -> bool {
        if let (Some(left), Some(right)) = (self.number(), other.number()) {
            return left.compare(right) == Some(std::cmp::Ordering::Equal);
        }
        match (self, other) {
            (Self::Null, Self::Null) | (Self::Optional(None), Self::Optional(None)) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::String(left), Self::String(right)) | (Self::Type(left), Self::Type(right)) => **left == **right,
            (Self::Bytes(left), Self::Bytes(right)) => left == right,
            (Self::List(left), Self::List(right)) => left.equals(right),
            (Self::Map(left), Self::Map(right)) => left.equals(right),
            (Self::Object(left), Self::Object(right)) => left.equals(right),
            (Self::Timestamp(left), Self::Timestamp(right)) => left.at == right.at,
            (Self::Duration(left), Self::Duration(right)) => left == right,
            (Self::Optional(Some(left)), Self::Optional(Some(right))) => left.equals(right),
            (Self::Url(left), Self::Url(right)) => left.text == right.text,
            (Self::Ip(left), Self::Ip(right)) => left == right,
            (Self::Cidr(left), Self::Cidr(right)) => left == right,
            (Self::Quantity(left), Self::Quantity(right)) => left == right,
            (Self::Semver(left), Self::Semver(right)) => left.cmp(right).is_eq(),
            (Self::Format(left), Self::Format(right)) => left.name == right.name,
            _ => false,
        }
    }

    /// Order of two values, if they are ordered.
    pub(crate) fn compare(&self, other: &Self) -> Result<std::cmp::Ordering, Error> {
        if let (Some(left), Some(right)) = (self.number(), other.number()) {
            return left
                .compare(right)
                .ok_or_else(|| Error::new("NaN values cannot be ordered"));
        }
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => Ok(left.cmp(right)),
            (Self::String(left), Self::String(right)) => Ok(left.as_bytes().cmp(right.as_bytes())),
            (Self::Bytes(left), Self::Bytes(right)) => Ok(left.cmp(right)),
            (Self::Timestamp(left), Self::Timestamp(right)) => Ok(left.at.cmp(&right.at)),
            (Self::Duration(left), Self::Duration(right)) => Ok(left.cmp(right)),
            _ => Err(Error::overload()),
        }
    }

    /// The value as a map key, if it can be one.
    pub(crate) fn to_key(&self) -> Option<Key<'a>> {
        match self {
            Self::Bool(value) => Some(Key::Bool(*value)),
            Self::Int(value) => Some(Key::Int(*value)),
            Self::Uint(value) => Some(Key::Uint(*value)),
            Self::String(text) => Some(Key::String(text.clone())),
            Self::Double(value) => whole(*value).map(Key::Int),
            _ => None,
        }
    }
}

/// Values of variables.
pub trait Bindings<'a>: Sync {
    /// The value of a variable, if it exists.
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>>;

    /// True if the value is no longer needed: the evaluation ends soon.
    fn is_interrupted(&self) -> bool {
        false
    }
}

impl<'a> Bindings<'a> for [(&str, Value<'a>)] {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| Ok(value.clone()))
    }
}

impl<'a, const N: usize> Bindings<'a> for [(&str, Value<'a>); N] {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        Bindings::get(self.as_slice(), name)
    }
}

/// The integer that equals a floating-point number, if any.
pub(crate) fn whole(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if value.fract() != 0.0 || !(-LIMIT..LIMIT).contains(&value) {
        return None;
    }
    // The standard library has no checked conversion; parsing the decimal text is one.
    format!("{value:.0}").parse().ok()
}

#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Broken(f64),
}

impl Number {
    fn compare(self, other: Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Self::Whole(left), Self::Whole(right)) => Some(left.cmp(&right)),
            (Self::Broken(left), Self::Broken(right)) => left.partial_cmp(&right),
            (Self::Whole(left), Self::Broken(right)) => Self::mixed(left, right),
            (Self::Broken(left), Self::Whole(right)) => Self::mixed(right, left).map(std::cmp::Ordering::reverse),
        }
    }

    fn mixed(left: i128, right: f64) -> Option<std::cmp::Ordering> {
        if right.is_nan() {
            return None;
        }
        if right.abs() >= 1e30 {
            return Some(if right > 0.0 {
                std::cmp::Ordering::Less
            } else {
                std::cmp::Ordering::Greater
            });
        }
        let floor: i128 = format!("{:.0}", right.floor()).parse().ok()?;
        Some(left.cmp(&floor).then(if right.fract() == 0.0 {
            std::cmp::Ordering::Equal
        } else {
            std::cmp::Ordering::Less
        }))
    }
}

/// A key of a map.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    /// `true`, `false`
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// Text.
    String(Text<'a>),
}

impl<'a> Key<'a> {
    /// The key as a value.
    pub(crate) fn to_value(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::String(text) => Value::String(text.clone()),
        }
    }

    fn rank(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(value) => (0, i128::from(*value), ""),
            Self::Int(value) => (1, i128::from(*value), ""),
            Self::Uint(value) => (1, i128::from(*value), ""),
            Self::String(text) => (2, 0, text),
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Key<'_> {}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A key as shown in errors.
pub(crate) fn shown(key: &Key<'_>) -> String {
    match key {
        Key::Bool(value) => value.to_string(),
        Key::Int(value) => value.to_string(),
        Key::Uint(value) => value.to_string(),
        Key::String(text) => (**text).to_owned(),
    }
}

/// Entries of a map that an expression constructed.
pub(crate) type Entries<'a> = BTreeMap<Key<'a>, Value<'a>>;
