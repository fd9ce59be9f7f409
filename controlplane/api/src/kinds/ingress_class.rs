//! `IngressClass`: controller that serves Ingresses.

use k8s_openapi::api::networking::v1::{IngressClass, IngressClassParametersReference};

use crate::kind::Kind;
use crate::table::{self, Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::defaults::text;
use crate::workload::validation::{domain_prefixed_path, each, immutable, reference, required};

impl Kind for IngressClass {
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Controller",
            "Controller that is responsible for handling this class",
            |class, _| {
                let spec = class.spec.as_ref();
                let controller = spec.and_then(|spec| spec.controller.as_deref());
                controller.unwrap_or_default().into()
            },
        ),
        Column::text(
            "Parameters",
            "A reference to a resource with additional parameters",
            |class, _| parameters(class).into(),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(parameters) = &mut spec.parameters {
            text(&mut parameters.scope, "Cluster");
        }
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let spec = self.spec.as_ref();
        let controller = spec.and_then(|spec| spec.controller.as_deref());
        if required(&mut errors, CONTROLLER, controller) {
            validate_controller(&mut errors, controller.unwrap_or_default());
        }
        if let Some(parameters) = spec.and_then(|spec| spec.parameters.as_ref()) {
            validate_parameters(&mut errors, parameters, "spec.parameters");
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let controller = |class: &Self| class.spec.as_ref().and_then(|spec| spec.controller.clone());
        immutable(&mut errors, CONTROLLER, &controller(self), &controller(old));
        errors.extend(self.validate());
        errors
    }

    fn shown_name(&self) -> String {
        table::class_name(&self.metadata, &["ingressclass.kubernetes.io/is-default-class"])
    }

    crate::spec_alone!();
}

const CONTROLLER: &str = "spec.controller";

/// `example.com/ingress-controller`
fn validate_controller(errors: &mut Vec<Invalid>, controller: &str) {
    if controller.len() > 250 {
        errors.push(Invalid::too_long(CONTROLLER, 250));
    }
    errors.extend(domain_prefixed_path(CONTROLLER, controller));
}

fn validate_parameters(errors: &mut Vec<Invalid>, parameters: &IngressClassParametersReference, path: &str) {
    let group = parameters.api_group.as_deref();
    reference(errors, path, group, &parameters.kind, &parameters.name);
    let (scope, namespace) = (format!("{path}.scope"), format!("{path}.namespace"));
    match (parameters.scope.as_deref(), &parameters.namespace) {
        (None, _) => errors.push(Invalid::required(scope, "")),
        (Some("Namespace"), None) => {
            errors.push(Invalid::required(namespace, "`parameters.scope` is set to 'Namespace'"));
        }
        (Some("Namespace"), Some(own)) => each(errors, &namespace, own, names::dns1123_label(own)),
        (Some("Cluster"), Some(_)) => {
            errors.push(Invalid::forbidden(namespace, "`parameters.scope` is set to 'Cluster'"));
        }
        (Some("Cluster"), None) => {}
        (Some(other), _) => errors.push(Invalid::not_supported(scope, other, &["Cluster", "Namespace"])),
    }
}

/// `Kind.group/name`
fn parameters(class: &IngressClass) -> String {
    let Some(parameters) = class.spec.as_ref().and_then(|spec| spec.parameters.as_ref()) else {
        return "<none>".to_owned();
    };
    match &parameters.api_group {
        Some(group) => format!("{}.{group}/{}", parameters.kind, parameters.name),
        None => format!("{}/{}", parameters.kind, parameters.name),
    }
}
