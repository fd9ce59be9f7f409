//! `PriorityClass`: a name for a priority.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::kind::Kind;

impl Kind for PriorityClass {
    const SHORT_NAMES: &'static [&'static str] = &["pc"];
    const GENERATION: bool = true;
}
