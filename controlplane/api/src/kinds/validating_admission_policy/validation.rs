//! Validation of admission policies and their bindings, with upstream's words
//! (`pkg/apis/admissionregistration/validation/validation.go`), except for their expressions, which
//! the server compiles.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchResources, MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec, Mutation,
    NamedRuleWithOperations, ParamKind, ParamRef, RuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};

use crate::kinds::webhook_configuration::validation::{conditions, rule};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::{each, one_of, status_conditions};

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
const REASONS: [&str; 4] = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const PATCH_TYPES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];
const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const MOST_ANNOTATIONS: usize = 20;
const LONGEST_VALUE_EXPRESSION: usize = 5 * 1024;
/// Validates a policy.
pub(super) fn policy(policy: &ValidatingAdmissionPolicy) -> Vec<Invalid> {
    let spec = policy.spec.clone().unwrap_or_default();
    let mut errors = common(&spec, false);
    let validations = spec.validations.unwrap_or_default();
    let annotations = spec.audit_annotations.unwrap_or_default();
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.push(Invalid::required("spec.validations", detail));
        errors.push(Invalid::required("spec.auditAnnotations", detail));
        return errors;
    }
    for (index, own) in validations.iter().enumerate() {
        validation(&mut errors, own, &format!("spec.validations[{index}]"));
    }
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    audit_annotations(&mut errors, name, &annotations);
    errors
}

/// Validates a mutating policy.
pub(in crate::kinds) fn mutating_policy(spec: MutatingAdmissionPolicySpec) -> Vec<Invalid> {
    let shared = ValidatingAdmissionPolicySpec {
        failure_policy: spec.failure_policy,
        match_conditions: spec.match_conditions,
        match_constraints: spec.match_constraints,
        param_kind: spec.param_kind,
        variables: spec.variables,
        ..ValidatingAdmissionPolicySpec::default()
    };
    let mut errors = common(&shared, true);
    let mutations = spec.mutations.unwrap_or_default();
    if mutations.is_empty() {
        let detail = "mutations must contain at least one item";
        errors.push(Invalid::required("spec.mutations", detail));
    }
    for (index, own) in mutations.iter().enumerate() {
        mutation(&mut errors, own, &format!("spec.mutations[{index}]"));
    }
    one_of(
        &mut errors,
        "spec.reinvocationPolicy",
        spec.reinvocation_policy.as_deref(),
        &REINVOCATION_POLICIES,
    );
    errors
}

fn mutation(errors: &mut Vec<Invalid>, own: &Mutation, path: &str) {
    one_of(
        errors,
        &format!("{path}.patchType"),
        Some(own.patch_type.as_str()),
        &PATCH_TYPES,
    );
    let configuration = own.apply_configuration.as_ref().map(|own| own.expression.as_deref());
    let operations = own.json_patch.as_ref().map(|own| own.expression.as_deref());
    let (wanted, given, unwanted, other) = match own.patch_type.as_str() {
        "JSONPatch" => ("jsonPatch", operations, "applyConfiguration", configuration),
        "ApplyConfiguration" => ("applyConfiguration", configuration, "jsonPatch", operations),
        _ => return,
    };
    let kind = &own.patch_type;
    match given {
        None => errors.push(Invalid::required(
            format!("{path}.{wanted}"),
            format!("must be specified when patchType is {kind}"),
        )),
        Some(expression) if expression.unwrap_or_default().trim().is_empty() => {
            errors.push(Invalid::required(format!("{path}.{wanted}.expression"), ""));
        }
        Some(_) => {}
    }
    if other.is_some() {
        let detail = format!("must not be specified when patchType is {kind}");
        let shown = format!("{{{unwanted}}}");
        errors.push(Invalid::value(format!("{path}.{unwanted}"), shown.as_str(), detail));
    }
}

