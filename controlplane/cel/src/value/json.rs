//! Lists and maps: constructed by expressions, or views of JSON by schema
//! (`k8s.io/apiserver/pkg/cel/common/valuesunstructured.go`).

mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

pub use view::view;

use super::digest::{Places, pair};
use super::{Entries, Error, Key, Text, Value, shown};
use crate::schema::{ListKind, ObjectSchema, Schema, escape};

type JsonMap = serde_json::Map<String, Json>;

/// A list and its kind of comparison.
#[derive(Clone, Debug)]
pub struct List<'a> {
    items: Items<'a>,
    kind: Option<&'a ListKind>,
}

#[derive(Clone, Debug)]
enum Items<'a> {
    /// Items, and the number of all nested values, shared ones counted each time.
    Made(Arc<Vec<Value<'a>>>, u64),
    Json(&'a [Json], Option<&'a Schema>),
    Joined(Arc<Joined<'a>>),
}

/// Two concatenated lists, neither of which is copied.
#[derive(Debug)]
struct Joined<'a> {
    left: List<'a>,
    right: List<'a>,
    length: usize,
    all: u64,
    /// Nesting depth of concatenations, this one included.
    levels: usize,
}

/// Deepest nesting of concatenations.
const MAX_LEVELS: usize = 16;
/// Most items that concatenation copies, given its cost per step.
const FEW: usize = 64;

impl<'a> From<Vec<Value<'a>>> for List<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        let all = items.iter().map(Value::all).fold(0, u64::saturating_add);
        Self {
            items: Items::Made(Arc::new(items), all),
            kind: None,
        }
    }
}

impl<'a> List<'a> {
    /// Number of items.
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Made(items, _) => items.len(),
            Items::Json(items, _) => items.len(),
            Items::Joined(joined) => joined.length,
        }
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if an expression constructed the list.
    pub(crate) const fn is_made(&self) -> bool {
        matches!(self.items, Items::Made(..) | Items::Joined(_))
    }

    /// Number of constructed values that a traversal of the list visits.
    pub(crate) fn all(&self) -> u64 {
        match &self.items {
            Items::Made(_, all) => *all,
            Items::Joined(joined) => joined.all,
            Items::Json(items, _) => u64::try_from(items.len()).unwrap_or(u64::MAX),
        }
    }

    /// The item at an index.
    pub fn get(&self, mut index: usize) -> Option<Result<Value<'a>, Error>> {
        let mut list = self;
        loop {
            match &list.items {
                Items::Made(items, _) => return items.get(index).cloned().map(Ok),
                Items::Json(items, schema) => return items.get(index).map(|item| view(item, *schema)),
                Items::Joined(joined) => match index.checked_sub(joined.left.len()) {
                    None => list = &joined.left,
                    Some(rest) => (list, index) = (&joined.right, rest),
                },
            }
        }
    }

    /// The items in their order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, Error>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// All items, or the first error.
    pub(crate) fn to_vec(&self) -> Result<Vec<Value<'a>>, Error> {
        self.iter().collect()
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        if self.len() != other.len() && !matches!(self.kind, Some(ListKind::Set)) {
            return false;
        }
        let (Ok(left), Ok(right)) = (self.to_vec(), other.to_vec()) else {
            return false;
        };
        match self.kind {
            None | Some(ListKind::Atomic) => left.iter().zip(&right).all(|(left, right)| left.equals(right)),
            Some(ListKind::Set | ListKind::Map(_)) if left.len() != right.len() => false,
            Some(kind @ (ListKind::Set | ListKind::Map(_))) => {
                let places = places(&right, kind);
                left.iter().all(|item| {
                    let mut others = places.at(digest(item, kind)).filter_map(|place| right.get(place));
                    others.any(|other| is_same(item, other, kind) && item.equals(other))
                })
            }
        }
    }

    fn levels(&self) -> usize {
        if let Items::Joined(joined) = &self.items {
            joined.levels
        } else {
            0
        }
    }

    /// True if items may be merged, so that all are visited when lists are joined.
    pub(crate) const fn merges(&self) -> bool {
        matches!(self.kind, Some(ListKind::Set | ListKind::Map(_)))
    }

    /// Joins two lists: concatenation, union, or merge by key.
    pub(crate) fn join(mut self, other: &Self) -> Result<Self, Error> {
        let levels = self.levels().max(other.levels()) + 1;
        let is_alone = matches!(&self.items, Items::Made(items, _) if Arc::strong_count(items) == 1);
        let copied = if is_alone {
            other.len()
        } else {
            self.len() + other.len()
        };
        if !self.merges() && copied > FEW && levels <= MAX_LEVELS {
            let all = bounded(self.all().saturating_add(other.all()))?;
            let (kind, length) = (self.kind, self.len() + other.len());
            let joined = Joined {
                left: self,
                right: other.clone(),
                length,
                all,
                levels,
            };
            let items = Items::Joined(Arc::new(joined));
            return Ok(Self { items, kind });
        }
        let added = other.to_vec()?;
        let kind = self.kind;
        let (mut items, mut all) = match self.items {
            Items::Made(items, all) => (items, all),
            Items::Json(..) | Items::Joined(_) => (Arc::new(self.to_vec()?), self.all()),
        };
        let grown = Arc::make_mut(&mut items);
        let kind = kind.filter(|kind| !matches!(kind, ListKind::Atomic));
        let mut places = kind.map(|kind| places(grown, kind)).unwrap_or_default();
        for item in added {
            let place = kind.and_then(|kind| {
                let found = places.at(digest(&item, kind));
                let mut found =
                    found.filter(|place| grown.get(*place).is_some_and(|known| is_same(known, &item, kind)));
                found.next()
            });
            all = all.saturating_add(item.all());
            if let Some(known) = place.and_then(|place| grown.get_mut(place)) {
                *known = item;
                continue;
            }
            if let Some(kind) = kind {
                places.add(digest(&item, kind), grown.len());
            }
            grown.push(item);
        }
        self.items = Items::Made(items, bounded(all)?);
        Ok(self)
    }
}

