//! API types of the control plane: defaults, validation and table columns of each kind. Pure: no
//! I/O, no clock, no randomness; times and random numbers are arguments. Types are `k8s_openapi`'s.
//!
//! | Room | Content |
//! |---|---|
//! | [`value`] | values of fields: quantities, CIDRs, names, selectors, URLs, schedules, errors |
//! | [`schema`] | the table of messages and its uses: decoding, protobuf, patches, managed fields, `OpenAPI` |
//! | [`workload`] | pods and their templates: defaults, validation, warnings, quotas, security levels |
//! | [`kinds`] | the kinds, one file each; `kind`, `strategy`, `table`: the parts that kinds are made of |
//! | [`registration`] | a kind with its type erased, as the server sees it; [`object`]: an object likewise |
//! | [`zpages`] | `/statusz` and `/flagz` of a component |
//!
//! A kind is a row of [`KINDS`]: one file in `kinds/` that implements [`Kind`], one line in
//! `kinds.rs`, one fixture.

pub mod kind;
pub mod kinds;
pub mod object;
pub mod registration;
pub mod schema;
pub mod strategy;
pub mod table;
pub mod value;
pub mod workload;
pub mod zpages;

pub use kind::Kind;
pub use kinds::{KINDS, Kinds, find, find_kind, is_kind};
pub use object::Object;
pub use registration::{Registration, Row};
pub use schema::{decode, descriptions, go_json, managed, omit, openapi, patch, protobuf, strict, yaml};
pub use value::invalid::{Invalid, InvalidKind};
pub use value::{bounds, certificate, cidr, duration, go, intern, names, quantity, schedule, selector, url};
pub use workload::{pod, pod_security, quota, validation};
