//! Secret: confidential data for pods.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::config_map::{DATA_LIMIT, FROZEN};
use crate::kind::{Field, Kind};
use crate::schema::decode::syntax;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::config_key;
use crate::workload::pod::defaults::text;
use crate::workload::validation::{each, immutable};

/// Start of a PEM text.
const PEM: &[u8] = b"-----BEGIN";

impl Kind for Secret {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Type", "core.v1.Secret.type", |secret, _| secret.type_.clone().into()),
        Column::text("Data", "core.v1.Secret.data", |secret, _| {
            secret.data.iter().flatten().count().into()
        }),
        age_column(),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("type", |secret| secret.type_.clone().unwrap_or_default())];

    fn set_defaults(&mut self) {
        text(&mut self.type_, "Opaque");
        // `stringData` is write-only: it is merged into `data`.
        for (key, value) in self.string_data.take().into_iter().flatten() {
            self.data
                .get_or_insert_default()
                .insert(key, ByteString(value.into_bytes()));
        }
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        if self.type_.as_deref() != Some("kubernetes.io/tls") {
            return Vec::new();
        }
        let is_pem = |key: &str| {
            let content = self.data.as_ref().and_then(|data| data.get(key));
            content.is_some_and(|content| content.0.windows(PEM.len()).any(|part| part == PEM))
        };
        let missing = [("tls.crt", "certificate"), ("tls.key", "key")]
            .into_iter()
            .find(|(key, _)| !is_pem(key));
        let warning = missing.map(|(_, what)| format!("tls: failed to find any PEM data in {what} input"));
        warning.into_iter().collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let mut size = 0;
        for (key, value) in self.data.iter().flatten() {
            each(&mut errors, &format!("data[{key}]"), key, config_key(key));
            size += value.0.len();
        }
        if size > DATA_LIMIT {
            errors.push(Invalid::too_long("data", DATA_LIMIT));
        }
        let has = |key: &str| self.data.as_ref().is_some_and(|data| data.contains_key(key));
        let needed: &[&str] = match self.type_.as_deref().unwrap_or_default() {
            "kubernetes.io/tls" => &["tls.crt", "tls.key"],
            "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
            "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
            "kubernetes.io/dockercfg" => &[".dockercfg"],
            "kubernetes.io/basic-auth" if !has("username") && !has("password") => &["username", "password"],
            _ => &[],
        };
        for key in needed.iter().filter(|key| !has(key)) {
            errors.push(Invalid::required(format!("data[{key}]"), ""));
        }
        for key in needed.iter().filter(|key| key.starts_with(".docker")) {
            let content = self.data.as_ref().and_then(|data| data.get(*key));
            if let Some(problem) = content.and_then(|content| syntax::no_map(&content.0)) {
                let value = "<secret contents redacted>";
                errors.push(Invalid::value(format!("data[{key}]"), value, problem));
            }
        }
        if self.type_.as_deref() == Some("kubernetes.io/service-account-token") {
            const NAME: &str = "kubernetes.io/service-account.name";
            let named = self
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key(NAME));
            if !named {
                errors.push(Invalid::required(format!("metadata.annotations[{NAME}]"), ""));
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        immutable(&mut errors, "type", &self.type_, &old.type_);
        if old.immutable == Some(true) {
            if self.immutable != Some(true) {
                errors.push(Invalid::forbidden("immutable", FROZEN));
            }
            if self.data != old.data {
                errors.push(Invalid::forbidden("data", FROZEN));
            }
        }
        errors
    }
}
