//! Role and `ClusterRole`: permissions.

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};

use crate::kind::{Kind, Updates};
use crate::table::{Column, created_column};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;
use crate::workload::validation::rbac;

impl Kind for Role {
    const UPDATES: Updates = Updates::CREATE;
    const NAME: Rule = Rule::PathSegment;
    const COLUMNS: &'static [Column<Self>] = &[created_column()];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        rbac::rules(&mut errors, self.rules.as_ref(), true);
        errors
    }
}

impl Kind for ClusterRole {
    const UPDATES: Updates = Updates::CREATE;
    const NAME: Rule = Rule::PathSegment;
    const COLUMNS: &'static [Column<Self>] = &[created_column()];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        rbac::rules(&mut errors, self.rules.as_ref(), false);
        rbac::aggregation(&mut errors, self.aggregation_rule.as_ref());
        errors
    }
}
