//! Clocks: the only module of this crate that reads the wall clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

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
    format!("{:.9}", Timestamp::try_from(time).unwrap_or_default())
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
