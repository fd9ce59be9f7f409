//! `Table`: the output of `kubectl get`. Columns and cells come from the kinds' rows.

use api::registration::ColumnDefinition;
use api::{Object, Row as Kind, go_json};
use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::ListMeta;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::transport::negotiation::MetaVersion;
use crate::transport::respond::encode;

/// Object that a row carries besides its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// The object is omitted.
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
            Some(other) => {
                let detail = "must be 'Metadata', 'Object', 'None', or empty";
                let wrong = api::Invalid::value("includeObject", other, detail);
                Err(Failure::bad_request(format!(
                    "Unable to convert to Table as requested: {wrong}"
                )))
            }
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
    /// Creates the table of the context's kind.
    ///
    /// # Errors
    /// 400 for an `includeObject` that does not exist.
    pub(crate) fn of(context: &Context, version: MetaVersion) -> Result<Self, Failure> {
        Ok(Self {
            registration: context.registration.clone(),
            version,
            include: IncludeObject::read(&context.query)?,
            now: context.as_of.unwrap_or_else(|| context.now()),
        })
    }

    /// The same table at another time: ages grow while a watch runs.
    pub(crate) fn at(&self, now: Timestamp) -> Self {
        Self { now, ..self.clone() }
    }

    /// Lets rows carry metadata, whatever the client asked for.
    pub(crate) fn include_metadata(&mut self) {
        if self.include == IncludeObject::None {
            self.include = IncludeObject::Metadata;
        }
    }

    /// Row of an object; `bytes` are its JSON.
    pub(crate) fn row(&self, object: &dyn Object, bytes: &[u8]) -> Row {
        Row {
            cells: self.registration.row(object, self.now),
            completed: self.registration.completed(object),
            object: match self.include {
                IncludeObject::None => None,
                IncludeObject::Metadata => Some(super::partial_of(bytes, self.version).into()),
                IncludeObject::Object => Some(Bytes::copy_from_slice(bytes)),
            },
        }
    }

    /// The row of an object's JSON.
    ///
    /// # Errors
    /// 500 for bytes that are no object.
    pub(super) fn row_of(&self, bytes: &[u8]) -> Result<Row, Failure> {
        let object = super::decode_shown(&self.registration, bytes)?;
        Ok(self.row(&*object, bytes))
    }

    /// The table up to its first row.
    pub(super) fn head(&self, metadata: &ListMeta) -> Vec<u8> {
        head(self.version, metadata, &self.registration.columns())
    }

    /// The whole table.
    pub(crate) fn document(&self, metadata: &ListMeta, rows: &[Row]) -> Bytes {
        table(self.version, metadata, &self.registration.columns(), rows)
    }

    /// Table without column definitions, as a watch sends after its first event.
    pub(crate) fn rows_only(&self, metadata: &ListMeta, rows: &[Row]) -> Bytes {
        table(self.version, metadata, &[], rows)
    }
}

/// A row of a table.
pub(crate) struct Row {
    /// Cells in the order of the columns.
    pub(crate) cells: Vec<Value>,
    /// Reason and message of the condition `Completed`, the only one that rows have.
    pub(crate) completed: Option<(&'static str, &'static str)>,
    /// JSON of the row's object.
    pub(crate) object: Option<Bytes>,
}

impl Row {
    /// Appends its JSON.
    pub(super) fn append(&self, json: &mut Vec<u8>) {
        json.extend_from_slice(b"{\"cells\":");
        go_json::escape(&serde_json::to_vec(&self.cells).unwrap_or_default(), json);
        if let Some((reason, message)) = self.completed {
            let condition = format!(
                ",\"conditions\":[{{\"type\":\"Completed\",\"status\":\"True\",\"reason\":\"{reason}\",\"message\":\"{message}\"}}]"
            );
            json.extend_from_slice(condition.as_bytes());
        }
        json.extend_from_slice(b",\"object\":");
        go_json::escape(self.object.as_deref().unwrap_or(b"null"), json);
        json.push(b'}');
    }
}

/// The bytes that end a table.
pub(super) const TAIL: &[u8] = b"]}";

/// A table with its members in upstream's order.
pub(crate) fn table(version: MetaVersion, metadata: &ListMeta, columns: &[ColumnDefinition], rows: &[Row]) -> Bytes {
    let mut json = head(version, metadata, columns);
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        row.append(&mut json);
    }
    json.extend_from_slice(TAIL);
    json.into()
}

/// A table up to its first row.
fn head(version: MetaVersion, metadata: &ListMeta, columns: &[ColumnDefinition]) -> Vec<u8> {
    let kind = format!("{{\"kind\":\"Table\",\"apiVersion\":\"{}\"", version.api_version());
    let head: [&[u8]; 6] = [
        kind.as_bytes(),
        b",\"metadata\":",
        &encode(metadata),
        b",\"columnDefinitions\":",
        &encode(&columns),
        b",\"rows\":[",
    ];
    head.concat()
}
