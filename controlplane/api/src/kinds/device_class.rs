//! `DeviceClass`: a class of devices that can be claimed.

use k8s_openapi::api::resource::v1::DeviceClass;

use super::resource_claim::validation::{opaque, selectors};
use crate::kind::Kind;
use crate::value::invalid::Invalid;
use crate::workload::validation::newly;

impl Kind for DeviceClass {
    const ANSWERS_DELETED: bool = true;
    const GENERATION: bool = true;

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        selectors(&mut errors, self.spec.selectors.as_deref(), "spec");
        for (index, config) in self.spec.config.iter().flatten().enumerate() {
            opaque(&mut errors, config.opaque.as_ref(), &format!("spec.config[{index}]"));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        newly(self.validate(), || old.validate())
    }

    crate::spec_alone!();
}
