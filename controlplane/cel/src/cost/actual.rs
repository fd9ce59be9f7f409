//! Actual cost of calls (`cel-go/interpreter/runtimecost.go`,
//! `k8s.io/apiserver/pkg/cel/library/cost.go`). A unit is about 50 ns.

use crate::value::Value;

/// Cost of creating a list (`cel-go/common/cost.go`).
pub(crate) const LIST_COST: u64 = 10;
/// Cost of creating a map.
pub(crate) const MAP_COST: u64 = 30;
/// Cost of creating an object.
pub(crate) const STRUCT_COST: u64 = 40;
/// Cost of one authorization check: an expression can afford two.
pub(crate) const CHECK: u64 = 350_000;

/// A tenth, rounded up: the cost of traversing a string once.
pub(crate) const fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

/// A quarter, rounded up: the cost of a regular expression by its length.
pub(crate) const fn quarter(size: u64) -> u64 {
    size.div_ceil(4)
}

/// Cost of parsing a label or field selector.
pub(crate) const fn selector(size: u64) -> u64 {
    LIST_COST
        .saturating_add(tenth(size))
        .saturating_add(size.div_ceil(2).saturating_mul(50))
}

fn textual(value: Option<&Value<'_>>) -> bool {
    matches!(value, Some(Value::String(_) | Value::Bytes(_)))
}

/// Cost by the arguments.
pub(crate) fn before(function: &str, args: &[Value<'_>]) -> u64 {
    let first = args.first();
    let size = |index: usize| args.get(index).map_or(1, Value::size);
    match function {
        "check" => CHECK,
        "fieldSelector" | "labelSelector" => selector(size(1)),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => first.map_or(0, traversal),
        "url"
        | "jsonpatch.escapeKey"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "startsWith"
        | "endsWith"
        | "format"
        | "strings.quote"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => tenth(size(0)),
        "replace" | "split" | "ip.isCanonical" => tenth(2 * size(0)),
        "join" | "slice" | "lists.range" | "reverse" => 0,
        "find" | "findAll" | "matches" => tenth(1 + size(0)).saturating_mul(quarter(size(1))),
        "contains" => tenth(size(0)).saturating_mul(tenth(size(1))),
        "bytes" | "string" | "ip" if textual(first) => tenth(size(0)),
        "containsIP" => tenth(2 * size(0)) + if textual(args.get(1)) { tenth(size(1)) } else { 0 },
        "containsCIDR" => {
            tenth(2 * size(0)) + tenth(size(0)) + 1 + if textual(args.get(1)) { tenth(size(1)) } else { 0 }
        }
        "validate" => tenth(1 + size(1)).saturating_mul(match first {
            Some(Value::Format(format)) => quarter(format.pattern),
            _ => 1,
        }),
        "_==_" | "_!=_" => match first {
            Some(Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_)) => tenth(size(0).min(size(1))),
            _ => 1,
        },
        "_<_" | "_<=_" | "_>_" | "_>=_" if textual(first) => tenth(size(0).min(size(1))),
        "_+_" if textual(first) => tenth(size(0).saturating_add(size(1))),
        "@in" if matches!(args.get(1), Some(Value::List(_))) => size(1),
        "sets.contains" | "sets.intersects" => 1 + size(0).saturating_mul(size(1)),
        "sets.equivalent" => 1 + size(0).saturating_mul(size(1)).saturating_mul(2),
        "flatten" => {
            let depth = if let Some(Value::Int(depth)) = args.get(1) {
                u64::try_from(*depth).unwrap_or(0)
            } else {
                1
            };
            depth.saturating_mul(size(0)).saturating_add(1 + LIST_COST)
        }
        "distinct" | "sort" => squared(first),
        "@sortByAssociatedKeys" => squared(args.get(1)),
        _ => 1,
    }
}

/// Cost of traversing nested values, which upstream does not count: parts that an expression nests
/// into each other may be visited any number of times.
pub(crate) fn nested(function: &str, args: &[Value<'_>]) -> u64 {
    let excess = |value: &Value<'_>| match value {
        Value::List(_) | Value::Map(_) => value.all().saturating_sub(value.size() + 1) / 10,
        _ => 0,
    };
    let each = args.iter().map(excess).fold(0, u64::saturating_add);
    match function {
        "_+_" if matches!(args.first(), Some(Value::List(list)) if list.merges()) => {
            let items = args.iter().map(Value::size).fold(0, u64::saturating_add);
            each.saturating_add(items / 10)
        }
        "distinct" | "sort" | "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            each.saturating_mul(args.first().map_or(1, Value::size))
        }
        _ => each,
    }
}

/// Cost by the result.
pub(crate) fn after(function: &str, result: &Value<'_>) -> u64 {
    match function {
        "join" => tenth(2 * result.size()),
        "slice" | "lists.range" | "reverse" => result.size().saturating_add(1 + LIST_COST),
        _ => 0,
    }
}

/// Cost of comparing all items of a list with each other.
fn squared(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else {
        return 1;
    };
    let size = u64::try_from(list.len()).unwrap_or(u64::MAX);
    let pairs = size.saturating_mul(size);
    let text = matches!(list.get(0), Some(Ok(Value::String(_) | Value::Bytes(_))));
    let more = if text { pairs / 10 } else { 0 };
    pairs
        .saturating_mul(2)
        .saturating_add(more)
        .saturating_add(1 + LIST_COST)
}

/// Cost of traversing a value completely.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => u64::try_from(text.len()).unwrap_or(u64::MAX) / 10,
        Value::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX) / 10,
        Value::List(list) => list
            .iter()
            .map(|item| item.as_ref().map_or(1, traversal))
            .fold(0, u64::saturating_add),
        Value::Map(map) => map
            .keys()
            .iter()
            .map(|key| {
                let value = map.get(key).map_or(1, |value| value.as_ref().map_or(1, traversal));
                traversal(&key.to_value()).saturating_add(value)
            })
            .fold(0, u64::saturating_add),
        _ => 1,
    }
}
