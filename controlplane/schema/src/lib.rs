//! Schemas of custom resources: structural schemas as in upstream's
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/schema`. Pure: no I/O, no clock, no randomness.
//!
//! ```text
//! definition written: props (a view of the JSON) ─► definition (all checks) ─► Structural
//! request:            decode: prune, null, metadata ─► default ─► validate ─► rules
//! ```
//!
//! A [`Structural`] is built once for each version of a definition. It omits fields for readers of
//! the published schema (descriptions, titles, examples).

mod definition;
mod format;
mod list_type;
mod metadata;
mod null;
mod path;
pub mod pattern;
mod props;
mod prune;
mod render;
mod rules;
mod structural;
mod validate;

pub use api::{Invalid, InvalidKind};
pub use definition::{FieldPathError, Options};
pub use format::is_format;
pub use rules::{Rules, Verdict};
pub use structural::{Additional, Kind, ListType, MAX_DEPTH, MapType, Node, NotStructural, Rule, Structural, Values};