/// Most values that a traversal of a constructed value may visit: shared parts count each time.
const MAX_ALL: u64 = 1_000_000;

pub(crate) fn bounded(all: u64) -> Result<u64, Error> {
    if all > MAX_ALL { Err(Error::Cost) } else { Ok(all) }
}

/// Hash of a list item's identity.
fn digest(item: &Value<'_>, kind: &ListKind) -> u64 {
    match (kind, item) {
        (ListKind::Map(keys), Value::Map(map)) => {
            let parts = keys
                .iter()
                .filter_map(|key| Some(pair(key, map.json_field(key)?.digest())));
            parts.fold(0, u64::wrapping_add)
        }
        _ => item.digest(),
    }
}

fn places(items: &[Value<'_>], kind: &ListKind) -> Places {
    let mut places = Places::default();
    for (place, item) in items.iter().enumerate() {
        places.add(digest(item, kind), place);
    }
    places
}

/// True if two items cannot both be in the same list.
fn is_same(left: &Value<'_>, right: &Value<'_>, kind: &ListKind) -> bool {
    match kind {
        ListKind::Map(keys) => same_keys(left, right, keys),
        ListKind::Set | ListKind::Atomic => left.equals(right),
    }
}

fn same_keys(left: &Value<'_>, right: &Value<'_>, keys: &[String]) -> bool {
    let (Value::Map(left), Value::Map(right)) = (left, right) else {
        return false;
    };
    keys.iter()
        .all(|key| match (left.json_field(key), right.json_field(key)) {
            (None, None) => true,
            (Some(left), Some(right)) => left.equals(&right),
            _ => false,
        })
}

/// A map or an object.
#[derive(Clone, Debug)]
pub struct Map<'a>(Form<'a>);

#[derive(Clone, Debug)]
enum Form<'a> {
    /// Entries, and the number of all nested values, shared ones counted each time.
    Made(Arc<Entries<'a>>, u64),
    Json(&'a JsonMap, Fields<'a>),
}

#[derive(Clone, Copy, Debug)]
enum Fields<'a> {
    Any,
    Values(&'a Schema),
    Object(&'a ObjectSchema),
}

impl<'a> From<Entries<'a>> for Map<'a> {
    fn from(entries: Entries<'a>) -> Self {
        let all = entries.values().map(Value::all).fold(0, u64::saturating_add);
        Self(Form::Made(Arc::new(entries), all))
    }
}

