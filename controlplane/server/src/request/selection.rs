//! Label and field selectors of a list, a watch or a deletion of many.

use api::Row;
use api::kind::Scope;
use api::selector::{FieldSelector, LabelSelector};

use crate::request::failure::Failure;
use crate::request::object::{self, Seen};
use crate::request::query::Query;

const NAME: &str = "metadata.name";
const NODE_NAME: &str = "spec.nodeName";

/// Label and field selectors of a request.
#[derive(Clone)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// The name in the path of a watch on one object.
    only: Option<String>,
    /// Reads the fields of kinds that are defined by objects: which there are may change while objects stay.
    read: Option<Row>,
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// 400 for a selector that does not parse, or a field that cannot be selected by.
    pub(crate) fn read(registration: &Row, query: &Query) -> Result<Self, Failure> {
        let bad = |error: &dyn std::fmt::Display| Failure::bad_request(error.to_string());
        let labels =
            LabelSelector::parse(query.get("labelSelector").unwrap_or_default()).map_err(|error| bad(&error))?;
        let fields =
            FieldSelector::parse(query.get("fieldSelector").unwrap_or_default()).map_err(|error| bad(&error))?;
        for label in fields.labels() {
            // Kinds with labels of their own name all of them.
            let homeless = registration.scope == Scope::Cluster && !registration.field_labels().is_empty();
            let everywhere = label == NAME || (label == "metadata.namespace" && !homeless);
            if everywhere || registration.field_behind(label).is_some() {
                continue;
            }
            return Err(Failure::bad_request(if registration.field_labels().is_empty() {
                format!("{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            } else {
                format!("field label not supported: {label}")
            }));
        }
        let fields = fields.renamed(|name| registration.field_behind(name).unwrap_or(name).to_owned());
        let read = registration.is_defined() && !fields.is_everything();
        Ok(Self {
            labels,
            fields,
            only: None,
            read: read.then(|| registration.clone()),
        })
    }

    /// The same, of one name alone.
    pub(crate) fn only(self, name: &str) -> Self {
        Self {
            only: Some(name.to_owned()),
            ..self
        }
    }

    /// True if the selectors match the object.
    pub(crate) fn matches<'a>(&self, entry: impl Into<Seen<'a>>) -> bool {
        let seen: Seen<'_> = entry.into();
        self.only.as_deref().is_none_or(|name| name == seen.entry.key.name())
            && self.labels.matches(&seen.attributes().labels)
            && self.matches_fields(seen)
    }

    fn matches_fields(&self, seen: Seen<'_>) -> bool {
        let (key, attributes) = (&seen.entry.key, seen.attributes());
        let Some(row) = &self.read else {
            return self.fields.matches(|label| attributes.field(key, label));
        };
        let object = object::stored(row, seen).ok();
        let read = object.map(|object| row.fields(&*object)).unwrap_or_default();
        self.fields.matches(|label| {
            let own = read.iter().find(|(own, _)| *own == label);
            own.map_or_else(|| attributes.field(key, label), |(_, value)| Some(value.as_str()))
        })
    }

    /// True if the selectors match everything.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// True if only the object's name and namespace decide.
    pub(crate) fn is_of_names(&self) -> bool {
        self.labels.is_everything() && self.read.is_none()
    }

    /// The only name that the field selector matches, if any.
    pub(crate) fn name(&self) -> Option<&str> {
        self.demands(NAME)
    }

    /// Field and value by which the store wakes a watch with these selectors, if it does; upstream's
    /// triggers are the same (`pkg/registry/core/pod/strategy.go`).
    pub(crate) fn trigger(&self) -> Option<(&str, &str)> {
        let name = self.only.as_deref().or_else(|| self.name());
        let node = || {
            self.demands(NODE_NAME)
                .filter(|_| self.read.is_none())
                .map(|node| (NODE_NAME, node))
        };
        let trigger = name.map(|name| (NAME, name)).or_else(node)?;
        // Objects without the field have the empty value.
        Some(trigger).filter(|(_, value)| !value.is_empty())
    }

    /// The value that a field must have, if it must have one.
    pub(crate) fn demands(&self, label: &str) -> Option<&str> {
        self.fields.exact(label)
    }
}
