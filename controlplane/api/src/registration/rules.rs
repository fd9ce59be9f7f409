//! Validation of a kind together with its metadata.

use super::Registration;
use crate::kinds::custom_resource_definition;
use crate::object::Object;
use crate::value::invalid::Invalid;
use crate::workload::validation::metadata;

impl Registration {
    fn of_metadata(&self, mut found: Vec<Invalid>) -> Vec<Invalid> {
        if self.is_defined() || self.group == custom_resource_definition::GROUP {
            found.retain(|error| error.detail != metadata::UNQUALIFIED);
        }
        found
    }

    fn changed_metadata(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        self.of_metadata(metadata::validate_update(
            new.metadata(),
            old.metadata(),
            self.scope,
            self.name_rule,
        ))
    }

    /// Validates a new object including its metadata. Requires the final name and namespace.
    pub fn validate(&self, object: &dyn Object) -> Vec<Invalid> {
        let mut errors = self.of_metadata(metadata::validate(object.metadata(), self.scope, self.name_rule));
        errors.extend((**self).validate(object));
        errors
    }

    /// Validates an update including the metadata; errors that it leaves unchanged become warnings.
    pub fn validate_update(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let mut errors = self.changed_metadata(new, old);
        errors.extend((**self).validate_update(new, old, warnings));
        // Custom kinds decide themselves which errors an update may leave unchanged.
        if !errors.is_empty() && !self.is_defined() {
            // Errors that the stored object already has do not block changes of other fields.
            let before = (**self).validate(old);
            errors.retain(|error| !before.contains(error));
        }
        errors
    }

    /// Validates an update of `status` including the metadata; errors that it leaves unchanged
    /// become warnings.
    pub fn validate_status(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let mut errors = self.changed_metadata(new, old);
        errors.extend((**self).validate_status(new, old, warnings));
        errors
    }

    /// Validates an update of the kind's own subresource including the metadata.
    pub fn validate_own(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        let mut errors = self.changed_metadata(new, old);
        errors.extend((**self).validate_own(new, old));
        errors
    }
}
