//! Durations as Go reads and writes them: `1h30m`, `1.5s` (`time/format.go`, `time/time.go`).

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration, in nanoseconds.
///
/// # Errors
/// Go's error message.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_i128;
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
    i64::try_from(if negative { -total } else { total }).map_err(|_beyond| invalid())
}

/// Formats nanoseconds.
pub fn text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let total = nanoseconds.unsigned_abs();
    let fraction = |value: u64, digits: usize, unit: &str| {
        let power = 10_u64.pow(u32::try_from(digits).unwrap_or_default());
        let text = format!("{}.{:0digits$}", value / power, value % power);
        format!("{sign}{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match total {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{total}ns"),
        1_000..1_000_000 => fraction(total, 3, "µs"),
        1_000_000..1_000_000_000 => fraction(total, 6, "ms"),
        _ => {
            let minutes = total / 60_000_000_000;
            let seconds = fraction(total % 60_000_000_000, 9, "s");
            let seconds = seconds.trim_start_matches('-');
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Converts a number of a unit to nanoseconds; `None` on overflow.
fn amount(whole: &str, fraction: &str, scale: i128) -> Option<i128> {
    let number = |digits: &str| -> Option<i128> {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse().ok()
        }
    };
    // Digits beyond the eighteenth are less than a nanosecond of an hour.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let below = number(fraction)?.checked_mul(scale)? / 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
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
        assert_eq!(parse("1m1.5s"), Ok(61_500_000_000));
        assert_eq!(parse("-2562047h47m16.854775808s"), Ok(i64::MIN));
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("1.2.3s", "time: missing unit in duration \"1.2.3s\""),
            (
                "2562047h47m16.854775808s",
                "time: invalid duration \"2562047h47m16.854775808s\"",
            ),
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

    #[test]
    fn durations_are_written_as_go_writes_them() {
        let rows = [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (-90_000_000_000, "-1m30s"),
            (3_600_000_000_000, "1h0m0s"),
        ];
        for (nanoseconds, written) in rows {
            assert_eq!(text(nanoseconds), written);
            assert_eq!(parse(written), Ok(nanoseconds));
        }
    }
}
