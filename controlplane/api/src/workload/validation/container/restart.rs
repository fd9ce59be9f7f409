//! Validation of a container's restart policy and restart rules.

use k8s_openapi::api::core::v1::Container;

use crate::value::invalid::Invalid;
use crate::workload::validation::{one_of, one_of_or_none, required};

const POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const ACTIONS: [&str; 2] = ["Restart", "RestartAllContainers"];
const RULES: usize = 20;
const CODES: usize = 255;

/// Validates restart policy and rules of a container.
pub(super) fn of_container(errors: &mut Vec<Invalid>, container: &Container, path: &str) {
    let policy = container.restart_policy.as_deref();
    one_of_or_none(errors, &format!("{path}.restartPolicy"), policy, &POLICIES);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let field = format!("{path}.restartPolicyRules");
    if !rules.is_empty() && policy.is_none() {
        let detail = "must specify restartPolicy when restartPolicyRules are used";
        errors.push(Invalid::required(format!("{path}.restartPolicy"), detail));
    }
    if rules.len() > RULES {
        errors.push(Invalid::too_many(field.as_str(), rules.len(), RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{field}[{index}]");
        one_of(errors, &format!("{field}.action"), Some(&rule.action), &ACTIONS);
        let Some(codes) = &rule.exit_codes else {
            errors.push(Invalid::required(format!("{field}.exitCodes"), "must be specified"));
            continue;
        };
        let field = format!("{field}.exitCodes");
        if required(errors, &format!("{field}.operator"), Some(&codes.operator)) {
            one_of(
                errors,
                &format!("{field}.operator"),
                Some(&codes.operator),
                &["In", "NotIn"],
            );
        }
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count == 0 {
            errors.push(Invalid::required(format!("{field}.values"), "must not be empty"));
        } else if count > CODES {
            errors.push(Invalid::too_many(format!("{field}.values"), count, CODES));
        }
    }
}
