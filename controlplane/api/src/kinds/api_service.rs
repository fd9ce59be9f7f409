//! `APIService`: a group version, served here or by a server behind a Service
//! (`staging/src/k8s.io/kube-aggregator/pkg/{apis/apiregistration,registry/apiservice}`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition, APIServiceSpec};

use crate::kind::{Kind, Subresource, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::{Rule, dns1035_label, dns1123_subdomain};
use crate::workload::validation::{each, one_of, port, required};

/// API group of the kind.
pub const GROUP: &str = "apiregistration.k8s.io";
/// Condition that tells if the API service can serve requests.
pub const AVAILABLE: &str = "Available";

impl Kind for APIService {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const NAME: Rule = Rule::PathSegment;
    const STATUS_WITH_METADATA: bool = false;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Service",
            "The reference to the service that hosts this API endpoint.",
            |own, _| {
                let service = own.spec.as_ref().and_then(|spec| spec.service.as_ref());
                let shown = service.map(|service| {
                    let part = |text: &Option<String>| text.clone().unwrap_or_default();
                    format!("{}/{}", part(&service.namespace), part(&service.name))
                });
                shown.unwrap_or_else(|| "Local".to_owned()).into()
            },
        ),
        Column::text("Available", "Whether this service is available.", |own, _| {
            let Some(condition) = available(own) else {
                return "Unknown".into();
            };
            match condition.reason.as_deref() {
                Some(reason) if condition.status != "True" && !reason.is_empty() => {
                    format!("{} ({reason})", condition.status).into()
                }
                _ => condition.status.as_str().into(),
            }
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        if let Some(service) = self.spec.as_mut().and_then(|spec| spec.service.as_mut()) {
            service.port.get_or_insert(443);
        }
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        validate(name, self.spec.as_ref().unwrap_or(&APIServiceSpec::default()))
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for (index, condition) in conditions.enumerate() {
            let field = format!("status.conditions[{index}].status");
            one_of(
                &mut errors,
                &field,
                Some(&condition.status),
                &["True", "False", "Unknown"],
            );
        }
        errors
    }
}

/// The condition `Available`.
pub fn available(own: &APIService) -> Option<&APIServiceCondition> {
    let conditions = own.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == AVAILABLE)
}

/// Sets the condition `Available`; true if it changed.
pub fn set_available(own: &mut APIService, is_true: bool, reason: &str, message: &str, now: Timestamp) -> bool {
    let status = if is_true { "True" } else { "False" };
    let old = available(own).cloned();
    let same = |old: &APIServiceCondition| old.status == status;
    let since = old
        .as_ref()
        .filter(|old| same(old))
        .and_then(|old| old.last_transition_time.clone());
    let new = APIServiceCondition {
        type_: AVAILABLE.to_owned(),
        status: status.to_owned(),
        last_transition_time: since.or(Some(Time(now))),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    };
    if old.as_ref() == Some(&new) {
        return false;
    }
    let conditions = own.status.get_or_insert_default().conditions.get_or_insert_default();
    match conditions.iter_mut().find(|condition| condition.type_ == AVAILABLE) {
        Some(condition) => *condition = new,
        None => conditions.push(new),
    }
    true
}

/// `ValidateAPIService` of upstream's `pkg/apis/apiregistration/validation/validation.go`.
fn validate(name: &str, spec: &APIServiceSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let (group, version) = (
        spec.group.as_deref().unwrap_or_default(),
        spec.version.as_deref().unwrap_or_default(),
    );
    let required_name = format!("{version}.{group}");
    if name != required_name {
        let message = format!("must be `spec.version+\".\"+spec.group`: {required_name:?}");
        errors.push(Invalid::value("metadata.name", name, message));
    }
    if group.is_empty() && version != "v1" {
        let message = "only v1 may have an empty group and it better be legacy kube";
        errors.push(Invalid::required("spec.group", message));
    }
    if !group.is_empty() {
        each(&mut errors, "spec.group", group, dns1123_subdomain(group));
    }
    each(&mut errors, "spec.version", version, dns1035_label(version));
    let mut within = |field: &str, value: i32, most: i32| {
        if !(1..=most).contains(&value) {
            let message = format!("must be positive and less than {most}");
            errors.push(Invalid::value(field, value, message));
        }
    };
    within("spec.groupPriorityMinimum", spec.group_priority_minimum, 20_000);
    within("spec.versionPriority", spec.version_priority, 1000);
    let bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
    let insecure = spec.insecure_skip_tls_verify == Some(true);
    let Some(service) = &spec.service else {
        if bundle > 0 {
            let message = "local APIServices may not have a caBundle";
            errors.push(Invalid::value("spec.caBundle", format!("{bundle} bytes"), message));
        }
        if insecure {
            let message = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(Invalid::value("spec.insecureSkipTLSVerify", true, message));
        }
        return errors;
    };
    required(&mut errors, "spec.service.namespace", service.namespace.as_deref());
    required(&mut errors, "spec.service.name", service.name.as_deref());
    let mut of_port = Vec::new();
    port(&mut of_port, "spec.service.port", service.port.unwrap_or_default());
    errors.extend(of_port.into_iter().map(|mut error| {
        error.detail = format!("port is not valid: {}", error.detail);
        error
    }));
    if insecure && bundle > 0 {
        let message = "may not be true if caBundle is present";
        errors.push(Invalid::value("spec.insecureSkipTLSVerify", true, message));
    }
    errors
}
