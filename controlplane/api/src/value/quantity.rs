//! Quantities such as `500m`, `1.5Gi` and `1e3`, with upstream's arithmetic and canonical text
//! (`k8s.io/apimachinery/pkg/api/resource`).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use thiserror::Error;

/// Format of a quantity.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Format {
    /// Powers of ten as `1e3`.
    DecimalExponent,
    /// Powers of 1024 as `1Ki`.
    BinarySuffix,
    /// Powers of 1000 as `1k`.
    #[default]
    DecimalSuffix,
}

/// Error of parsing a quantity.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum QuantityError {
    /// The text does not match the format.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Form,
    /// The number cannot be parsed.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The suffix after the digits is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Amount, exact to 10⁻⁹, with an absolute value of at most 2⁶³-1; larger ones are capped, finer
/// ones rounded away from zero. Equality and order consider only the amount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

const NANOS: i128 = 1_000_000_000;
const LARGEST: i128 = i64::MAX as i128 * NANOS;

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSuffix,
    };

    /// Creates an amount of whole units.
    pub fn units(units: i64) -> Self {
        Self {
            nanos: i128::from(units) * NANOS,
            format: Format::DecimalSuffix,
        }
    }

    /// Creates an amount of thousandths.
    pub fn from_milli(milli: i64) -> Self {
        Self {
            nanos: i128::from(milli) * 1_000_000,
            format: Format::DecimalSuffix,
        }
    }

    /// Creates an amount of bytes, written with binary suffixes.
    pub fn bytes(bytes: i64) -> Self {
        Self {
            nanos: i128::from(bytes) * NANOS,
            format: Format::BinarySuffix,
        }
    }

    /// Parses a text. Errors have upstream's messages.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        text.parse()
    }

    /// Converts the API's type; a malformed text counts as zero. Validation rejects such text, so
    /// stored objects have none.
    pub fn of(text: &Text) -> Self {
        text.0.parse().unwrap_or(Self::ZERO)
    }

    /// Converts to the API's type, in canonical form.
    pub fn to_text(self) -> Text {
        Text(self.to_string())
    }

    /// Whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        self.scaled(NANOS)
    }

    /// Thousandths, rounded away from zero; capped to the range of an i64.
    pub fn milli(self) -> i64 {
        self.scaled(1_000_000)
    }

    /// Amount rounded away from zero to whole thousandths, in the same format.
    #[must_use]
    pub fn to_milli(self) -> Self {
        Self {
            nanos: divide_away(self.nanos, 1_000_000) * 1_000_000,
            format: self.format,
        }
    }

    fn scaled(self, unit: i128) -> i64 {
        let rounded = divide_away(self.nanos, unit);
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// True if the amount is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// True if the amount is negative.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// True if the amount is an integer.
    pub const fn is_whole(self) -> bool {
        self.nanos % NANOS == 0
    }

    /// Sum, in this amount's format unless it is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self {
            nanos: (self.nanos + other.nanos).clamp(-LARGEST, LARGEST),
            format,
        }
    }

    /// Ratio of this amount to another; for comparisons and for people.
    #[expect(clippy::cast_precision_loss, reason = "a ratio is not exact")]
    pub fn per(self, other: Self) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }

    /// Difference, in this amount's format.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            nanos: (self.nanos - other.nanos).clamp(-LARGEST, LARGEST),
            format: self.format,
        }
    }
}

/// Rewrites the API's type in canonical form; a malformed text stays, for validation to reject.
pub fn canonicalize(text: &mut Text) {
    if let Ok(quantity) = Quantity::parse(&text.0) {
        let canonical = quantity.to_string();
        if canonical != text.0 {
            text.0 = canonical;
        }
    }
}

fn divide_away(number: i128, by: i128) -> i128 {
    let exact = number % by == 0;
    number / by + if exact { 0 } else { number.signum() }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Factor of a suffix: 10 to the power of `ten`, 2 to the power of `two`.
struct Multiplier {
    ten: i32,
    two: u32,
    format: Format,
}

fn multiplier(suffix: &str) -> Option<Multiplier> {
    let decimal = |ten| {
        Some(Multiplier {
            ten,
            two: 0,
            format: Format::DecimalSuffix,
        })
    };
    let binary = |two| {
        Some(Multiplier {
            ten: 0,
            two,
            format: Format::BinarySuffix,
        })
    };
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let ten: i64 = exponent.parse().ok()?;
            let ten = i32::try_from(ten.clamp(-1000, 1000)).ok()?;
            Some(Multiplier {
                ten,
                two: 0,
                format: Format::DecimalExponent,
            })
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at_checked(end).ok_or(QuantityError::Form)?;
        if number.is_empty() || suffix.len() > 20 || !suffix.bytes().all(|b| b"eEinumkKMGTP+-0123456789".contains(&b)) {
            return Err(QuantityError::Form);
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(QuantityError::Number);
        }
        let multiplier = multiplier(suffix).ok_or(QuantityError::Suffix)?;
        let nanos = amount(whole, fraction, &multiplier).unwrap_or(LARGEST).min(LARGEST);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format: multiplier.format,
        })
    }
}

/// Amount in 10⁻⁹, or none if it overflows.
fn amount(whole: &str, fraction: &str, multiplier: &Multiplier) -> Option<i128> {
    let fraction = fraction.trim_end_matches('0');
    let (digits, cut) = fraction.split_at(fraction.len().min(18));
    let whole = whole.trim_start_matches('0');
    let whole: i128 = match whole.len() {
        0 => 0,
        1..=38 => whole.parse().ok()?,
        _ => return None,
    };
    let length = i32::try_from(digits.len()).ok()?;
    let part: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let power = 1_i128.checked_shl(multiplier.two)?;
    let whole = scale(whole.checked_mul(power)?, multiplier.ten + 9)?;
    let part = scale(part.checked_mul(power)?, multiplier.ten + 9 - length)?;
    whole.checked_add(part)?.checked_add(i128::from(!cut.is_empty()))
}

/// Multiplies by a power of ten; fractions are rounded up.
fn scale(number: i128, ten: i32) -> Option<i128> {
    if number == 0 {
        return Some(0);
    }
    match u32::try_from(ten) {
        Ok(power) => number.checked_mul(10_i128.checked_pow(power)?),
        Err(_) => Some(
            10_i128
                .checked_pow(ten.unsigned_abs())
                .map_or(1, |divisor| divide_away(number, divisor)),
        ),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let small = self.nanos.abs() < 1024 * NANOS;
        if self.format == Format::BinarySuffix && !small && self.is_whole() {
            let mut number = self.nanos / NANOS;
            let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
            let mut suffix = suffixes.next().unwrap_or_default();
            while number % 1024 == 0 {
                let Some(next) = suffixes.next() else { break };
                suffix = next;
                number /= 1024;
            }
            return write!(formatter, "{number}{suffix}");
        }
        if self.nanos == 0 {
            return formatter.write_str("0");
        }
        let mut number = self.nanos;
        let mut exponent = -9;
        while number % 1000 == 0 && exponent < 18 {
            number /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 {
                write!(formatter, "{number}")
            } else {
                write!(formatter, "{number}e{exponent}")
            };
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            _ => "E",
        };
        write!(formatter, "{number}{suffix}")
    }
}
