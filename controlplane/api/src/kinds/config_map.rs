//! `ConfigMap`: data for pods.

use k8s_openapi::api::core::v1::ConfigMap;

use crate::kind::Kind;

impl Kind for ConfigMap {
    const SHORT_NAMES: &'static [&'static str] = &["cm"];
}