impl<'a> Map<'a> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Made(entries, _) => entries.len(),
            Form::Json(entries, Fields::Object(_)) => self.keys_of(entries).count(),
            Form::Json(entries, _) => entries.len(),
        }
    }

    /// True if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if an expression constructed the map.
    pub(crate) const fn is_made(&self) -> bool {
        matches!(self.0, Form::Made(..))
    }

    /// Number of constructed values that a traversal of the map visits.
    pub(crate) fn all(&self) -> u64 {
        match &self.0 {
            Form::Made(_, all) => *all,
            Form::Json(entries, _) => u64::try_from(entries.len()).unwrap_or(u64::MAX),
        }
    }

    /// The value under a key.
    pub fn get(&self, key: &Key<'_>) -> Option<Result<Value<'a>, Error>> {
        match (&self.0, key) {
            (Form::Made(entries, _), _) => {
                // The lookup key has a shorter lifetime than the map's keys.
                let found = match key {
                    Key::Bool(value) => entries.get(&Key::Bool(*value)),
                    Key::Int(value) => entries.get(&Key::Int(*value)),
                    Key::Uint(value) => entries.get(&Key::Uint(*value)),
                    Key::String(text) => entries.get(&Key::String(Text::Shared(Arc::from(&**text)))),
                };
                found.cloned().map(Ok)
            }
            (Form::Json(entries, Fields::Any), Key::String(name)) => {
                entries.get(&**name).map(|value| view(value, None))
            }
            (Form::Json(entries, Fields::Values(schema)), Key::String(name)) => {
                entries.get(&**name).map(|value| view(value, Some(schema)))
            }
            (Form::Json(entries, Fields::Object(object)), Key::String(name)) => {
                // A null field is treated as absent.
                let field = object.field(name)?;
                let value = entries.get(&field.json).filter(|value| !value.is_null())?;
                Some(view(value, Some(&field.schema)))
            }
            _ => None,
        }
    }

    /// The value of a field by its name.
    pub fn field(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        self.get(&Key::String(Text::Borrowed(name)))
    }

    fn json_field(&self, name: &str) -> Option<Value<'a>> {
        let found = match &self.0 {
            Form::Json(entries, Fields::Object(object)) => {
                let field = object.fields.values().find(|field| field.json == name)?;
                entries.get(name).map(|value| view(value, Some(&field.schema)))
            }
            _ => self.field(name),
        };
        found?.ok()
    }

    fn keys_of(&self, entries: &'a JsonMap) -> impl Iterator<Item = Key<'a>> + use<'a> {
        let object = match &self.0 {
            Form::Json(_, Fields::Object(object)) => Some(*object),
            _ => None,
        };
        let names: Vec<&'a str> = match object {
            Some(object) => object
                .fields
                .iter()
                .filter(|(_, field)| entries.contains_key(&field.json))
                .map(|(name, _)| name.as_str())
                .collect(),
            None => entries.keys().map(String::as_str).collect(),
        };
        names.into_iter().map(|name| Key::String(Text::Borrowed(name)))
    }

    /// The keys in their order.
    pub fn keys(&self) -> Vec<Key<'a>> {
        match &self.0 {
            Form::Made(entries, _) => entries.keys().cloned().collect(),
            Form::Json(entries, _) => self.keys_of(entries).collect(),
        }
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        if let (Form::Json(own, Fields::Object(object)), Form::Json(others, Fields::Object(_))) = (&self.0, &other.0) {
            // Members that expressions cannot access count as well.
            let is_seen = |name: &str| escape(name).is_some_and(|name| object.fields.contains_key(&name));
            let differs = |(name, value): (&String, &Json)| {
                !is_seen(name) && others.get(name).is_some_and(|other| other != value)
            };
            if own.len() != others.len() || own.iter().any(differs) {
                return false;
            }
        }
        self.len() == other.len()
            && self.keys().iter().all(|key| match (self.get(key), other.get(key)) {
                (Some(Ok(left)), Some(Ok(right))) => left.equals(&right),
                _ => false,
            })
    }

    /// The map with one more entry.
    pub(crate) fn insert(self, key: Key<'a>, value: Value<'a>) -> Result<Self, Error> {
        let all = bounded(self.all().saturating_add(value.all()))?;
        let mut entries = match self.0 {
            Form::Made(entries, _) => entries,
            Form::Json(..) => {
                let mut made = BTreeMap::new();
                for key in self.keys() {
                    if let Some(value) = self.get(&key) {
                        made.insert(key, value?);
                    }
                }
                Arc::new(made)
            }
        };
        if entries.contains_key(&key) {
            return Err(Error::new(format!("insert failed: key {} already exists", shown(&key))));
        }
        Arc::make_mut(&mut entries).insert(key, value);
        Ok(Self(Form::Made(entries, all)))
    }
}
