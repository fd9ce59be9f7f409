//! `Table`: what `kubectl get` shows. Columns and cells come from the kinds' rows.

use api::registration::ColumnDefinition;
use api::{Object, Row as Kind};
use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::ListMeta;
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
#[derive(Clone)]
pub(crate) struct Table {
    registration: Kind,
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
            registration: context.registration.clone(),
            version,
            include: IncludeObject::read(&context.query)?,
            now: context.now(),
        })
    }

    /// The same table at another time: ages grow while a watch runs.
    pub(crate) fn at(&self, now: Timestamp) -> Self {
        Self { now, ..self.clone() }
    }

    /// One row; `bytes` are the object's JSON.
    ///
    /// # Errors
    /// 500 for bytes that are no object.
    pub(crate) fn row(&self, object: &dyn Object, bytes: &[u8]) -> Result<Row, Failure> {
        Ok(Row {
            cells: self.registration.row(object, self.now),
            object: match self.include {
                IncludeObject::None => None,
                IncludeObject::Metadata => Some(super::partial_of(bytes, self.version).map_err(Failure::internal)?),
                IncludeObject::Object => Some(bytes.to_vec()),
            }
            .map(raw)
            .transpose()?,
        })
    }

    /// The whole table.
    pub(crate) fn document(&self, metadata: &ListMeta, rows: &[Row]) -> Bytes {
        table(self.version, metadata, &self.registration.columns(), rows)
    }

    /// A table without headings: what a watch sends after its first event.
    pub(crate) fn rows_only(&self, metadata: &ListMeta, rows: &[Row]) -> Bytes {
        table(self.version, metadata, &[], rows)
    }
}

/// A row of a table.
#[derive(Serialize)]
pub(crate) struct Row {
    /// In the order of the headings.
    pub(crate) cells: Vec<Value>,
    /// What it is of.
    pub(crate) object: Option<Box<RawValue>>,
}

/// JSON as it is.
///
/// # Errors
/// 500 for what is none.
pub(crate) fn raw(json: Vec<u8>) -> Result<Box<RawValue>, Failure> {
    let text = String::from_utf8(json).map_err(Failure::internal)?;
    RawValue::from_string(text).map_err(Failure::internal)
}

/// A table with its members in upstream's order.
pub(crate) fn table(version: MetaVersion, metadata: &ListMeta, columns: &[ColumnDefinition], rows: &[Row]) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Whole<'t> {
        kind: &'static str,
        api_version: &'static str,
        metadata: &'t ListMeta,
        column_definitions: &'t [ColumnDefinition],
        rows: &'t [Row],
    }
    let whole = Whole {
        kind: "Table",
        api_version: version.api_version(),
        metadata,
        column_definitions: columns,
        rows,
    };
    serde_json::to_vec(&whole).unwrap_or_default().into()
}
