//! `ControllerRevision`: a snapshot of a workload's spec.

use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::kind::Kind;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::{immutable, non_negative};

impl Kind for ControllerRevision {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Controller", "Controller of the object", |revision, _| {
            owner(revision).into()
        }),
        Column::text("Revision", "apps.v1.ControllerRevision.revision", |revision, _| {
            revision.revision.into()
        }),
        age_column(),
    ];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        if self.data.is_none() {
            errors.push(Invalid::required("data", "data is mandatory"));
        }
        non_negative(&mut errors, "revision", self.revision);
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        immutable(&mut errors, "data", &self.data, &old.data);
        errors
    }
}

/// `statefulset.apps/web`
fn owner(revision: &ControllerRevision) -> String {
    let mut owners = revision.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else {
        return "<none>".to_owned();
    };
    let kind = owner.kind.to_lowercase();
    match owner.api_version.split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.name),
        None => format!("{kind}/{}", owner.name),
    }
}
