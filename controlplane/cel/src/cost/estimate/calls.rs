//! Cost of calls by the sizes of their arguments (`k8s.io/apiserver/pkg/cel/library/cost.go`,
//! `cel-go/checker/cost.go`).

use super::{ONE, Range, UNKNOWN, ZERO};
use crate::cost::actual::{CHECK, LIST_COST, quarter, selector, tenth};
use crate::types::Type;

/// Cost of the longest pattern of a named format (`MaxNameFormatRegexSize` of
/// `k8s.io/apiserver/pkg/cel/limits.go`).
const FORMAT: u64 = quarter(128);
/// Cost of comparing two named formats (`MaxFormatSize` beside it).
const FORMATS: Range = Range { min: 1, max: tenth(64) };

/// Types, literals and sizes of a call's arguments, the receiver first.
pub(super) struct Given<'t> {
    pub(super) types: Vec<&'t Type>,
    pub(super) literals: Vec<Option<u64>>,
    pub(super) sizes: Vec<Range>,
    /// Size of the first argument's items.
    pub(super) elements: Range,
}

impl Given<'_> {
    fn size(&self, index: usize) -> Range {
        self.sizes.get(index).copied().unwrap_or(ONE)
    }

    fn text(&self, index: usize) -> bool {
        matches!(self.types.get(index), Some(Type::String | Type::Bytes | Type::Dyn))
    }

    fn text_items(&self) -> bool {
        matches!(self.types.first(), Some(Type::List(items)) if matches!(**items, Type::String | Type::Bytes))
    }

    fn literal(&self, index: usize) -> Option<u64> {
        self.literals.get(index).copied().flatten()
    }
}

/// Cost of creating a list of this size at a cost per item.
fn list_of(size: Range, factor: u64) -> (Range, Option<Range>) {
    (
        size.each(|size| size.saturating_mul(factor))
            .plus(Range::exactly(1 + LIST_COST)),
        Some(size),
    )
}

/// Cost of a call without its arguments, and the size of its result.
pub(super) fn of_function(function: &str, given: &Given<'_>) -> (Range, Option<Range>) {
    of_text(function, given).unwrap_or_else(|| of_other(function, given))
}

/// Cost of a call that traverses a string.
fn of_text(function: &str, given: &Given<'_>) -> Option<(Range, Option<Range>)> {
    let size = given.size(0);
    let second = given.size(1);
    let tenths = size.each(tenth);
    Some(match function {
        "url" | "jsonpatch.escapeKey" | "lowerAscii" | "upperAscii" | "substring" | "trim" => (tenths, Some(size)),
        "format" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => (tenths, None),
        "startsWith" | "endsWith" => (second.each(tenth), None),
        "strings.quote" => (tenths, Some(size.each(|size| size.saturating_mul(2).saturating_add(2)))),
        "bytes" if given.text(0) => (tenths, Some(size.each(|size| size.saturating_mul(4)))),
        "string" if given.text(0) => (tenths, Some(size)),
        "ip" if given.text(0) => (tenths, None),
        "ip.isCanonical" => (size.each(|size| tenth(size.saturating_mul(2))), None),
        "replace" => (
            size.each(|size| tenth(size.saturating_mul(2))),
            Some(replaced(size, second, given.size(2))),
        ),
        "split" => {
            let max = given.literal(2).unwrap_or(size.max);
            (
                size.each(|size| tenth(size.saturating_mul(2))),
                Some(Range { min: 0, max }),
            )
        }
        "join" => {
            let separators = size.each(|size| size.saturating_sub(1));
            let separator = if given.sizes.len() > 1 { second } else { ZERO };
            let total = size.times(given.elements).plus(separators.times(separator));
            (total.each(tenth), Some(total))
        }
        "find" | "findAll" => (
            size.plus(ONE).each(tenth).times(second.each(quarter)),
            Some(Range { min: 0, max: size.max }),
        ),
        "matches" => (size.plus(ONE).each(tenth).times(second.each(quarter)), None),
        "contains" => (tenths.times(second.each(tenth)), None),
        _ => return None,
    })
}

/// Cost of all other calls.
fn of_other(function: &str, given: &Given<'_>) -> (Range, Option<Range>) {
    let size = given.size(0);
    let second = given.size(1);
    match function {
        "check" => (Range::exactly(CHECK), None),
        "fieldSelector" | "labelSelector" => (second.each(selector), None),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            let each = if given.text_items() {
                ONE.plus(given.elements.each(tenth))
            } else {
                ONE
            };
            let text = matches!(given.types.first(), Some(Type::String));
            (if text { size.each(tenth) } else { size.times(each) }, None)
        }
        "containsIP" | "containsCIDR" => {
            let base = if function == "containsIP" {
                Range { min: 1, max: 4 }
            } else {
                Range { min: 3, max: 7 }
            };
            (
                if given.text(1) {
                    base.plus(second.each(tenth))
                } else {
                    base
                },
                None,
            )
        }
        "validate" => (second.each(tenth).times(Range::exactly(FORMAT)), None),
        "@in" if matches!(given.types.get(1), Some(Type::List(_))) => (second, None),
        "_<_" | "_<=_" | "_>_" | "_>=_" if given.text(0) && given.text(1) => (compared(size, second), None),
        "_==_" if matches!(given.types.as_slice(), [Type::Opaque(left), Type::Opaque(right)] if left == right) => {
            match given.types.first() {
                Some(Type::Opaque("kubernetes.NamedFormat")) => (FORMATS, None),
                Some(Type::Opaque("kubernetes.URL")) => {
                    let most = if second == UNKNOWN { 1 } else { second.max.max(1) };
                    (Range { min: 1, max: most }.each(tenth), None)
                }
                _ => (ONE, None),
            }
        }
        "_==_" | "_!=_" => (compared(size, second), None),
        "sets.contains" | "sets.intersects" => (size.times(second).plus(ONE), None),
        "sets.equivalent" => (size.times(second).times(Range::exactly(2)).plus(ONE), None),
        "slice" => {
            let end = given.literal(2).unwrap_or(size.max);
            list_of(Range::exactly(end.saturating_sub(given.literal(1).unwrap_or(0))), 1)
        }
        "lists.range" => list_of(Range::exactly(given.literal(0).unwrap_or(u64::MAX)), 1),
        "reverse" => list_of(size, 1),
        "flatten" => {
            let depth = if given.sizes.len() > 1 {
                given.literal(1).unwrap_or(u64::MAX)
            } else {
                1
            };
            list_of(size, depth)
        }
        "distinct" | "sort" => (list_of(size.times(size), 2).0, Some(size)),
        "@sortByAssociatedKeys" => (list_of(second.times(second), 2).0, Some(size)),
        _ => (ONE, None),
    }
}

fn compared(left: Range, right: Range) -> Range {
    let max = left.max.min(right.max);
    Range {
        min: u64::from(max > 0),
        max: if max == u64::MAX { u64::MAX } else { tenth(max) },
    }
}

/// Size of a string after a replacement.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let max = if old.min == 0 {
        text.max
            .saturating_add(1)
            .saturating_mul(new.max)
            .saturating_add(text.max)
    } else if new.max <= old.min {
        text.max
    } else {
        text.max.div_ceil(old.min).saturating_mul(new.max)
    };
    let min = if old.max == 0 {
        text.min
            .saturating_add(1)
            .saturating_mul(new.min)
            .saturating_add(text.min)
    } else if old.max <= new.min {
        text.min
    } else {
        text.min.div_ceil(old.max).saturating_mul(new.min)
    };
    Range { min, max }
}
