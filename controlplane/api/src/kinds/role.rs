//! Role and `ClusterRole`: what may be done.

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};

use crate::kind::{Column, Kind, Updates};
use crate::names::Rule;
use crate::table::created_column;

impl Kind for Role {
    const UPDATES: Updates = Updates::CREATE;
    const NAME: Rule = Rule::PathSegment;
    const COLUMNS: &'static [Column<Self>] = &[created_column()];
}

impl Kind for ClusterRole {
    const UPDATES: Updates = Updates::CREATE;
    const NAME: Rule = Rule::PathSegment;
    const COLUMNS: &'static [Column<Self>] = &[created_column()];
}
