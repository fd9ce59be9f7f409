//! Controllers of credentials and rights: service accounts, certificates, bootstrap tokens, roles.

pub(crate) mod accounts;
pub(crate) mod aggregation;
pub(crate) mod certificates;
pub(crate) mod signer;
