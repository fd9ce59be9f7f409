//! Frames of a watch: an event's type and its object, in the shape that the client asked for.
//!
//! The object's JSON is the store's own, encoded once when it was written; a frame adds a few bytes around it.

use api::Registration;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;
use store::{Entry, Event, EventKind};

use crate::context::Context;
use crate::failure::Failure;
use crate::negotiation::{MetaVersion, Shape};
use crate::object;
use crate::respond::encode;
use crate::selection::Selection;
use crate::server::Clock;
use crate::shape::{self, IncludeObject, Table};

/// What happened, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// New, or newly chosen by the selectors.
    Added,
    /// Changed.
    Modified,
    /// Gone, or no longer chosen.
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

/// Makes the frames of one watch.
pub(super) struct Frames {
    registration: &'static Registration,
    selection: Selection,
    body: Body,
    clock: Clock,
}

impl Frames {
    pub(super) fn new(context: &Context, shape: Shape, selection: Selection) -> Result<Self, Failure> {
        let registration = context.registration;
        let body = match shape {
            Shape::Object => Body::Object,
            Shape::Metadata(version) => Body::Metadata(version),
            Shape::Table(version) => {
                let include = IncludeObject::read(&context.query)?;
                Body::Table(Table::new(registration, version, include, context.now()), false)
            }
        };
        Ok(Self {
            registration,
            selection,
            body,
            clock: context.server.options.clock.clone(),
        })
    }

    /// Whether the selectors choose an object.
    pub(super) fn chooses(&self, entry: &Entry) -> bool {
        self.selection.matches(entry)
    }

    /// The frame of a change; nothing when it does not concern the selectors.
    pub(super) fn event(&mut self, event: &Event) -> Option<Bytes> {
        let before = event.prev().filter(|entry| self.selection.matches(entry));
        match &event.kind {
            EventKind::Delete { .. } => before.is_some().then(|| self.of(Kind::Deleted, &event.entry)),
            EventKind::Put { .. } if self.selection.matches(&event.entry) => {
                let kind = if before.is_some() { Kind::Modified } else { Kind::Added };
                Some(self.of(kind, &event.entry))
            }
            EventKind::Put { .. } => before.map(|before| self.left(before, event.revision)),
        }
    }

    /// The frame of an object.
    pub(super) fn of(&mut self, kind: Kind, entry: &Entry) -> Bytes {
        match object::external(self.registration, entry) {
            Ok(bytes) => self.frame(kind, &bytes),
            Err(failure) => Self::error(&failure),
        }
    }

    /// An object that the selectors no longer choose: its last chosen state, at the revision of the change.
    fn left(&mut self, before: &Entry, revision: u64) -> Bytes {
        match object::stored(self.registration, before) {
            Ok(mut object) => {
                let bytes = object::unstored(&mut *object, Some(revision), object::managed(before));
                self.frame(Kind::Deleted, &bytes)
            }
            Err(failure) => Self::error(&failure),
        }
    }

    fn frame(&mut self, kind: Kind, bytes: &Bytes) -> Bytes {
        if matches!(self.body, Body::Object) {
            return wrap(kind.name(), bytes);
        }
        let object = match self.registration.decode(bytes) {
            Ok(object) => object,
            Err(error) => return Self::error(&Failure::internal(error)),
        };
        let shaped = match &mut self.body {
            Body::Object => return wrap(kind.name(), bytes),
            Body::Metadata(version) => shape::metadata(&*object, *version),
            Body::Table(table, headed) => {
                let table = table.at((self.clock)());
                let revision = object.metadata().resource_version.clone().unwrap_or_default();
                let metadata = json!({ "resourceVersion": revision });
                let rows = [table.row(&*object, bytes)];
                if std::mem::replace(headed, true) {
                    table.rows_only(&metadata, &rows)
                } else {
                    table.document(&metadata, &rows)
                }
            }
        };
        wrap(kind.name(), &encode(&shaped))
    }

    /// A bookmark: no change, only a revision up to which all were sent. `mark` says that the synthetic events end here.
    pub(super) fn bookmark(&self, revision: u64, mark: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if mark && let Some(members) = metadata.as_object_mut() {
            members.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let (kind, version) = match &self.body {
            Body::Object => (self.registration.kind, self.registration.api_version()),
            Body::Metadata(version) => ("PartialObjectMetadata", version.api_version().to_owned()),
            Body::Table(table, _) => {
                let object =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                let rows = [json!({"cells": [], "object": object})];
                return wrap(
                    "BOOKMARK",
                    &encode(&table.rows_only(&json!({"resourceVersion": revision.to_string()}), &rows)),
                );
            }
        };
        wrap(
            "BOOKMARK",
            &encode(&json!({"kind": kind, "apiVersion": version, "metadata": metadata})),
        )
    }

    /// The last frame of a watch that failed.
    pub(super) fn error(failure: &Failure) -> Bytes {
        wrap("ERROR", &encode(&failure.status()))
    }
}

fn wrap(kind: &str, object: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(object.len() + 40);
    frame.put_slice(b"{\"type\":\"");
    frame.put_slice(kind.as_bytes());
    frame.put_slice(b"\",\"object\":");
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}
