//! `ConfigMap`: data for pods.

use k8s_openapi::api::core::v1::ConfigMap;

use crate::kind::Kind;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::config_key;
use crate::workload::validation::each;

impl Kind for ConfigMap {
    const SHORT_NAMES: &'static [&'static str] = &["cm"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Data", "core.v1.ConfigMap.data", |map, _| {
            (map.data.iter().flatten().count() + map.binary_data.iter().flatten().count()).into()
        }),
        age_column(),
    ];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let texts = self
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key, value.len(), "data"));
        let bytes = self
            .binary_data
            .iter()
            .flatten()
            .map(|(key, value)| (key, value.0.len(), "binaryData"));
        let mut size = 0;
        for (key, length, list) in texts.chain(bytes) {
            each(&mut errors, &format!("{list}[{key}]"), key, config_key(key));
            size += length;
        }
        for key in self.data.iter().flatten().map(|(key, _)| key) {
            if self.binary_data.as_ref().is_some_and(|other| other.contains_key(key)) {
                let detail = "duplicate of key present in binaryData";
                errors.push(Invalid::value(format!("data[{key}]"), key, detail));
            }
        }
        if size > DATA_LIMIT {
            errors.push(Invalid::too_long("[]", DATA_LIMIT));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        if old.immutable == Some(true) {
            let changed = [
                (self.immutable != Some(true), "immutable"),
                (self.data != old.data, "data"),
                (self.binary_data != old.binary_data, "binaryData"),
            ];
            for (_, field) in changed.into_iter().filter(|(changed, _)| *changed) {
                errors.push(Invalid::forbidden(field, FROZEN));
            }
        }
        errors
    }
}

/// Maximum size of all values together, in bytes.
pub(super) const DATA_LIMIT: usize = 1024 * 1024;

pub(super) const FROZEN: &str = "field is immutable when `immutable` is set";
