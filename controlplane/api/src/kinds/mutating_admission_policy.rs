//! `MutatingAdmissionPolicy` and `MutatingAdmissionPolicyBinding`: CEL expressions that change an
//! object before it is stored.

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};

use crate::kind::{Kind, Updates};
use crate::kinds::validating_admission_policy::{set_defaults, shown_kind, shown_reference, validation};
use crate::kinds::webhook_configuration::warnings;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;

impl Kind for MutatingAdmissionPolicy {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer(
            "Mutations",
            "Mutation indicates the number of mutations rules defined in this configuration",
            |own, _| {
                let mutations = own.spec.as_ref().and_then(|spec| spec.mutations.as_ref());
                mutations.map_or(0, Vec::len).into()
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

    crate::spec_alone!();

    fn validate(&self) -> Vec<Invalid> {
        validation::mutating_policy(self.spec.clone().unwrap_or_default())
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}

impl Kind for MutatingAdmissionPolicyBinding {
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const UPDATES: Updates = Updates::CONDITIONAL;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "PolicyName",
            "PolicyName indicates the policy definition which the policy binding binded to",
            |own, _| {
                let name = own.spec.as_ref().and_then(|spec| spec.policy_name.as_deref());
                name.unwrap_or_default().into()
            },
        ),
        Column::text(
            "ParamRef",
            "ParamRef indicates the param resource which sets the configuration param",
            |own, _| {
                let reference = own.spec.as_ref().and_then(|spec| spec.param_ref.as_ref());
                shown_reference(reference).into()
            },
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        set_defaults(spec.match_resources.as_mut());
    }

    crate::spec_alone!();

    fn validate(&self) -> Vec<Invalid> {
        validation::mutating_binding(&self.spec.clone().unwrap_or_default())
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings(self.metadata.name.as_deref())
    }
}
