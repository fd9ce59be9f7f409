//! Validation of priority levels, with upstream's messages (`pkg/apis/flowcontrol/validation`).

use k8s_openapi::api::flowcontrol::v1::{
    LimitResponse, LimitedPriorityLevelConfiguration, PriorityLevelConfigurationSpec, QueuingConfiguration,
};

use crate::value::invalid::Invalid;

const EXEMPT: &str = "exempt";
const QUEUES: i32 = 10_000_000;
/// Entropy bits of a flow's hash, with which shuffle sharding chooses queues.
const HASH_BITS: u32 = 60;

/// Validates the spec of the level of this name.
pub(super) fn validate(name: &str, spec: &PriorityLevelConfigurationSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let kind = spec.type_.as_str();
    if (name == EXEMPT) != (kind == "Exempt") {
        let detail = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(Invalid::value("spec.type", kind, detail));
    }
    match (kind, &spec.limited) {
        ("Exempt", Some(_)) => {
            let detail = "must be nil if the type is not Limited";
            errors.push(Invalid::forbidden("spec.limited", detail));
        }
        ("Limited", None) => {
            let detail = "must not be empty when type is Limited";
            errors.push(Invalid::required("spec.limited", detail));
        }
        ("Limited", Some(own)) => limited(&mut errors, own, "spec.limited"),
        ("Exempt", None) => {}
        (other, _) => errors.push(Invalid::not_supported("spec.type", other, &["Exempt", "Limited"])),
    }
    if kind == "Limited" && spec.exempt.is_some() {
        errors.push(Invalid::forbidden("spec.exempt", "must be nil if the type is Limited"));
    }
    errors
}

fn limited(errors: &mut Vec<Invalid>, limited: &LimitedPriorityLevelConfiguration, path: &str) {
    if let Some(shares) = limited.nominal_concurrency_shares.filter(|shares| *shares < 0) {
        let field = format!("{path}.nominalConcurrencyShares");
        errors.push(Invalid::value(field, shares, "must be a non-negative integer"));
    }
    let lent = limited.lendable_percent;
    if let Some(percent) = lent.filter(|percent| !(0..=100).contains(percent)) {
        let field = format!("{path}.lendablePercent");
        errors.push(Invalid::value(field, percent, "must be between 0 and 100, inclusive"));
    }
    if let Some(percent) = limited.borrowing_limit_percent.filter(|percent| *percent < 0) {
        let field = format!("{path}.borrowingLimitPercent");
        errors.push(Invalid::value(
            field,
            percent,
            "if specified, must be a non-negative integer",
        ));
    }
    let empty = LimitResponse::default();
    let response = limited.limit_response.as_ref().unwrap_or(&empty);
    let path = format!("{path}.limitResponse");
    let field = format!("{path}.queuing");
    match (response.type_.as_str(), &response.queuing) {
        ("Reject", Some(_)) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(Invalid::forbidden(field, detail));
        }
        ("Queue", None) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(Invalid::required(field, detail));
        }
        ("Queue", Some(own)) => queuing(errors, own, &field),
        ("Reject", None) => {}
        (other, _) => {
            let known = ["Queue", "Reject"];
            errors.push(Invalid::not_supported(format!("{path}.type"), other, &known));
        }
    }
}

fn queuing(errors: &mut Vec<Invalid>, queuing: &QueuingConfiguration, path: &str) {
    let number = |number: Option<i32>| number.unwrap_or(0);
    let (queues, hand) = (number(queuing.queues), number(queuing.hand_size));
    let length = number(queuing.queue_length_limit);
    if length <= 0 {
        let field = format!("{path}.queueLengthLimit");
        errors.push(Invalid::value(field, length, "must be positive"));
    }
    let field = format!("{path}.queues");
    if queues <= 0 {
        errors.push(Invalid::value(field, queues, "must be positive"));
    } else if queues > QUEUES {
        let detail = format!("must not be greater than {QUEUES}");
        errors.push(Invalid::value(field, queues, detail));
    }
    let field = format!("{path}.handSize");
    if hand <= 0 {
        errors.push(Invalid::value(field, hand, "must be positive"));
    } else if hand > queues {
        let detail = format!("should not be greater than queues ({queues})");
        errors.push(Invalid::value(field, hand, detail));
    } else if entropy(queues, hand) > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.push(Invalid::value(field, hand, detail));
    }
}

/// Entropy bits for dealing a hand of queues. Stops early at the limit.
fn entropy(queues: i32, hand: i32) -> u32 {
    let mut hands = 1_u128;
    for _ in 0..hand {
        hands = hands.saturating_mul(u128::try_from(queues).unwrap_or(1));
        if hands > 1 << 64 {
            break;
        }
    }
    128 - (hands - 1).leading_zeros()
}
