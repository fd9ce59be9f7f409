//! Keys that identify the items of a list.

use std::borrow::Cow;

use serde_json::Value;

use super::shape::{Keys, Shape};
use super::types::Type;
use crate::schema::managed::raw;
use crate::schema::{Field, ListType};

/// Path element of a list's item, or upstream's error if it has none.
pub(super) fn of_item(kind: Type<'_>, item: &str) -> Result<String, String> {
    match kind {
        Type::List(list) => match &list.list_type {
            Some(ListType::Map(keys)) => {
                let keys = keys.iter().map(|name| (*name, default_of(list, name).map(Cow::Owned)));
                keyed(&mut keys.collect::<Vec<_>>(), item)
            }
            None | Some(ListType::Atomic | ListType::Granular | ListType::Set) => scalar(item),
        },
        Type::Shape(Shape::List {
            keys: Keys::Map(keys), ..
        }) => {
            let keys = keys
                .iter()
                .map(|(name, default)| (&**name, default.as_deref().map(Cow::Borrowed)));
            keyed(&mut keys.collect::<Vec<_>>(), item)
        }
        Type::Shape(_) | Type::Scalar(_) | Type::Struct { .. } | Type::Map(_) => scalar(item),
    }
}

/// The same for an item that is a value.
pub(super) fn of_value(kind: Type<'_>, item: &Value) -> Result<String, String> {
    of_item(kind, &item.to_string())
}

fn scalar(item: &str) -> Result<String, String> {
    match item.as_bytes().first() {
        Some(b'{') => Err("associative list without keys has an element that's a map type".to_owned()),
        Some(b'[') => Err("not supported: associative list with lists as elements".to_owned()),
        Some(b'n') | None => Err("associative list without keys has an element that's an explicit null".to_owned()),
        Some(_) => Ok(format!("v:{item}")),
    }
}

fn keyed(keys: &mut [(&str, Option<Cow<'_, str>>)], item: &str) -> Result<String, String> {
    let listed: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
    if item == "null" {
        return Err("associative list with keys may not have a null element".to_owned());
    }
    if !raw::is_object(item) {
        return Err("associative list with keys may not have non-map elements".to_owned());
    }
    keys.sort_unstable_by_key(|(name, _)| *name);
    let mut element = String::from("k:{");
    for (name, default) in &*keys {
        let own = raw::members(item).find(|(key, _)| key == *name).map(|(_, value)| value);
        let Some(value) = own.or(default.as_deref()) else {
            continue;
        };
        if element.len() > 3 {
            element.push(',');
        }
        element.push('"');
        element.push_str(name);
        element.push_str("\":");
        element.push_str(value);
    }
    if element.len() == 3 {
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for \
             any key fields)",
            listed.join(" ")
        ));
    }
    element.push('}');
    Ok(element)
}

/// Default of a list's key, as JSON, for items that lack it.
fn default_of(list: &Field, name: &str) -> Option<String> {
    let field = list.message()?.field(name)?;
    if let Some(default) = field.key_default {
        return Some(Value::from(default).to_string());
    }
    if field.omit_zero {
        return None;
    }
    let zero = field.form.zero();
    (!zero.is_null() && !zero.is_object()).then(|| zero.to_string())
}
