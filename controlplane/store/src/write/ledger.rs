//! Rules of writes: pure, so that they are the same for every backend.

use super::{CommitError, Write};
use crate::object::entry::{Entry, Event, EventKind};

/// Effect of a valid write.
#[derive(Debug)]
pub(crate) enum Decision {
    /// The change to store and to publish.
    Append(Event),
    /// The object already has this content; nothing to store.
    Unchanged(Entry),
}

/// Checks a write against the newest version of its object and returns its effect at `revision`.
pub(crate) fn decide(write: Write, current: Option<&Entry>, revision: u64) -> Result<Decision, CommitError> {
    match (write, current) {
        (Write::Create { .. }, Some(_)) => Err(CommitError::Exists),
        (Write::Update { .. } | Write::Delete { .. }, None) => Err(CommitError::NotFound),
        (
            Write::Create {
                key, value, attributes, ..
            },
            None,
        ) => {
            let entry = Entry::new(key, revision, value.splice(revision), attributes);
            Ok(Decision::Append(Event {
                revision,
                kind: EventKind::Put { prev: None },
                entry,
            }))
        }
        (Write::Update { expected, .. }, Some(current)) if expected != current.revision => Err(CommitError::Conflict {
            actual: current.revision,
        }),
        (
            Write::Delete {
                expected: Some(expected),
                ..
            },
            Some(current),
        ) if expected != current.revision => Err(CommitError::Conflict {
            actual: current.revision,
        }),
        (
            Write::Update {
                key, value, attributes, ..
            },
            Some(current),
        ) => {
            if value.equals(&current.bytes, current.revision) {
                return Ok(Decision::Unchanged(current.clone()));
            }
            let entry = Entry::new(key, revision, value.splice(revision), attributes);
            Ok(Decision::Append(Event {
                revision,
                kind: EventKind::Put {
                    prev: Some(current.clone()),
                },
                entry,
            }))
        }
        (Write::Delete { key, last, .. }, Some(current)) => {
            let entry = Entry::new(key, revision, last.splice(revision), current.attributes.clone());
            Ok(Decision::Append(Event {
                revision,
                kind: EventKind::Delete {
                    prev: Some(current.clone()),
                },
                entry,
            }))
        }
    }
}
