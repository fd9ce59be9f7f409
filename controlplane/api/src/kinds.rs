//! The table of kinds. A new kind is a file here, a line in [`KINDS`] and a fixture.

pub mod access_review;
pub mod api_service;
pub mod binding;
pub mod certificate_signing_request;
pub mod component_status;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod custom_resource_definition;
pub mod daemon_set;
pub mod deployment;
pub mod device_class;
pub mod endpoint_slice;
pub mod endpoints;
pub mod event;
pub mod flow_schema;
pub mod horizontal_pod_autoscaler;
pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod job;
pub mod lease;
pub mod limit_range;
pub mod metrics;
pub mod mutating_admission_policy;
pub mod namespace;
pub mod network_policy;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_disruption_budget;
pub mod pod_template;
pub mod priority_class;
pub mod priority_level_configuration;
pub mod replica_set;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_quota;
pub mod resource_slice;
pub mod role;
pub mod role_binding;
pub mod runtime_class;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod stateful_set;
pub mod storage_class;
pub mod subresources;
pub mod token_review;
pub mod validating_admission_policy;
pub mod volume_attachment;
pub mod volume_attributes_class;
pub mod webhook_configuration;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::{
    admissionregistration, apps, authentication, authorization, autoscaling, batch, certificates, coordination, core,
    discovery, events, flowcontrol, networking, node as nodes, policy, rbac, resource, scheduling, storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration;

use crate::registration::{Registration, Row};

/// All built-in kinds. A static instead of a constant: otherwise every crate that uses it would get
/// the code of all kinds again.
pub static KINDS: &[Registration] = &[
    Registration::of::<core::v1::Binding>(),
    Registration::of::<core::v1::ComponentStatus>(),
    Registration::of::<core::v1::ConfigMap>(),
    Registration::of::<core::v1::Endpoints>(),
    Registration::of::<core::v1::Event>(),
    Registration::of::<core::v1::LimitRange>(),
    Registration::of::<core::v1::Namespace>(),
    Registration::of::<core::v1::Node>(),
    Registration::of::<core::v1::PersistentVolume>(),
    Registration::of::<core::v1::PersistentVolumeClaim>(),
    Registration::of::<core::v1::Pod>(),
    Registration::of::<core::v1::PodTemplate>(),
    Registration::of::<core::v1::ReplicationController>(),
    Registration::of::<core::v1::ResourceQuota>(),
    Registration::of::<core::v1::Secret>(),
    Registration::of::<core::v1::Service>(),
    Registration::of::<core::v1::ServiceAccount>(),
    Registration::of::<apiregistration::v1::APIService>(),
    Registration::of::<admissionregistration::v1::MutatingAdmissionPolicy>(),
    Registration::of::<admissionregistration::v1::MutatingAdmissionPolicyBinding>(),
    Registration::of::<admissionregistration::v1::MutatingWebhookConfiguration>(),
    Registration::of::<admissionregistration::v1::ValidatingAdmissionPolicy>(),
    Registration::of::<admissionregistration::v1::ValidatingAdmissionPolicyBinding>(),
    Registration::of::<admissionregistration::v1::ValidatingWebhookConfiguration>(),
    Registration::of::<apiextensions::v1::CustomResourceDefinition>(),
    Registration::of::<apps::v1::ControllerRevision>(),
    Registration::of::<apps::v1::DaemonSet>(),
    Registration::of::<apps::v1::Deployment>(),
    Registration::of::<apps::v1::ReplicaSet>(),
    Registration::of::<apps::v1::StatefulSet>(),
    Registration::of::<authentication::v1::SelfSubjectReview>(),
    Registration::of::<authentication::v1::TokenReview>(),
    Registration::of::<authorization::v1::LocalSubjectAccessReview>(),
    Registration::of::<authorization::v1::SelfSubjectAccessReview>(),
    Registration::of::<authorization::v1::SelfSubjectRulesReview>(),
    Registration::of::<authorization::v1::SubjectAccessReview>(),
    // The preferred version comes first.
    Registration::of::<autoscaling::v2::HorizontalPodAutoscaler>(),
    Registration::of::<autoscaling::v1::HorizontalPodAutoscaler>(),
    Registration::of::<batch::v1::CronJob>(),
    Registration::of::<batch::v1::Job>(),
    Registration::of::<certificates::v1::CertificateSigningRequest>(),
    Registration::of::<coordination::v1::Lease>(),
    Registration::of::<discovery::v1::EndpointSlice>(),
    Registration::of::<events::v1::Event>(),
    Registration::of::<flowcontrol::v1::FlowSchema>(),
    Registration::of::<flowcontrol::v1::PriorityLevelConfiguration>(),
    Registration::of::<networking::v1::Ingress>(),
    Registration::of::<networking::v1::IngressClass>(),
    Registration::of::<networking::v1::IPAddress>(),
    Registration::of::<networking::v1::NetworkPolicy>(),
    Registration::of::<networking::v1::ServiceCIDR>(),
    Registration::of::<nodes::v1::RuntimeClass>(),
    Registration::of::<policy::v1::PodDisruptionBudget>(),
    Registration::of::<rbac::v1::ClusterRole>(),
    Registration::of::<rbac::v1::ClusterRoleBinding>(),
    Registration::of::<rbac::v1::Role>(),
    Registration::of::<rbac::v1::RoleBinding>(),
    Registration::of::<resource::v1::DeviceClass>(),
    Registration::of::<resource::v1::ResourceClaim>(),
    Registration::of::<resource::v1::ResourceClaimTemplate>(),
    Registration::of::<resource::v1::ResourceSlice>(),
    Registration::of::<scheduling::v1::PriorityClass>(),
    Registration::of::<storage::v1::CSIDriver>(),
    Registration::of::<storage::v1::CSINode>(),
    Registration::of::<storage::v1::CSIStorageCapacity>(),
    Registration::of::<storage::v1::StorageClass>(),
    Registration::of::<storage::v1::VolumeAttachment>(),
    Registration::of::<storage::v1::VolumeAttributesClass>(),
    Registration::of::<metrics::NodeMetrics>(),
    Registration::of::<metrics::PodMetrics>(),
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

/// True if a built-in kind has this name, including bodies of subresources and lists.
pub fn is_kind(group: &str, version: &str, kind: &str) -> bool {
    let of = |kind: &str| find_kind(group, version, kind).is_some();
    of(kind) || kind.strip_suffix("List").is_some_and(of) || subresources::is_one(group, version, kind)
}

/// All kinds that are served: built-in kinds and those that objects define.
#[derive(Clone, Default)]
pub struct Kinds {
    /// Rows by group, version and plural.
    defined: BTreeMap<(&'static str, &'static str, &'static str), Arc<Registration>>,
}

impl Kinds {
    /// Table with these rows in addition to the built-in ones, which come first.
    pub fn with(defined: impl IntoIterator<Item = Arc<Registration>>) -> Self {
        let rows = defined
            .into_iter()
            .map(|row| ((row.group, row.version, row.plural), row));
        Self {
            defined: rows.collect(),
        }
    }

    /// The kind at a path; the group of core is empty.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Row> {
        let defined = || self.defined.get(&(group, version, plural)).cloned().map(Row::Defined);
        find(group, version, plural).map(Row::Program).or_else(defined)
    }

    /// The kind of a name; the group of core is empty.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<Row> {
        let defined = || {
            let mut versions = self.defined.range((group, version, "")..);
            let own = versions.find_map(|((own_group, own_version, _), row)| {
                let is_of_version = *own_group == group && *own_version == version;
                (!is_of_version || row.kind == kind).then(|| row.clone())
            });
            own.filter(|row| row.group == group && row.version == version)
                .map(Row::Defined)
        };
        find_kind(group, version, kind).map(Row::Program).or_else(defined)
    }

    /// All rows, built-in kinds first.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        KINDS.iter().map(Row::Program).chain(self.defined())
    }

    /// Rows of kinds that objects define.
    pub fn defined(&self) -> impl Iterator<Item = Row> {
        self.defined.values().cloned().map(Row::Defined)
    }
}
