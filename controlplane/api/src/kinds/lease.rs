//! Lease: a sign of life, or a lock.

use k8s_openapi::api::coordination::v1::Lease;

use crate::kind::Kind;

impl Kind for Lease {}
