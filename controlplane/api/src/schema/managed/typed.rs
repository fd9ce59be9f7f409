//! Objects along their schema: validated, compared and merged, as in
//! `sigs.k8s.io/structured-merge-diff/typed`.

pub(super) mod check;
pub(super) mod compare;
pub(super) mod fields;
mod key;
pub(super) mod merge;
pub(super) mod shape;
pub(super) mod types;
