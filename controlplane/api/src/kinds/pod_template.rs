//! `PodTemplate`: a template for pods.

use k8s_openapi::api::core::v1::PodTemplate;

use crate::kind::Kind;
use crate::table::{Column, containers, labels};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::set_template_defaults;
use crate::workload::validation::newly;
use crate::workload::validation::workload::pod_template;
use crate::workload::warnings;

impl Kind for PodTemplate {
    const ANSWERS_DELETED: bool = true;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Containers", "Names of each container in the template.", |own, _| {
            containers(own.template.as_ref()).0.into()
        }),
        Column::text(
            "Images",
            "Images referenced by each container in the template.",
            |own, _| containers(own.template.as_ref()).1.into(),
        ),
        Column::text("Pod Labels", "The labels for the pod template.", |own, _| {
            let metadata = own.template.as_ref().and_then(|template| template.metadata.as_ref());
            labels(metadata.and_then(|metadata| metadata.labels.as_ref())).into()
        }),
    ];

    fn set_defaults(&mut self) {
        let template = self.template.get_or_insert_default();
        set_template_defaults(template);
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_same = old.is_some_and(|old| old.template == self.template);
        if let Some(template) = self.template.as_ref().filter(|_| !is_same) {
            warnings::of_template(&mut warnings, template, "template");
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        let template = self.template.as_ref();
        template
            .map(|template| pod_template(template, "template"))
            .unwrap_or_default()
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        newly(self.validate(), || old.validate())
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.template != old.template
    }
}
