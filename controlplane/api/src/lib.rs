//! API types of the control plane: defaults, validation and table columns of each kind. Pure: no
//! I/O, no clock, no randomness; times and random numbers are arguments. Types are `k8s_openapi`'s.
//!
//! A kind is a row of [`KINDS`]: one file in `kinds/` that implements [`Kind`], one line in
//! `kinds.rs`, one fixture.

pub mod bounds;
pub mod certificate;
pub mod decode;
pub mod descriptions;
pub mod go_json;
pub mod intern;
pub mod invalid;
pub mod kind;
pub mod kinds;
pub mod managed;
pub mod names;
pub mod object;
pub mod omit;
pub mod openapi;
pub mod patch;
pub mod pod;
pub mod pod_security;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod registration;
pub mod schedule;
pub mod schema;
pub mod selector;
pub mod strategy;
pub mod strict;
pub mod table;
pub mod url;
pub mod validation;
mod warnings;
pub mod yaml;

pub use invalid::{Invalid, InvalidKind};
pub use kind::Kind;
pub use kinds::{KINDS, Kinds, find, find_kind, is_kind};
pub use object::Object;
pub use registration::{Registration, Row};
