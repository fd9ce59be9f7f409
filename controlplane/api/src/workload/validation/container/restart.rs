//! Validation of a container's restart policy and restart rules.

use k8s_openapi::api::core::v1::Container;

use crate::value::invalid::Invalid;
use crate::workload::validation::one_of_or_none;

const POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const ACTIONS: [&str; 2] = ["Restart", "RestartAllContainers"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const RULES: usize = 20;
const CODES: usize = 255;

/// Validates restart policy and rules of a container (`validateContainerRestartPolicy`).
pub(super) fn of_container(errors: &mut Vec<Invalid>, container: &Container, path: &str) {
    let policy = container.restart_policy.as_deref();
    one_of_or_none(errors, &format!("{path}.restartPolicy"), policy, &POLICIES);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let field = format!("{path}.restartPolicyRules");
    if !rules.is_empty() && policy.is_none() {
        let detail = "must specify restartPolicy when restart rules are used";
        errors.push(Invalid::required(format!("{path}.restartPolicy"), detail));
    }
    if rules.len() > RULES {
        errors.push(Invalid::too_many(field.as_str(), rules.len(), RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{field}[{index}]");
        one_of_or_none(errors, &format!("{field}.action"), Some(&rule.action), &ACTIONS);
        let Some(codes) = &rule.exit_codes else {
            errors.push(Invalid::required(format!("{field}.exitCodes"), "must be specified"));
            continue;
        };
        let field = format!("{field}.exitCodes");
        let operator = Some(codes.operator.as_str());
        one_of_or_none(errors, &format!("{field}.operator"), operator, &OPERATORS);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > CODES {
            errors.push(Invalid::too_many(format!("{field}.values"), count, CODES));
        }
    }
}
