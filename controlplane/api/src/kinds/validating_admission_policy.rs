//! `ValidatingAdmissionPolicy` and `ValidatingAdmissionPolicyBinding`: CEL expressions that admit
//! or reject an object.

pub(super) mod validation;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::{Kind, Subresource, Updates};
use crate::kinds::webhook_configuration::warnings;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;

impl Kind for ValidatingAdmissionPolicy {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_WITH_METADATA: bool = false;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer(
            "Validations",
            "Validations indicates the number of validation rules defined in this configuration",
            |own, _| {
                let validations = own.spec.as_ref().and_then(|spec| spec.validations.as_ref());
                validations.map_or(0, Vec::len).into()
            },
        ),
        Column::text(
            "ParamKind",
            "ParamKind specifies the kind of resources used to parameterize this policy",
            |own, _| {
                let kind = own.spec.as_ref().and_then(|spec| spec.param_kind.as_ref());
                shown_kind(kind).into()
            },
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        text(&mut spec.failure_policy, "Fail");
        set_defaults(spec.match_constraints.as_mut());
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        validation::policy(self)
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        validation::status(self)
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

impl Kind for ValidatingAdmissionPolicyBinding {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "PolicyName",
            "PolicyName indicates the policy definition which the policy binding binded to",
            |own, _| own.spec.policy_name.as_str().into(),
        ),
        Column::text(
            "ParamRef",
            "ParamRef indicates the param resource which sets the configuration param",
            |own, _| shown_reference(own.spec.param_ref.as_ref()).into(),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        set_defaults(self.spec.match_resources.as_mut());
    }

    crate::spec_alone!();

    fn validate(&self) -> Vec<Invalid> {
        validation::binding(&self.spec)
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

/// `printValidatingAdmissionPolicy` of `pkg/printers/internalversion/printers.go`
pub(super) fn shown_kind(kind: Option<&ParamKind>) -> String {
    let shown = kind.map(|kind| {
        let version = kind.api_version.as_deref().unwrap_or_default();
        format!("{version}/{}", kind.kind.as_deref().unwrap_or_default())
    });
    shown.unwrap_or_else(|| "<unset>".to_owned())
}

/// `printValidatingAdmissionPolicyBinding` of `pkg/printers/internalversion/printers.go`
pub(super) fn shown_reference(reference: Option<&ParamRef>) -> String {
    let Some(reference) = reference else {
        return "<unset>".to_owned();
    };
    let name = reference.name.as_deref().filter(|name| !name.is_empty());
    let namespace = reference.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    match (name, &reference.selector) {
        (Some(name), _) => format!("{}/{name}", namespace.unwrap_or("*")),
        (None, Some(selector)) => shown_selector(selector),
        (None, None) => "<unset>".to_owned(),
    }
}

/// A selector as Go prints the structure (`String` of apimachinery's
/// `pkg/apis/meta/v1/generated.pb.go`).
fn shown_selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: Vec<String> = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let requirements = selector.match_expressions.iter().flatten().map(|own| {
        let values = own.values.as_deref().unwrap_or_default().join(" ");
        let (key, operator) = (&own.key, &own.operator);
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    });
    let (labels, requirements) = (labels.concat(), requirements.collect::<Vec<_>>().concat());
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
}

/// `pkg/apis/admissionregistration/v1/defaults.go`
pub(super) fn set_defaults(resources: Option<&mut MatchResources>) {
    let Some(resources) = resources else { return };
    text(&mut resources.match_policy, "Equivalent");
    resources.namespace_selector.get_or_insert_default();
    resources.object_selector.get_or_insert_default();
    let rules = [&mut resources.resource_rules, &mut resources.exclude_resource_rules];
    for rule in rules.into_iter().flatten().flatten() {
        text(&mut rule.scope, "*");
    }
}
