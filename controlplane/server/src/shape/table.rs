//! `Table`: what `kubectl get` shows. Columns and cells come from the kinds' rows.

use api::{Object, Registration};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;
use crate::negotiation::MetaVersion;
use crate::query::Query;

/// What a row carries besides its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata.
    Metadata,
    /// The object.
    Object,
}

impl IncludeObject {
    /// Reads `includeObject`.
    ///
    /// # Errors
    /// 400 for other values.
    pub(crate) fn read(query: &Query) -> Result<Self, Failure> {
        match query.text("includeObject") {
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(Failure::bad_request(format!(
                "unrecognized includeObject value: {other:?}"
            ))),
        }
    }
}

/// Makes tables of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    registration: &'static Registration,
    version: MetaVersion,
    include: IncludeObject,
    now: Timestamp,
}

impl Table {
    /// For the context's kind.
    ///
    /// # Errors
    /// 400 for an `includeObject` that does not exist.
    pub(crate) fn of(context: &Context, version: MetaVersion) -> Result<Self, Failure> {
        Ok(Self {
            registration: context.registration,
            version,
            include: IncludeObject::read(&context.query)?,
            now: context.now(),
        })
    }

    /// The same table at another time: ages grow while a watch runs.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }

    /// One row; `bytes` are the object's JSON.
    pub(crate) fn row(&self, object: &dyn Object, bytes: &[u8]) -> Value {
        let cells = self.registration.row(object, self.now);
        let shown = match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => super::partial(object.metadata(), self.version),
            IncludeObject::Object => serde_json::from_slice(bytes).unwrap_or_default(),
        };
        json!({"cells": cells, "object": shown})
    }

    /// The whole table.
    pub(crate) fn document(&self, metadata: &Value, rows: &[Value]) -> Value {
        self.parts(metadata, &self.columns(), rows)
    }

    /// A table without headings: what a watch sends after its first event.
    pub(crate) fn rows_only(&self, metadata: &Value, rows: &[Value]) -> Value {
        self.parts(metadata, &json!([]), rows)
    }

    fn parts(&self, metadata: &Value, columns: &Value, rows: &[Value]) -> Value {
        json!({
            "kind": "Table",
            "apiVersion": self.version.api_version(),
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": rows,
        })
    }

    fn columns(&self) -> Value {
        let columns = self.registration.columns();
        let columns = columns.iter().map(|column| {
            json!({
                "name": column.name,
                "type": column.cell_type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        });
        Value::Array(columns.collect())
    }
}
