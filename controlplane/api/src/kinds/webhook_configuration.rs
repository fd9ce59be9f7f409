//! `MutatingWebhookConfiguration` and `ValidatingWebhookConfiguration`: webhooks that are called
//! before an object is stored.

pub(super) mod validation;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
};

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
            let mut common = common(webhook);
            set_defaults(&mut common);
            let MutatingWebhook {
                client_config,
                failure_policy,
                match_policy,
                namespace_selector,
                object_selector,
                rules,
                timeout_seconds,
                ..
            } = common;
            webhook.client_config = client_config;
            webhook.failure_policy = failure_policy;
            webhook.match_policy = match_policy;
            webhook.namespace_selector = namespace_selector;
            webhook.object_selector = object_selector;
            webhook.rules = rules;
            webhook.timeout_seconds = timeout_seconds;
        }
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.webhooks != old.webhooks
    }

    fn validate(&self) -> Vec<Invalid> {
        let common: Vec<MutatingWebhook> = self.webhooks.iter().flatten().map(common).collect();
        validation::validate(&common)
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

/// Validating webhook as a mutating one, which has all its fields and one more.
fn common(webhook: &ValidatingWebhook) -> MutatingWebhook {
    let ValidatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        rules,
        side_effects,
        timeout_seconds,
    } = webhook.clone();
    MutatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        reinvocation_policy: None,
        rules,
        side_effects,
        timeout_seconds,
    }
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
