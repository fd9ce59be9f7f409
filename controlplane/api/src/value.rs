//! Values of fields: the ground floor, which uses nothing else of this crate.

pub mod bounds;
pub mod certificate;
pub mod cidr;
pub mod duration;
pub mod go;
pub mod intern;
pub mod invalid;
pub mod names;
pub mod quantity;
pub mod schedule;
pub mod selector;
pub mod url;
