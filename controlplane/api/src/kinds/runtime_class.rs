//! `RuntimeClass`: selects a container runtime configuration.

use k8s_openapi::api::node::v1::RuntimeClass;

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::dns1123_label;
use crate::workload::pod::defaults::amounts;
use crate::workload::validation::{each, immutable, metadata, unique_tolerations};
use crate::workload::warnings::old_label;

impl Kind for RuntimeClass {
    const UPDATES: Updates = Updates::CREATE_CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        // Upstream looks up the description in the wrong place, and finds none.
        Column::text("Handler", "", |class, _| class.handler.as_str().into()),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        if let Some(overhead) = &mut self.overhead {
            overhead.pod_fixed.iter_mut().for_each(amounts);
        }
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let labels = self.scheduling.iter().filter_map(|own| own.node_selector.as_ref());
        let messages = labels
            .flat_map(|labels| labels.keys())
            .filter_map(|label| old_label(label));
        messages
            .map(|message| format!("scheduling.nodeSelector: {message}"))
            .collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        each(&mut errors, "handler", &self.handler, dns1123_label(&self.handler));
        if let Some(own) = &self.scheduling {
            errors.extend(metadata::labels(own.node_selector.as_ref(), "scheduling.nodeSelector"));
            let tolerations = own.tolerations.as_deref().unwrap_or_default();
            unique_tolerations(&mut errors, tolerations, "scheduling.tolerations");
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        immutable(&mut errors, "handler", &self.handler, &old.handler);
        errors
    }
}
