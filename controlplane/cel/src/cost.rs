//! Cost of expressions: counted while they are evaluated, and estimated before.

pub(crate) mod actual;
pub(crate) mod estimate;