/// Validates the fields that both types of policy have.
fn common(spec: &ValidatingAdmissionPolicySpec, mutates: bool) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let failure_policy = spec.failure_policy.as_deref();
    one_of(&mut errors, "spec.failurePolicy", failure_policy, &["Fail", "Ignore"]);
    if let Some(kind) = &spec.param_kind {
        param_kind(&mut errors, kind);
    }
    if let Some(constraints) = &spec.match_constraints {
        resources(&mut errors, constraints, "spec.matchConstraints", mutates);
        if constraints.resource_rules.as_ref().is_none_or(Vec::is_empty) {
            errors.push(Invalid::required("spec.matchConstraints.resourceRules", ""));
        }
    } else {
        errors.push(Invalid::required("spec.matchConstraints", ""));
    }
    let given = spec.match_conditions.as_deref().unwrap_or_default();
    conditions(&mut errors, given, "spec.matchConditions");
    for (index, own) in spec.variables.iter().flatten().enumerate() {
        variable(&mut errors, own, &format!("spec.variables[{index}]"));
    }
    errors
}

fn param_kind(errors: &mut Vec<Invalid>, own: &ParamKind) {
    let (version, kind) = (
        own.api_version.as_deref().unwrap_or_default(),
        own.kind.as_deref().unwrap_or_default(),
    );
    let field = "spec.paramKind.apiVersion";
    let parts: Vec<&str> = version.split('/').collect();
    match parts.as_slice() {
        [""] => errors.push(Invalid::required(field, "")),
        [number] => group_version(errors, version, "", number),
        ["", ""] => group_version(errors, version, "", ""),
        [group, number] => group_version(errors, version, group, number),
        _ => {
            let detail = format!("unexpected GroupVersion string: {version}");
            errors.push(Invalid::value(field, version, detail));
        }
    }
    let wrong = names::dns1035_label(&kind.to_lowercase());
    if kind.is_empty() {
        errors.push(Invalid::required("spec.paramKind.kind", ""));
    } else if !wrong.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.push(Invalid::value("spec.paramKind.kind", kind, detail));
    }
}

fn group_version(errors: &mut Vec<Invalid>, whole: &str, group: &str, version: &str) {
    let field = "spec.paramKind.apiVersion";
    let wrong = names::dns1123_subdomain(group);
    if !group.is_empty() && !wrong.is_empty() {
        errors.push(Invalid::value(field, group, wrong.join(",")));
    }
    let wrong = names::dns1035_label(version);
    if version.is_empty() {
        errors.push(Invalid::value(field, whole, "version must be specified"));
    } else if !wrong.is_empty() {
        errors.push(Invalid::value(field, version, wrong.join(",")));
    }
}

fn resources(errors: &mut Vec<Invalid>, own: &MatchResources, path: &str, mutates: bool) {
    one_of(
        errors,
        &format!("{path}.matchPolicy"),
        own.match_policy.as_deref(),
        &["Equivalent", "Exact"],
    );
    for (field, selector) in [
        ("namespaceSelector", &own.namespace_selector),
        ("objectSelector", &own.object_selector),
    ] {
        if let Some(selector) = selector {
            label_selector(errors, selector, &format!("{path}.{field}"));
        }
    }
    for (field, rules) in [
        ("resourceRules", &own.resource_rules),
        ("excludeResourceRules", &own.exclude_resource_rules),
    ] {
        for (index, own) in rules.iter().flatten().enumerate() {
            named_rule(errors, own, &format!("{path}.{field}[{index}]"));
        }
    }
    if mutates {
        // A deletion has no object to mutate.
        let operations = own.resource_rules.iter().flatten();
        let operations = operations.flat_map(|rule| rule.operations.iter().flatten());
        for operation in operations.filter(|operation| !MUTABLE.contains(&operation.as_str())) {
            let field = format!("{path}.resourceRules.operations");
            errors.push(Invalid::not_supported(field, operation, &MUTABLE));
        }
    }
}

