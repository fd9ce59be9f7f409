//! Go's parsing of times, with its error messages.

/// Element of a layout.
#[derive(Clone, Copy)]
enum Part {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Fraction,
    Zone,
    Letter(&'static str),
}

/// Layout of a time, like Go's `time` layouts.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    text: &'static str,
    /// True if a fraction of six digits is mandatory.
    fraction: bool,
}

const PARTS: [Part; 13] = [
    Part::Year,
    Part::Letter("-"),
    Part::Month,
    Part::Letter("-"),
    Part::Day,
    Part::Letter("T"),
    Part::Hour,
    Part::Letter(":"),
    Part::Minute,
    Part::Letter(":"),
    Part::Second,
    Part::Fraction,
    Part::Zone,
];

/// RFC 3339; a fraction of a second is accepted.
pub(super) const SECONDS: Layout = Layout {
    text: "2006-01-02T15:04:05Z07:00",
    fraction: false,
};

/// RFC 3339 with mandatory microseconds.
pub(super) const MICROSECONDS: Layout = Layout {
    text: "2006-01-02T15:04:05.000000Z07:00",
    fraction: true,
};

impl Part {
    fn text(self) -> &'static str {
        match self {
            Self::Year => "2006",
            Self::Month => "01",
            Self::Day => "02",
            Self::Hour => "15",
            Self::Minute => "04",
            Self::Second => "05",
            Self::Fraction => ".000000",
            Self::Zone => "Z07:00",
            Self::Letter(letter) => letter,
        }
    }
}

/// Mismatch between a text and an element.
enum Wrong {
    /// The element is missing.
    Bad,
    /// The value is out of range.
    Range(&'static str),
}

/// Checks a text against a layout.
pub(super) fn check(text: &str, layout: Layout) -> Result<(), String> {
    let mut rest = text;
    let mut date = (0, 0, 0);
    let is_part = |part: &&Part| layout.fraction || !matches!(part, Part::Fraction);
    for part in PARTS.iter().filter(is_part) {
        match read(*part, rest, &mut date) {
            Ok(after) => rest = after,
            Err(Wrong::Range(what)) => return Err(format!("parsing time {text:?}: {what} out of range")),
            Err(Wrong::Bad) => {
                return Err(format!(
                    "parsing time {text:?} as {:?}: cannot parse {rest:?} as {:?}",
                    layout.text,
                    part.text()
                ));
            }
        }
        if matches!(part, Part::Second) && !layout.fraction {
            rest = fraction(rest);
        }
    }
    if !rest.is_empty() {
        return Err(format!("parsing time {text:?}: extra text: {rest:?}"));
    }
    let (year, month, day) = date;
    if day < 1 || day > days(year, month) {
        return Err(format!("parsing time {text:?}: day out of range"));
    }
    Ok(())
}

fn read<'t>(part: Part, text: &'t str, date: &mut (u32, u32, u32)) -> Result<&'t str, Wrong> {
    match part {
        Part::Letter(letter) => text.strip_prefix(letter).ok_or(Wrong::Bad),
        Part::Year => {
            let (year, rest) = digits(text, 4)?;
            date.0 = year;
            Ok(rest)
        }
        Part::Month => {
            let (month, rest) = digits(text, 2)?;
            date.1 = month;
            within(month, 1..=12, "month", rest)
        }
        Part::Day => {
            let (day, rest) = digits(text, 2)?;
            date.2 = day;
            Ok(rest)
        }
        Part::Hour => {
            let (hour, rest) = digits(text, 2).or_else(|_| digits(text, 1))?;
            within(hour, 0..=23, "hour", rest)
        }
        Part::Minute => {
            let (minute, rest) = digits(text, 2)?;
            within(minute, 0..=59, "minute", rest)
        }
        Part::Second => {
            let (second, rest) = digits(text, 2)?;
            within(second, 0..=59, "second", rest)
        }
        Part::Fraction => {
            let rest = text.strip_prefix(['.', ',']).ok_or(Wrong::Bad)?;
            digits(rest, 6).map(|(_, rest)| rest)
        }
        Part::Zone => zone(text),
    }
}

fn zone(text: &str) -> Result<&str, Wrong> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Ok(rest);
    }
    let (sign, rest) = text.split_at_checked(1).ok_or(Wrong::Bad)?;
    let (hours, rest) = digits(rest, 2)?;
    let rest = rest.strip_prefix(':').ok_or(Wrong::Bad)?;
    let (minutes, rest) = digits(rest, 2)?;
    let rest = within(hours, 0..=24, "time zone offset hour", rest)?;
    let rest = within(minutes, 0..=60, "time zone offset minute", rest)?;
    if matches!(sign, "+" | "-") {
        Ok(rest)
    } else {
        Err(Wrong::Bad)
    }
}

fn within<'t>(
    number: u32,
    range: std::ops::RangeInclusive<u32>,
    what: &'static str,
    rest: &'t str,
) -> Result<&'t str, Wrong> {
    if range.contains(&number) {
        Ok(rest)
    } else {
        Err(Wrong::Range(what))
    }
}

fn digits(text: &str, count: usize) -> Result<(u32, &str), Wrong> {
    let (number, rest) = text.split_at_checked(count).ok_or(Wrong::Bad)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Wrong::Bad);
    }
    Ok((number.parse().or(Err(Wrong::Bad))?, rest))
}

/// Text that follows an optional fraction of a second.
fn fraction(text: &str) -> &str {
    match text.strip_prefix(['.', ',']) {
        Some(rest) if rest.starts_with(|first: char| first.is_ascii_digit()) => {
            rest.trim_start_matches(|digit: char| digit.is_ascii_digit())
        }
        Some(_) | None => text,
    }
}

fn days(year: u32, month: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
