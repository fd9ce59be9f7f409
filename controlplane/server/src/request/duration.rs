//! Durations as Go writes them: `1h30m`, `1.5s`.

use std::time::Duration;

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration; a negative one is an error.
///
/// # Errors
/// Go's error message.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_u128;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|letter: char| letter == '.' || letter.is_ascii_digit());
        let (unit, after) = after.split_at_checked(end.unwrap_or(after.len())).ok_or_else(invalid)?;
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let scale = scale.ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
        let part = amount(whole, fraction, scale).ok_or_else(invalid)?;
        total = total.saturating_add(part);
        rest = after;
    }
    // Go counts nanoseconds in 64 bits with a sign.
    let most = u128::from(i64::MAX.unsigned_abs()) + u128::from(negative);
    if total > most {
        return Err(invalid());
    }
    let nanoseconds = if negative {
        0
    } else {
        u64::try_from(total).unwrap_or(u64::MAX)
    };
    Ok(Duration::from_nanos(nanoseconds))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Converts a number of a unit to nanoseconds; `None` on overflow.
fn amount(whole: &str, fraction: &str, scale: u128) -> Option<u128> {
    let number = |digits: &str| -> Option<u128> {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse().ok()
        }
    };
    // Digits beyond the eighteenth are less than a nanosecond of an hour.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let below = number(fraction)?.checked_mul(scale)? / 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    number(whole)?.checked_mul(scale)?.checked_add(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for text in [
            "0", "0s", "3m", "1h30m", "1.5s", ".5s", "+2ms", "-1s", "2562047h", "1.s",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
        assert_eq!(parse("1m1.5s"), Ok(Duration::from_millis(61_500)));
        assert_eq!(parse("-1m"), Ok(Duration::ZERO));
        for (text, error) in [
            ("invalid", "time: invalid duration \"invalid\""),
            ("10", "time: missing unit in duration \"10\""),
            ("3x", "time: unknown unit \"x\" in duration \"3x\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("2562048h", "time: invalid duration \"2562048h\""),
            (
                "99999999999999999999999999999999999999999999h",
                "time: invalid duration \"99999999999999999999999999999999999999999999h\"",
            ),
        ] {
            assert_eq!(parse(text), Err(error.to_owned()), "{text}");
        }
    }
}
