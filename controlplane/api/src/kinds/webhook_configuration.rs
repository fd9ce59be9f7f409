//! `MutatingWebhookConfiguration` and `ValidatingWebhookConfiguration`: webhooks that are called
//! before an object is stored.

pub(super) mod validation;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;

const COUNT: &str = "Webhooks indicates the number of webhooks registered in this configuration";
/// Suffix of names that upstream reserves for static configurations.
const STATIC: &str = ".static.k8s.io";

impl Kind for MutatingWebhookConfiguration {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Webhooks", COUNT, |own, _| {
            own.webhooks.as_ref().map_or(0, Vec::len).into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.webhooks.iter_mut().flatten().for_each(set_defaults);
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.webhooks != old.webhooks
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::validate(self.webhooks.as_deref().unwrap_or_default())
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

impl Kind for ValidatingWebhookConfiguration {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Webhooks", COUNT, |own, _| {
            own.webhooks.as_ref().map_or(0, Vec::len).into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        for webhook in self.webhooks.iter_mut().flatten() {
            let mut mutating: MutatingWebhook = converted(webhook);
            set_defaults(&mut mutating);
            *webhook = converted(&mutating);
        }
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.webhooks != old.webhooks
    }

    fn validate(&self) -> Vec<Invalid> {
        let common: Vec<MutatingWebhook> = self.webhooks.iter().flatten().map(converted).collect();
        validation::validate(&common)
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

/// A webhook as one of the other kind: a mutating one has all fields of a validating one and one
/// more, under the same names.
fn converted<T: DeserializeOwned + Default>(webhook: &impl Serialize) -> T {
    let json = serde_json::to_value(webhook).unwrap_or_default();
    serde_json::from_value(json).unwrap_or_default()
}

/// `pkg/apis/admissionregistration/v1/defaults.go`
fn set_defaults(webhook: &mut MutatingWebhook) {
    text(&mut webhook.failure_policy, "Fail");
    text(&mut webhook.match_policy, "Equivalent");
    text(&mut webhook.reinvocation_policy, "Never");
    webhook.namespace_selector.get_or_insert_default();
    webhook.object_selector.get_or_insert_default();
    webhook.timeout_seconds.get_or_insert(10);
    for rule in webhook.rules.iter_mut().flatten() {
        text(&mut rule.scope, "*");
    }
    if let Some(service) = &mut webhook.client_config.service {
        service.port.get_or_insert(443);
    }
}

/// `pkg/apis/admissionregistration/validation/static_suffix.go`
pub(super) fn warnings(name: Option<&str>) -> Vec<String> {
    let is_static = name.is_some_and(|name| name.ends_with(STATIC));
    let warning = format!(
        "metadata.name: names ending with {STATIC:?} are reserved for static manifest-based configurations and cannot \
         be managed via the API"
    );
    is_static.then_some(warning).into_iter().collect()
}
