//! Validation of label selectors in objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;

use super::{each, metadata};
use crate::value::invalid::Invalid;
use crate::value::names;

/// Validates a selector at a path.
pub(crate) fn label_selector(errors: &mut Vec<Invalid>, selector: &Structure, path: &str) {
    errors.extend(metadata::labels(
        selector.match_labels.as_ref(),
        &format!("{path}.matchLabels"),
    ));
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let given = expression.values.as_deref().unwrap_or_default();
        let values = format!("{path}.values");
        match expression.operator.as_str() {
            "In" | "NotIn" if given.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(Invalid::required(values.as_str(), detail));
            }
            "Exists" | "DoesNotExist" if !given.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(Invalid::forbidden(values.as_str(), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let detail = "not a valid selector operator";
                errors.push(Invalid::value(format!("{path}.operator"), other, detail));
            }
        }
        let key = &expression.key;
        each(errors, &format!("{path}.key"), key, names::qualified_name(key));
        for (index, value) in given.iter().enumerate() {
            each(errors, &format!("{values}[{index}]"), value, names::label_value(value));
        }
    }
}