fn named_rule(errors: &mut Vec<Invalid>, own: &NamedRuleWithOperations, path: &str) {
    let mut known = BTreeSet::new();
    for (index, name) in own.resource_names.iter().flatten().enumerate() {
        let field = format!("{path}.resourceNames[{index}]");
        each(errors, &field, name, names::path_segment(name, false));
        if !known.insert(name) {
            errors.push(Invalid::duplicate(field, name));
        }
    }
    let own = own.clone();
    let plain = RuleWithOperations {
        api_groups: own.api_groups,
        api_versions: own.api_versions,
        operations: own.operations,
        resources: own.resources,
        scope: own.scope,
    };
    rule(errors, &plain, path);
}

fn variable(errors: &mut Vec<Invalid>, own: &Variable, path: &str) {
    let name = own.name.as_str();
    let mut characters = name.chars();
    let is_identifier = characters.next().is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && characters.all(|c| c == '_' || c.is_ascii_alphanumeric())
        && !names::is_reserved(name)
        && !matches!(name, "true" | "false" | "null" | "in");
    if name.trim().is_empty() {
        errors.push(Invalid::required(format!("{path}.name"), "name is not specified"));
    } else if !is_identifier {
        errors.push(Invalid::value(
            format!("{path}.name"),
            name,
            "must be a valid CEL identifier",
        ));
    }
    if own.expression.trim().is_empty() {
        let detail = "expression is not specified";
        errors.push(Invalid::required(format!("{path}.expression"), detail));
    }
}

fn validation(errors: &mut Vec<Invalid>, own: &Validation, path: &str) {
    const EMPTY: &str = "must be non-empty if specified";
    if own.expression.trim().is_empty() {
        let detail = "expression is not specified";
        errors.push(Invalid::required(format!("{path}.expression"), detail));
    }
    let is_blank = |text: &str| !text.is_empty() && text.trim().is_empty();
    let expression = own.message_expression.as_deref().unwrap_or_default();
    if is_blank(expression) {
        errors.push(Invalid::value(format!("{path}.messageExpression"), expression, EMPTY));
    }
    let message = own.message.as_deref().unwrap_or_default();
    if is_blank(message) {
        errors.push(Invalid::value(format!("{path}.message"), message, EMPTY));
    } else if message.trim().contains(['\n', '\r']) {
        let detail = "must not contain line breaks";
        errors.push(Invalid::value(format!("{path}.message"), message, detail));
    }
    if let Some(reason) = own.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
        errors.push(Invalid::not_supported(format!("{path}.reason"), reason, &REASONS));
    }
}

fn audit_annotations(errors: &mut Vec<Invalid>, policy: &str, annotations: &[AuditAnnotation]) {
    if annotations.len() > MOST_ANNOTATIONS {
        let shown = serde_json::to_string(annotations).unwrap_or_default();
        let detail = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        errors.push(Invalid::rendered("spec.auditAnnotations", shown, detail));
    }
    let mut known = BTreeSet::new();
    for (index, own) in annotations.iter().enumerate() {
        let path = format!("spec.auditAnnotations[{index}]");
        let field = format!("{path}.key");
        if policy.is_empty() {
            let detail = "requires metadata.name be non-empty";
            errors.push(Invalid::value(field.as_str(), &own.key, detail));
        } else {
            let whole = format!("{policy}/{}", own.key);
            each(errors, &field, &whole, names::qualified_name(&whole));
        }
        let expression = own.value_expression.trim();
        if expression.is_empty() {
            let detail = "valueExpression is not specified";
            errors.push(Invalid::required(format!("{path}.valueExpression"), detail));
        } else if expression.len() > LONGEST_VALUE_EXPRESSION {
            let detail = format!("must not exceed {LONGEST_VALUE_EXPRESSION} bytes in length");
            errors.push(Invalid::required(format!("{path}.valueExpression"), detail));
        }
        if !known.insert(&own.key) {
            errors.push(Invalid::duplicate(field, &own.key));
        }
    }
}

