//! Cells of the tables that `kubectl get` shows.

mod shown;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

pub(crate) use shown::shown;

/// The type of a cell, as in `TableColumnDefinition.type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CellType {
    /// A text.
    Text,
    /// A text that names an object.
    Name,
    /// A whole number.
    Integer,
    /// True or false.
    Boolean,
    /// A time.
    Date,
}

impl CellType {
    /// Upstream's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text | Self::Name => "string",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::Date => "date",
        }
    }

    /// `TableColumnDefinition.format` of the type.
    pub const fn format(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Text | Self::Integer | Self::Boolean | Self::Date => "",
        }
    }
}

/// Column of the server-side table, after the name that every kind has.
pub struct Column<K> {
    /// Heading, such as `Ready`.
    pub name: &'static str,
    /// Type of the cells.
    pub cell_type: CellType,
    /// 0 is always shown; 1 only with `-o wide`.
    pub priority: i32,
    /// Description of the column, for people; or a field like `core.v1.PodSpec.nodeName`, whose
    /// upstream description is shown.
    pub description: &'static str,
    /// Function that returns the cell of an object.
    pub cell: fn(&K, Timestamp) -> Value,
}

/// Member of an object's JSON, or of each item of a list, that cells of the table show.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// The whole member.
    Whole(&'static str),
    /// Some of its members.
    Within(&'static str, &'static [Shown]),
}

impl Shown {
    /// Its name.
    pub(crate) const fn key(&self) -> &'static str {
        match self {
            Self::Whole(key) | Self::Within(key, _) => key,
        }
    }
}

impl<K> Column<K> {
    /// Column of texts, or of numbers that upstream declares as such.
    pub const fn text(name: &'static str, description: &'static str, cell: fn(&K, Timestamp) -> Value) -> Self {
        Self {
            name,
            cell_type: CellType::Text,
            priority: 0,
            description,
            cell,
        }
    }

    /// Column of integers.
    pub const fn integer(name: &'static str, description: &'static str, cell: fn(&K, Timestamp) -> Value) -> Self {
        Self {
            name,
            cell_type: CellType::Integer,
            priority: 0,
            description,
            cell,
        }
    }

    /// Column of booleans.
    pub const fn boolean(name: &'static str, description: &'static str, cell: fn(&K, Timestamp) -> Value) -> Self {
        Self {
            name,
            cell_type: CellType::Boolean,
            priority: 0,
            description,
            cell,
        }
    }

    /// Column of texts that is shown only with `-o wide`.
    pub const fn wide(name: &'static str, description: &'static str, cell: fn(&K, Timestamp) -> Value) -> Self {
        Self {
            name,
            cell_type: CellType::Text,
            priority: 1,
            description,
            cell,
        }
    }
}

/// Age column, the last that is always shown.
pub const fn age_column<K: Metadata<Ty = ObjectMeta>>() -> Column<K> {
    Column::text("Age", "meta.v1.ObjectMeta.creationTimestamp", |object, now| {
        let created = object.metadata().creation_timestamp.as_ref();
        Value::from(since(created, now))
    })
}

/// Creation time column, for kinds that upstream shows only with their name.
pub const fn created_column<K: Metadata<Ty = ObjectMeta>>() -> Column<K> {
    Column {
        name: "Created At",
        cell_type: CellType::Date,
        priority: 0,
        description: "meta.v1.ObjectMeta.creationTimestamp",
        cell: |object, _| {
            let created = object.metadata().creation_timestamp.as_ref();
            created.map(|created| created.0.to_string()).into()
        },
    }
}

/// Text, or a placeholder for its absence.
pub fn or<'a>(text: Option<&'a str>, absent: &'a str) -> &'a str {
    text.filter(|text| !text.is_empty()).unwrap_or(absent)
}

/// Name of a class, marked if an annotation makes it the default one.
pub(crate) fn class_name(metadata: &ObjectMeta, keys: &[&str]) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    let annotations = metadata.annotations.as_ref();
    let value = |key: &&str| annotations.and_then(|annotations| annotations.get(*key));
    if keys.iter().filter_map(value).any(|value| value == "true") {
        format!("{name} (default)")
    } else {
        name.to_owned()
    }
}

/// Names and images of a template's containers, for the wide columns of workloads.
pub(crate) fn containers(template: Option<&PodTemplateSpec>) -> (String, String) {
    let containers = template
        .and_then(|template| template.spec.as_ref())
        .map_or(&[][..], |spec| &spec.containers);
    let names: Vec<&str> = containers.iter().map(|container| container.name.as_str()).collect();
    let images: Vec<&str> = containers
        .iter()
        .map(|container| container.image.as_deref().unwrap_or_default())
        .collect();
    (names.join(","), images.join(","))
}

/// A selector as text; `<none>` when it is empty.
pub(crate) fn selector(structure: &LabelSelector) -> String {
    match crate::value::selector::LabelSelector::of(Some(structure)) {
        Ok(selector) => or(Some(&selector.to_string()), "<none>").to_owned(),
        Err(_) => "<error>".to_owned(),
    }
}

/// Like [`selector`], for one that may be missing.
pub(crate) fn selector_or_none(structure: Option<&LabelSelector>) -> String {
    structure.map_or_else(|| "<none>".to_owned(), selector)
}

/// Labels as text; `<none>` when there are none.
pub(crate) fn labels(labels: Option<&BTreeMap<String, String>>) -> String {
    let text = labels.map(|labels| crate::value::selector::LabelSelector::equals(labels).to_string());
    or(text.as_deref(), "<none>").to_owned()
}

/// `True`, `False` or `<unset>`.
pub(crate) fn truth(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}

/// Addresses of a load balancer's points, each an IP or else a host name, in order and once each.
pub(crate) fn addresses<'a>(points: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>) -> Vec<&'a str> {
    let filled = |text: &&str| !text.is_empty();
    let all = points.filter_map(|(ip, name)| ip.filter(filled).or_else(|| name.filter(filled)));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Three items and the number of further ones.
pub(crate) fn shortened(mut items: Vec<String>, none: &str) -> String {
    let more = items.len().saturating_sub(3);
    items.truncate(3);
    match (items.is_empty(), more) {
        (true, _) => none.to_owned(),
        (false, 0) => items.join(","),
        (false, more) => format!("{} + {more} more...", items.join(",")),
    }
}

/// Age, or `<unknown>`.
pub fn since(then: Option<&Time>, now: Timestamp) -> String {
    then.map_or_else(|| "<unknown>".to_owned(), |then| age(now, then.0))
}

/// Duration between two times in short form, like upstream's `duration.HumanDuration`: `42s`,
/// `3m7s`, `5h`, `2d3h`.
pub fn age(now: Timestamp, then: Timestamp) -> String {
    let milliseconds = now.as_millisecond() - then.as_millisecond();
    let seconds = milliseconds / 1000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        _ if milliseconds < 0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 8 * 365 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn two(large: i64, large_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}
