//! Numeric limits, which upstream compares in the type of the value
//! (`pkg/validation/validate/{validator,values}.go`).

use super::Given;
use super::issue::{Issue, Outcome};
use crate::path::Path;
use crate::render;
use crate::structural::{Kind, Node, Values};

/// Largest number up to which all integers are exact.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// True if a number is an integer, or too close to one for JSON to distinguish.
pub(super) fn is_whole(number: f64) -> bool {
    if !number.is_finite() || number.abs() > MAX_EXACT {
        return false;
    }
    let whole = number.trunc();
    let (difference, sum) = ((number - whole).abs(), number.abs() + whole.abs());
    // Only zero is close to zero.
    difference <= 0.0 || (whole.abs() > 0.0 && difference / sum < 1e-9)
}

/// Rounds toward zero, as Go converts; saturates at the limits of the range.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the conversion is the point, and saturates"
)]
fn integer(number: f64) -> i64 {
    number as i64
}

#[expect(clippy::cast_precision_loss, reason = "bounds are floats upstream")]
fn float(integer: i64) -> f64 {
    integer as f64
}

/// Checks a number against a node's limits.
pub(super) fn check(node: &Node, given: Given, at: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let data = match given {
        Given::Integer(number) => float(number),
        Given::Number(number) => number,
        Given::Null | Given::Boolean | Given::String | Given::Array | Given::Object => return outcome,
    };
    let range = Range::of(node);
    let text = if let Given::Integer(number) = given {
        number.to_string()
    } else {
        render::plain_float(data)
    };
    range.check(&text, data, "Checked", at, &mut outcome);
    if let Some(values) = node.values() {
        let number = Number {
            given,
            data,
            values,
            range,
            at,
        };
        number.multiple_of(&mut outcome);
        number.minimum(&mut outcome);
        number.maximum(&mut outcome);
    }
    outcome.and_matched(1)
}

/// Range of a numeric type and format.
#[derive(Clone, Copy)]
struct Range {
    is_integer: bool,
    format: &'static str,
}

impl Range {
    fn of(node: &Node) -> Self {
        let is_integer = node.kind() == Some(Kind::Integer) && !node.is_int_or_string();
        let is_number = node.kind() == Some(Kind::Number) && !node.is_int_or_string();
        let formats: &[&'static str] = match (is_integer, is_number) {
            (true, _) => &["int32", "int64"],
            (_, true) => &["float", "double"],
            _ => &[],
        };
        let format = formats.iter().copied().find(|format| *format == node.format());
        Self {
            is_integer,
            format: format.unwrap_or_default(),
        }
    }

    fn check(self, text: &str, value: f64, prefix: &str, at: &Path<'_>, outcome: &mut Outcome) -> bool {
        let fits = match (self.is_integer, self.format) {
            (true, "int32") => text.parse::<i32>().is_ok(),
            (true, _) => text.parse::<i64>().is_ok(),
            (false, "float") => value.abs() <= f64::from(f32::MAX),
            (false, _) => true,
        };
        if !fits {
            let kind = if self.is_integer { "integer" } else { "number" };
            let format = if self.format.is_empty() {
                "(default format)".to_owned()
            } else {
                format!("with format {}", self.format)
            };
            outcome.add(Issue::plain(format!(
                "{prefix} value must be of type {kind} {format} in {at}"
            )));
        }
        fits
    }
}

struct Number<'a> {
    given: Given,
    data: f64,
    values: &'a Values,
    range: Range,
    at: &'a Path<'a>,
}

impl Number<'_> {
    fn bound(&self, bound: f64, prefix: &str, outcome: &mut Outcome) -> Option<i64> {
        let text = render::plain_float(bound);
        let fits = self.range.check(&text, bound, prefix, self.at, outcome);
        if let Given::Integer(number) = self.given {
            return fits.then_some(number);
        }
        None
    }

    fn shown(&self, is_native: bool) -> String {
        if let (Given::Integer(number), true) = (self.given, is_native) {
            return number.to_string();
        }
        render::float(self.data)
    }

    fn issue(&self, is_native: bool, words: &str, bound: &str) -> Issue {
        let text = format!("{} in body should be {words} {bound}", self.at);
        Issue::invalid_value(self.at, self.shown(is_native), text)
    }

    fn multiple_of(&self, outcome: &mut Outcome) {
        let Some(factor) = self.values.multiple_of else { return };
        let native = self.bound(factor, "MultipleOf", outcome);
        let (shown, is_positive) = match native {
            Some(_) => (integer(factor).to_string(), integer(factor) > 0),
            None => (render::float(factor), factor > 0.0),
        };
        if !is_positive {
            let text = format!("factor MultipleOf declared for {} must be positive: {shown}", self.at);
            outcome.add(Issue::invalid_value(self.at, shown, text));
            return;
        }
        let is_multiple = match native {
            Some(number) => number.checked_rem(integer(factor)) == Some(0),
            None if factor < 1.0 => is_whole(1.0 / factor * self.data),
            None => is_whole(self.data / factor),
        };
        if !is_multiple {
            outcome.add(self.issue(native.is_some(), "a multiple of", &shown));
        }
    }

    fn minimum(&self, outcome: &mut Outcome) {
        let Some(least) = self.values.minimum else { return };
        let is_exclusive = self.values.exclusive_minimum;
        let native = self.bound(least, "Minimum boundary", outcome);
        let (is_broken, shown) = match native {
            Some(number) => {
                let least = integer(least);
                (number < least || (is_exclusive && number == least), least.to_string())
            }
            None => (
                !(self.data > least || (!is_exclusive && self.data >= least)),
                render::float(least),
            ),
        };
        if is_broken {
            let words = if is_exclusive {
                "greater than"
            } else {
                "greater than or equal to"
            };
            outcome.add(self.issue(native.is_some(), words, &shown));
        }
    }

    fn maximum(&self, outcome: &mut Outcome) {
        let Some(most) = self.values.maximum else { return };
        let is_exclusive = self.values.exclusive_maximum;
        let native = self.bound(most, "Maximum boundary", outcome);
        let (is_broken, shown) = match native {
            Some(number) => {
                let most = integer(most);
                (number > most || (is_exclusive && number == most), most.to_string())
            }
            None => (
                !(self.data < most || (!is_exclusive && self.data <= most)),
                render::float(most),
            ),
        };
        if is_broken {
            let words = if is_exclusive {
                "less than"
            } else {
                "less than or equal to"
            };
            outcome.add(self.issue(native.is_some(), words, &shown));
        }
    }
}
