//! Frames of a watch: an event's type and its object, in the shape and encoding that the client asked for.
//!
//! The object's JSON is the store's own, encoded once when it was written; a frame adds a few bytes around it, or makes
//! protobuf of it.

use std::sync::Arc;

use api::{go_json, protobuf};
use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use store::{Entry, Event, EventKind};

use crate::extensions::definitions::Converter;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::{self, Live, Seen};
use crate::request::selection::Selection;
use crate::server::shared::{Clock, Shared};
use crate::transport::negotiation::{Encoding, MetaVersion, Representation, Shape};
use crate::transport::respond::encode;
use crate::transport::shape::{self, ListMeta, Table};

/// Type of an event, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// New, or newly chosen by the selectors.
    Added,
    /// Changed.
    Modified,
    /// Deleted, or no longer matched.
    Deleted,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

enum Body {
    Object,
    Metadata(MetaVersion),
    /// The table, and whether its headings were sent.
    Table(Table, bool),
}

struct Converting {
    server: Arc<Shared>,
    converter: Arc<Converter>,
    to: String,
}

impl Converting {
    async fn live(&self, entry: &Entry) -> Result<Live, Failure> {
        self.converter.watched(self.server.calls(), &self.to, entry).await
    }
}

/// Makes the frames of one watch.
pub(super) struct Frames {
    registration: api::Row,
    selection: Selection,
    body: Body,
    encoding: Encoding,
    /// Conversion webhook of the watched kind.
    converting: Option<Converting>,
    /// API version of the events' objects.
    api_version: String,
    clock: Clock,
    sent: Counter,
}

impl Frames {
    pub(super) fn new(
        context: &Context,
        representation: Representation,
        selection: Selection,
    ) -> Result<Self, Failure> {
        let registration = context.registration.clone();
        if representation.shape == Shape::Object && representation.encoding == Encoding::Protobuf {
            shape::check_protobuf(&registration)?;
        }
        let (body, api_version) = match representation.shape {
            Shape::Object => (Body::Object, registration.api_version()),
            Shape::Metadata(version) | Shape::MetadataList(version) => {
                (Body::Metadata(version), version.api_version().to_owned())
            }
            Shape::Table(version) => {
                let table = Table::of(context, version)?;
                (Body::Table(table, false), version.api_version().to_owned())
            }
        };
        let sent = context.server.metrics.events(&registration);
        let converter = context.table.converter(&registration);
        let converting = converter.map(|converter| Converting {
            server: Arc::clone(&context.server),
            converter: Arc::clone(converter),
            to: registration.api_version(),
        });
        Ok(Self {
            registration,
            selection,
            body,
            encoding: representation.encoding,
            converting,
            api_version,
            clock: context.server.options.clock.clone(),
            sent,
        })
    }

    /// Field and value of chosen objects, by which the watch is woken.
    pub(super) fn trigger(&self) -> Option<(&str, &str)> {
        self.selection.trigger()
    }

    /// True if the selectors match the object.
    pub(super) fn chooses(&self, live: &Live) -> bool {
        self.selection.matches(live)
    }

    /// True if a webhook converts the watched objects.
    pub(super) fn converts(&self) -> bool {
        self.converting.is_some()
    }

    /// Frame of a change; `None` when the selectors match neither state.
    pub(super) fn event(&mut self, event: &Event) -> Option<Bytes> {
        self.told(event, (&event.entry).into(), event.prev().map(Seen::from))
    }

    /// Like [`Self::event`], for objects that a webhook converts.
    ///
    /// # Errors
    /// 500 where it does not.
    pub(super) async fn converted_event(&mut self, event: &Event) -> Result<Option<Bytes>, Failure> {
        let Some(converting) = &self.converting else {
            return Ok(self.event(event));
        };
        let by_names = self.selection.is_of_names();
        if by_names && !self.selection.matches(&event.entry) {
            return Ok(None);
        }
        let now = converting.live(&event.entry).await?;
        let before = match event.prev() {
            Some(before) if !by_names => Some(converting.live(before).await?),
            before => before.cloned().map(Live::from),
        };
        Ok(self.told(event, (&now).into(), before.as_ref().map(Seen::from)))
    }

    fn told(&mut self, event: &Event, now: Seen<'_>, before: Option<Seen<'_>>) -> Option<Bytes> {
        let before = before.filter(|before| self.selection.matches(*before));
        match &event.kind {
            EventKind::Delete { .. } => before.is_some().then(|| self.of(Kind::Deleted, now)),
            EventKind::Put { .. } if self.selection.matches(now) => {
                let kind = if before.is_some() { Kind::Modified } else { Kind::Added };
                Some(self.of(kind, now))
            }
            EventKind::Put { .. } => before.map(|before| self.left(before, event.revision)),
        }
    }

