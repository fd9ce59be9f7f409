//! Clocks: the only module of this crate that reads the wall clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Current wall-clock time.
#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Monotonic time, for deadlines; counted from the first call in this process, and continued in its
/// forks.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock module; a supervisor has no tokio"
)]
pub(crate) fn monotonic() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Formats a time as `2026-01-31T23:59:59.123456789Z`, as CRI logs require.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z",
        since.subsec_nanos()
    )
}

/// Days since 1970-01-01 to a date (Howard Hinnant's `civil_from_days`, for dates after 1970).
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::rfc3339;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds, nanos| rfc3339(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_399, 1), "2000-02-28T23:59:59.000000001Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(1_795_262_437, 999_999_999), "2026-11-21T12:00:37.999999999Z");
    }
}
