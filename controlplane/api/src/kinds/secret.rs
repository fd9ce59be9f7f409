//! Secret: data for pods that is not shown.

use k8s_openapi::api::core::v1::Secret;

use crate::kind::Kind;

impl Kind for Secret {}
