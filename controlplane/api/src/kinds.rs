//! The table of kinds. A new kind is a file here, a line in [`KINDS`] and a fixture.

pub mod binding;
pub mod config_map;
pub mod deployment;
pub mod endpoint_slice;
pub mod event;
pub mod lease;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod priority_class;
pub mod replica_set;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod token_review;

use k8s_openapi::api::{apps, authentication, coordination, core, discovery, events, scheduling};

use crate::registration::Registration;

/// Every kind that is served.
pub const KINDS: &[Registration] = &[
    Registration::of::<core::v1::Binding>(),
    Registration::of::<core::v1::ConfigMap>(),
    Registration::of::<core::v1::Event>(),
    Registration::of::<core::v1::Namespace>(),
    Registration::of::<core::v1::Node>(),
    Registration::of::<core::v1::Pod>(),
    Registration::of::<core::v1::Secret>(),
    Registration::of::<core::v1::Service>(),
    Registration::of::<core::v1::ServiceAccount>(),
    Registration::of::<apps::v1::Deployment>(),
    Registration::of::<apps::v1::ReplicaSet>(),
    Registration::of::<authentication::v1::SelfSubjectReview>(),
    Registration::of::<authentication::v1::TokenReview>(),
    Registration::of::<coordination::v1::Lease>(),
    Registration::of::<discovery::v1::EndpointSlice>(),
    Registration::of::<events::v1::Event>(),
    Registration::of::<scheduling::v1::PriorityClass>(),
];

/// The kind at a path: `find("apps", "v1", "deployments")`; the group of core is empty.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Registration> {
    KINDS
        .iter()
        .find(|row| row.group == group && row.version == version && row.plural == plural)
}

/// The kind of a name: `find_kind("apps", "v1", "Deployment")`; the group of core is empty.
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Registration> {
    KINDS
        .iter()
        .find(|row| row.group == group && row.version == version && row.kind == kind)
}
