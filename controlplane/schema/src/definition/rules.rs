//! `x-kubernetes-validations`, apart from the expressions.

use serde_json::Value;

use super::{Check, field_path};
use crate::Invalid;
use crate::path::Path;
use crate::props::Props;
use crate::structural::Structural;

const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

pub(super) fn check(check: &mut Check, props: Props<'_>, at: &Path<'_>) {
    let all = at.child("x-kubernetes-validations");
    // Built once for all paths, and only if there is one.
    let mut own: Option<Option<Structural>> = None;
    for (index, rule) in props.many("x-kubernetes-validations").enumerate() {
        let at = all.index(index);
        texts(check, rule, &at);
        let reason = rule.optional_text("reason").filter(|reason| !REASONS.contains(reason));
        if let Some(reason) = reason {
            let at = at.child("reason").to_string();
            check.found.push(Invalid::not_supported(at, reason, &REASONS));
        }
        let path = rule.text("fieldPath");
        if path.is_empty() {
            continue;
        }
        let mut refuse = |detail| check.refuse(&at, "fieldPath", rule.get("fieldPath"), detail);
        if path.trim().is_empty() {
            refuse("must be non-empty if specified");
        }
        if has_line_breaks(path) {
            refuse("must not contain line breaks");
        }
        let own = own.get_or_insert_with(|| Structural::of_props(props).ok());
        if own
            .as_ref()
            .is_some_and(|own| field_path::find(own.root(), path, true).is_err())
        {
            refuse("must be a valid path");
        }
    }
}

fn has_line_breaks(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

fn texts(check: &mut Check, rule: Props<'_>, at: &Path<'_>) {
    let (text, message) = (rule.text("rule").trim(), rule.text("message").trim());
    let given: Option<&Value> = rule.get("message");
    if text.is_empty() {
        check.require(at, "rule", "rule is not specified");
    } else if !rule.text("message").is_empty() && message.is_empty() {
        check.refuse(at, "message", given, "must be non-empty if specified");
    } else if has_line_breaks(message) {
        check.refuse(at, "message", given, "must not contain line breaks");
    } else if has_line_breaks(text) && message.is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        check.require(at, "message", detail);
    }
    let expression = rule.text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        check.require(at, "messageExpression", detail);
    }
}
