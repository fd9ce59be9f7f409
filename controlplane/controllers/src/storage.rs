//! Controllers of claims and volumes.

pub(crate) mod attach_detach;
pub(crate) mod ephemeral;
pub(crate) mod protection;
pub(crate) mod provisioner;
pub(crate) mod volumes;
