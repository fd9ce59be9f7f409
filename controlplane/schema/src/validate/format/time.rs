//! Dates and durations (kube-openapi's `pkg/validation/strfmt/{date,time,duration}.go`).

use super::Pattern;

static TIME: Pattern = Pattern::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
static GO_DURATION: Pattern = Pattern::new("^[-+]?(0|(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$");

/// `2006-01-02`
pub(super) fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let number = |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    let (Some(year), Some(month), Some(day)) = (number(0..4), number(5..7), number(8..10)) else {
        return false;
    };
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 0,
    };
    is_shaped && (1..=days).contains(&day)
}

/// `2006-01-02T15:04:05.000Z`
pub(super) fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let below = |range: std::ops::Range<usize>, most: &str| time.get(range).is_some_and(|part| part <= most);
    is_date(date) && TIME.matches(time) && below(0..2, "23") && below(3..5, "59") && below(6..8, "59")
}

/// Accepts Go's durations, and durations with Scala's units.
pub(super) fn is_duration(text: &str) -> bool {
    GO_DURATION.matches(text) || is_scala_duration(text)
}

/// True if some number in the text is followed by a unit.
fn is_scala_duration(text: &str) -> bool {
    const EXACT: [&str; 12] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk", "μs"];
    const PREFIXES: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let mut rest = text;
    let mut is_any = false;
    while let Some(at) = rest.find(|character: char| character.is_ascii_digit()) {
        let digits = rest.get(at..).unwrap_or_default();
        let behind = digits.trim_start_matches(|character: char| character.is_ascii_digit());
        let count = digits.strip_suffix(behind).unwrap_or_default();
        let word = behind.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
        rest = word.trim_start_matches(|character: char| character.is_ascii_alphabetic() || character == 'µ');
        let unit = word.strip_suffix(rest).unwrap_or_default().to_lowercase();
        if unit.is_empty() {
            continue;
        }
        // A number beyond Go's range ends the search.
        if count.parse::<i64>().is_err() {
            return false;
        }
        is_any |= EXACT.contains(&unit.as_str()) || PREFIXES.iter().any(|prefix| unit.starts_with(prefix));
    }
    is_any
}