/// Validates a binding.
pub(super) fn binding(spec: &ValidatingAdmissionPolicyBindingSpec) -> Vec<Invalid> {
    let (reference, own) = (spec.param_ref.as_ref(), spec.match_resources.as_ref());
    let mut errors = bound(&spec.policy_name, reference, own, false);
    actions(&mut errors, &spec.validation_actions);
    errors
}

/// Validates a mutating binding.
pub(in crate::kinds) fn mutating_binding(spec: &MutatingAdmissionPolicyBindingSpec) -> Vec<Invalid> {
    let policy = spec.policy_name.as_deref().unwrap_or_default();
    bound(policy, spec.param_ref.as_ref(), spec.match_resources.as_ref(), true)
}

/// Validates the fields that both types of binding have.
fn bound(policy: &str, reference: Option<&ParamRef>, own: Option<&MatchResources>, mutates: bool) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let field = "spec.policyName";
    if policy.is_empty() {
        errors.push(Invalid::required(field, ""));
    } else {
        each(&mut errors, field, policy, names::dns1123_subdomain(policy));
    }
    if let Some(reference) = reference {
        param_ref(&mut errors, reference);
    }
    if let Some(own) = own {
        resources(&mut errors, own, "spec.matchResources", mutates);
    }
    errors
}

fn param_ref(errors: &mut Vec<Invalid>, own: &ParamRef) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let name = own.name.as_deref().filter(|name| !name.is_empty());
    if let Some(name) = name {
        each(errors, "spec.paramRef.name", name, names::path_segment(name, false));
        if own.selector.is_some() {
            errors.push(Invalid::forbidden("spec.paramRef.name", EXCLUSIVE));
        }
    }
    if let Some(selector) = &own.selector {
        label_selector(errors, selector, "spec.paramRef.selector");
        if name.is_some() {
            errors.push(Invalid::forbidden("spec.paramRef.selector", EXCLUSIVE));
        }
    } else if name.is_none() {
        let detail = "one of name or selector must be specified";
        errors.push(Invalid::required("spec.paramRef", detail));
    }
    let field = "spec.paramRef.parameterNotFoundAction";
    match own.parameter_not_found_action.as_deref() {
        None | Some("") => errors.push(Invalid::required(field, "")),
        action => one_of(errors, field, action, &["Deny", "Allow"]),
    }
}

fn actions(errors: &mut Vec<Invalid>, actions: &[String]) {
    let field = "spec.validationActions";
    let mut known = BTreeSet::new();
    for (index, action) in actions.iter().enumerate() {
        let place = format!("{field}[{index}]");
        if !ACTIONS.contains(&action.as_str()) {
            errors.push(Invalid::not_supported(place.as_str(), action, &ACTIONS));
        }
        if !known.insert(action.as_str()) {
            errors.push(Invalid::duplicate(place, action));
        }
    }
    if known.contains("Deny") && known.contains("Warn") {
        let shown = serde_json::to_string(actions).unwrap_or_default();
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        errors.push(Invalid::rendered(field, shown, detail));
    }
    if known.is_empty() {
        errors.push(Invalid::required(field, "at least one validation action is required"));
    }
}

/// Validates a status.
pub(super) fn status(policy: &ValidatingAdmissionPolicy) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let checking = policy.status.as_ref().and_then(|status| status.type_checking.as_ref());
    let warnings = checking.and_then(|checking| checking.expression_warnings.as_deref());
    for (index, warning) in warnings.unwrap_or_default().iter().enumerate() {
        let path = format!("status.typeChecking.expressionWarnings[{index}]");
        if warning.warning.is_empty() {
            errors.push(Invalid::required(format!("{path}.warning"), ""));
        }
        if warning.field_ref.trim().is_empty() {
            errors.push(Invalid::required(format!("{path}.fieldRef"), ""));
        }
    }
    let own = policy.status.as_ref().and_then(|status| status.conditions.as_deref());
    status_conditions(&mut errors, own.unwrap_or_default(), "status.conditions");
    errors
}