    /// The frame of an object.
    pub(super) fn of<'a>(&mut self, kind: Kind, object: impl Into<Seen<'a>>) -> Bytes {
        match object::external(&self.registration, object) {
            Ok(bytes) => self.frame(kind, &bytes),
            Err(failure) => self.error(&failure),
        }
    }

    /// An object that the selectors no longer choose: its last chosen state, at the revision of the change.
    fn left(&mut self, before: Seen<'_>, revision: u64) -> Bytes {
        match object::stored(&self.registration, before) {
            Ok(mut object) => {
                let bytes = object::unstored(&mut *object, Some(revision), object::managed(before.entry));
                self.frame(Kind::Deleted, &bytes)
            }
            Err(failure) => self.error(&failure),
        }
    }

    fn frame(&mut self, kind: Kind, bytes: &Bytes) -> Bytes {
        let shaped = match &mut self.body {
            Body::Object => return self.wrap(kind.name(), bytes),
            // The protobuf message omits all other fields.
            Body::Metadata(_) if self.encoding == Encoding::Protobuf => return self.wrap(kind.name(), bytes),
            Body::Metadata(version) => Ok(shape::partial_of(bytes, *version)),
            Body::Table(table, headed) => tabled(&self.registration, &table.at((self.clock)()), headed, bytes),
        };
        match shaped {
            Ok(shaped) => self.wrap(kind.name(), &shaped),
            Err(failure) => self.error(&failure),
        }
    }

    /// A bookmark: no change, only a revision up to which all were sent. `mark` says that the synthetic events end here.
    pub(super) fn bookmark(&mut self, revision: u64, mark: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if mark && let Some(members) = metadata.as_object_mut() {
            members.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        if let Body::Table(table, headed) = &mut self.body {
            let (kind, version) = (self.registration.kind, self.registration.api_version());
            let object = encode(&json!({"kind": kind, "apiVersion": version, "metadata": metadata}));
            let mut table = table.at((self.clock)());
            if mark {
                table.include_metadata();
            }
            return match tabled(&self.registration, &table, headed, &object) {
                Ok(table) => self.wrap("BOOKMARK", &table),
                Err(failure) => self.error(&failure),
            };
        }
        let (kind, version) = (self.kind(), &self.api_version);
        self.wrap(
            "BOOKMARK",
            &encode(&json!({"kind": kind, "apiVersion": version, "metadata": metadata})),
        )
    }

    /// The last frame of a watch that failed.
    pub(super) fn error(&self, failure: &Failure) -> Bytes {
        let status = encode(&failure.status());
        if self.encoding != Encoding::Protobuf {
            return text("ERROR", &status);
        }
        protobuf::encode("v1", "Status", &status)
            .map(|status| protobuf::frame("ERROR", &status).into())
            .unwrap_or_default()
    }

    fn kind(&self) -> &'static str {
        match self.body {
            Body::Object => self.registration.kind,
            Body::Metadata(_) => shape::PARTIAL,
            Body::Table(..) => "Table",
        }
    }

    fn wrap(&self, event: &str, object: &[u8]) -> Bytes {
        self.sent.inc();
        if self.encoding != Encoding::Protobuf {
            return text(event, object);
        }
        match protobuf::encode(&self.api_version, self.kind(), object) {
            Ok(object) => protobuf::frame(event, &object).into(),
            Err(error) => self.error(&Failure::internal(error)),
        }
    }
}

/// A table of one row; the first of a watch has headings.
fn tabled(kind: &api::Row, table: &Table, headed: &mut bool, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let object = kind.decode_shown(bytes).map_err(Failure::internal)?;
    let metadata = ListMeta::at(object.metadata().resource_version.clone().unwrap_or_default());
    let rows = [table.row(&*object, bytes)];
    let table = if std::mem::replace(headed, true) {
        table.rows_only(&metadata, &rows)
    } else {
        table.document(&metadata, &rows)
    };
    Ok(table.into())
}

fn text(event: &str, object: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(object.len() + 40);
    for part in ["{\"type\":\"", event, "\",\"object\":"] {
        frame.extend_from_slice(part.as_bytes());
    }
    go_json::escape(object, &mut frame);
    frame.extend_from_slice(b"}\n");
    frame.into()
}
