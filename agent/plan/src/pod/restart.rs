//! Restart back-off: the first restart at once, then 10 s, doubled up to 300 s, reset after 10 min.

use k8s_openapi::jiff::SignedDuration;

use crate::shift;
use crate::{Timestamp, after};

const FIRST_SECONDS: i64 = 10;
const LONGEST_SECONDS: i64 = 300;
const FORGOTTEN_AFTER_SECONDS: i64 = 600;

/// Restart back-off of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackOff {
    delay_seconds: i64,
    updated: Option<Timestamp>,
}

impl BackOff {
    /// Returns the back-off after `restarts` restarts, with the last one at `last`: the assumption
    /// of a new agent.
    pub fn after_restarts(restarts: u32, last: Timestamp) -> Self {
        (0..restarts.min(8)).fold(Self::default(), |back_off, _| back_off.next(last))
    }

    /// Returns the earliest time of the next restart of a container that ended at `finished`.
    pub fn due(&self, finished: Timestamp) -> Timestamp {
        if self.is_forgotten(finished) {
            finished
        } else {
            after(finished, self.delay_seconds)
        }
    }

    /// Returns the back-off in seconds of a container that ended at `finished`.
    pub fn delay_seconds(&self, finished: Timestamp) -> i64 {
        if self.is_forgotten(finished) {
            0
        } else {
            self.delay_seconds
        }
    }

    /// Returns the back-off after one more restart, done now for a container that ended at
    /// `finished`.
    #[must_use]
    pub fn next(&self, finished: Timestamp) -> Self {
        let delay_seconds = match self.delay_seconds(finished) {
            0 => FIRST_SECONDS,
            seconds => (seconds * 2).min(LONGEST_SECONDS),
        };
        Self {
            delay_seconds,
            updated: Some(finished),
        }
    }

    /// See [`crate::pod::shift`].
    pub(crate) fn shift(&mut self, step: SignedDuration) {
        shift(&mut self.updated, step);
    }

    fn is_forgotten(&self, finished: Timestamp) -> bool {
        self.updated
            .is_none_or(|updated| finished > after(updated, FORGOTTEN_AFTER_SECONDS))
    }
}

/// Returns the back-off in seconds after one more failed pull.
pub fn next_pull_delay(seconds: i64) -> i64 {
    if seconds == 0 {
        FIRST_SECONDS
    } else {
        (seconds * 2).min(LONGEST_SECONDS)
    }
}

/// Returns the back-off in milliseconds before a sandbox is created again.
pub fn sandbox_delay_milliseconds(failures: u32) -> i64 {
    (250_i64 << failures.min(8)).min(30_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_first_restart_is_at_once_and_then_the_delay_doubles() {
        let mut back_off = BackOff::default();
        let mut delays = Vec::new();
        for _ in 0..8 {
            delays.push(back_off.delay_seconds(at(1000)));
            back_off = back_off.next(at(1000));
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off.due(at(1000)), at(1300));
        assert_eq!(back_off.due(at(1601)), at(1601), "forgotten after ten minutes");
    }

    #[test]
    fn a_new_agent_assumes_the_delay_of_the_restarts_it_finds() {
        assert_eq!(BackOff::after_restarts(2, at(1000)).delay_seconds(at(1001)), 20);
        assert_eq!(BackOff::after_restarts(0, at(1000)).delay_seconds(at(1001)), 0);
    }
}
