//! For operators: health, metrics, audit log, z-pages and the UI.

pub mod audit;
pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod ui;
pub(crate) mod zpages;
