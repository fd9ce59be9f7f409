//! Pods and their templates: defaults, validation, warnings, quotas and security levels.

pub mod pod;
pub mod pod_security;
pub mod quota;
pub mod validation;
pub(crate) mod warnings;
