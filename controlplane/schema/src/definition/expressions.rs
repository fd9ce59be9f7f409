//! Validation of CEL rules in definitions: they must compile, and their cost is limited
//! (`pkg/apis/apiextensions/validation/{validation,cel_validation}.go`).

use std::cmp::Reverse;

use expressions::schema::{Schema, escape};
use serde_json::{Value, json};

use crate::Invalid;
use crate::path::Path;
use crate::render;
use crate::rules::{Compiled, cardinality, declared, element, property};
use crate::structural::{Additional, Kind, ListType, Node, Rule};

/// Cost limit of a rule.
const RULE_LIMIT: u64 = 10_000_000;
/// Cost limit of all rules of a definition.
const TOTAL_LIMIT: u64 = 100_000_000;
/// Number of rules that are named if the total cost exceeds the limit.
const MOST_EXPENSIVE: usize = 4;

/// Validates the rules of a schema at `at`. Rules of nodes with other errors are skipped.
pub(super) fn check(root: &Node, at: &Path<'_>, faults: &[Invalid]) -> Vec<Invalid> {
    let mut check = Check {
        faults,
        found: Vec::new(),
        total: 0,
        expensive: Vec::new(),
    };
    let place = Place {
        at,
        is_root: true,
        most: Some(1),
        uncorrelatable: None,
    };
    check.node(root, None, &place);
    if check.total > TOTAL_LIMIT {
        for (path, _) in check.expensive {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            check.found.push(Invalid::forbidden(path, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let detail = exceeds(what, check.total, TOTAL_LIMIT);
        check.found.push(Invalid::forbidden(at.to_string(), detail));
    }
    check.found
}

struct Check<'f> {
    faults: &'f [Invalid],
    found: Vec<Invalid>,
    total: u64,
    /// The most expensive rules, in descending order.
    expensive: Vec<(String, u64)>,
}

/// Position of a schema in its definition.
struct Place<'p> {
    at: &'p Path<'p>,
    is_root: bool,
    /// Most values of the schema in one object, if the lists and maps above are bounded.
    most: Option<u64>,
    /// The list above whose items cannot be correlated with old ones.
    uncorrelatable: Option<&'p Path<'p>>,
}

impl<'p> Place<'p> {
    /// Position of a child schema of `node`.
    fn below<'q>(&self, node: &Node, at: &'q Path<'q>) -> Place<'q>
    where
        'p: 'q,
    {
        Place {
            at,
            is_root: false,
            most: self.most.and_then(|most| Some(most.saturating_mul(elements(node)?))),
            uncorrelatable: self.uncorrelatable,
        }
    }
}

impl Check<'_> {
    /// `known` is the CEL type of the node, if a rule above needed it.
    fn node(&mut self, node: &Node, known: Option<&Schema>, place: &Place<'_>) {
        let made;
        let known = if known.is_none() && !node.rules().is_empty() {
            made = declared(node, place.is_root || node.is_embedded());
            made.as_ref()
        } else {
            known
        };
        if let Some(Additional::Schema(values)) = node.additional() {
            let at = place.at.child("additionalProperties");
            self.node(values, known.and_then(element), &place.below(node, &at));
        }
        let properties = place.at.child("properties");
        for (name, member) in node.properties() {
            let known = known.filter(|_| escape(name).is_some());
            let at = properties.key(name);
            self.node(
                member,
                known.and_then(|known| property(known, name)),
                &place.below(node, &at),
            );
        }
        if let Some(items) = node.items() {
            let at = place.at.child("items");
            let mut below = place.below(node, &at);
            if node.list_type() != Some(ListType::Map) {
                below.uncorrelatable = below.uncorrelatable.or(Some(place.at));
            }
            self.node(items, known.and_then(element), &below);
        }
        if !node.rules().is_empty() && !self.is_faulty(place.at) {
            self.rules(node, known, place);
        }
    }

    /// True if the schema or one below has an error that is not about a rule.
    fn is_faulty(&self, at: &Path<'_>) -> bool {
        let at = at.to_string();
        let is_below = |field: &str| field.strip_prefix(&at).is_some_and(|rest| rest.starts_with(['.', '[']));
        self.faults.iter().any(|fault| is_below(&fault.field))
    }

    fn rules(&mut self, node: &Node, known: Option<&Schema>, place: &Place<'_>) {
        let all = place.at.child("x-kubernetes-validations");
        let Some(schema) = known else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to \
                          convert structural schema to CEL declarations";
            self.found.push(Invalid::internal(all.to_string(), detail));
            return;
        };
        for (index, rule) in node.rules().iter().enumerate() {
            let at = all.index(index);
            let compiled = Compiled::new(node, rule, schema);
            let times = place.most.unwrap_or_else(|| cardinality(schema));
            let cost = Compiled::cost(compiled.program.as_ref(), schema).saturating_mul(times);
            self.observe(at.child("rule"), "estimated rule cost", cost);
            if let Some(Err(error)) = &compiled.program {
                self.refuse(&at.child("rule"), rule, error);
            }
            if let Some(Err(error)) = &compiled.message {
                self.refuse(&at.child("messageExpression"), rule, error);
            } else if compiled.message.is_some() {
                let cost = Compiled::cost(compiled.message.as_ref(), schema);
                let what = "estimated messageExpression cost";
                self.observe(at.child("messageExpression"), what, cost);
            }
            if compiled.uses_old_self {
                if let Some(list) = place.uncorrelatable {
                    let detail =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                    let at = at.child("rule").to_string();
                    self.found.push(Invalid::value(at, &rule.rule, detail));
                }
            } else if let Some(given) = rule.optional_old_self {
                let at = at.child("optionalOldSelf").to_string();
                let detail = "may not be set if oldSelf is not used in rule";
                self.found.push(Invalid::value(at, given, detail));
            }
        }
    }

    fn refuse(&mut self, at: &Path<'_>, rule: &Rule, error: &str) {
        // In the order of the fields of upstream's type.
        let members = [
            ("Rule", json!(rule.rule)),
            ("Message", json!(rule.message)),
            ("MessageExpression", json!(rule.message_expression)),
            ("Reason", json!(rule.reason)),
            ("FieldPath", json!(rule.field_path)),
            ("OptionalOldSelf", json!(rule.optional_old_self)),
        ];
        let members = members.map(|(name, value): (_, Value)| format!("\"{name}\":{}", render::json(&value)));
        let shown = format!("{{{}}}", members.join(","));
        self.found.push(Invalid::rendered(at.to_string(), shown, error));
    }

    /// Records the cost of an expression.
    fn observe(&mut self, at: Path<'_>, what: &str, cost: u64) {
        if cost > RULE_LIMIT {
            let detail = exceeds(what, cost, RULE_LIMIT);
            self.found.push(Invalid::forbidden(at.to_string(), detail));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= TOTAL_LIMIT / 100 {
            self.expensive.push((at.to_string(), cost));
            self.expensive.sort_by_key(|(_, cost)| Reverse(*cost));
            self.expensive.truncate(MOST_EXPENSIVE);
        }
    }
}

/// Most fields or items of a value by its schema; `None` if unbounded.
fn elements(node: &Node) -> Option<u64> {
    let bound = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or(0));
    let values = node.values();
    match node.kind() {
        Some(Kind::Object) if node.additional().is_some() => bound(values.and_then(|values| values.max_properties)),
        Some(Kind::Array) => bound(values.and_then(|values| values.max_items)),
        _ => Some(1),
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "the factor is told with one digit")]
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength \
         where arrays, maps, and strings are declared)"
    )
}
