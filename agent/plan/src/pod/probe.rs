//! Probes: times of the attempts, and the effect of their results.

use k8s_openapi::api::core::v1::Probe as Specification;
use k8s_openapi::jiff::SignedDuration;

use crate::shift;
use crate::{Timestamp, after, later};

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Enables the other probes.
    Startup,
    /// Decides the container's readiness.
    Readiness,
    /// Restarts the container on failure.
    Liveness,
}

impl Kind {
    /// The kind's name in events.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// State of a probe of a running instance.
#[derive(Clone, Debug)]
pub struct Probe {
    kind: Kind,
    period_seconds: i64,
    success_threshold: i32,
    failure_threshold: i32,
    began: Timestamp,
    next: Timestamp,
    /// Time from which a failed attempt counts.
    regular: Timestamp,
    counts: bool,
    /// `None` once an attempt took long, or the probe has passed.
    quick_milliseconds: Option<i64>,
    successes: i32,
    failures: i32,
    result: Option<bool>,
    in_flight: bool,
}

const QUICK_MILLISECONDS: i64 = 10;
/// Attempts that take longer cost too much to be made more often than the pod asks for.
const SLOW_MILLISECONDS: i64 = 100;

impl Probe {
    /// Creates the probe of an instance that started at `started`.
    pub fn new(kind: Kind, specification: &Specification, started: Timestamp) -> Self {
        let at_least_one = |value: Option<i32>, default: i32| value.filter(|value| *value > 0).unwrap_or(default);
        let period_seconds: i64 = at_least_one(specification.period_seconds, 10).into();
        let delay: i64 = specification.initial_delay_seconds.unwrap_or(0).max(0).into();
        let (first, regular) = match kind {
            // A liveness probe at once would fail before the program has started.
            Kind::Liveness if delay == 0 => (period_seconds, period_seconds),
            Kind::Liveness => (delay, delay),
            // At the end of a period, but not before the first one, as with a ticker from the start
            // on.
            Kind::Startup | Kind::Readiness => {
                let late = (period_seconds - delay % period_seconds) % period_seconds;
                (delay, (delay + late).max(period_seconds))
            }
        };
        Self {
            kind,
            period_seconds,
            success_threshold: at_least_one(specification.success_threshold, 1),
            failure_threshold: at_least_one(specification.failure_threshold, 3),
            began: started,
            next: after(started, first),
            regular: after(started, regular),
            counts: false,
            quick_milliseconds: Some(QUICK_MILLISECONDS),
            successes: 0,
            failures: 0,
            result: None,
            in_flight: false,
        }
    }

    /// See [`crate::pod::shift`].
    pub(crate) fn shift(&mut self, step: SignedDuration) {
        shift([&mut self.began, &mut self.next, &mut self.regular], step);
    }

    /// Marks the probe as passed: the instance was ready before the agent was restarted.
    #[must_use]
    pub fn passed(mut self) -> Self {
        self.result = Some(true);
        self.quick_milliseconds = None;
        self
    }

    /// True if its last result is success.
    pub fn has_succeeded(&self) -> bool {
        self.result == Some(true)
    }

    /// True if its last result is failure.
    pub fn has_failed(&self) -> bool {
        self.result == Some(false)
    }

    /// Time of the next attempt; `None` while one runs or none is needed.
    pub fn due(&self) -> Option<Timestamp> {
        let over = self.kind == Kind::Startup && self.result.is_some();
        (!self.in_flight && !over).then_some(self.next)
    }

    /// Starts an attempt at `now`.
    pub fn begin(&mut self, now: Timestamp) {
        self.in_flight = true;
        self.began = now;
        self.next = after(now, self.period_seconds);
        self.counts = now >= self.regular;
        if self.counts {
            self.regular = self.next;
        }
    }

    /// Records the end of an attempt. Returns true if the failure is reported in an event.
    ///
    /// Until a container was ready (or started) once, it is probed again after 10 ms, 20 ms, 40 ms
    /// … up to the period: failures of such extra attempts count neither for thresholds nor for
    /// events, those of the attempt at each period's end do. Extra attempts stop once one took
    /// longer than its delay, or longer than 100 ms: that one counts.
    pub fn record(&mut self, success: bool, now: Timestamp) -> bool {
        self.in_flight = false;
        if success {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            if self.result != Some(true) && self.successes >= self.success_threshold {
                self.result = Some(true);
                self.quick_milliseconds = None;
            }
            return false;
        }
        self.successes = 0;
        let hastens = self.hastens(now);
        if hastens && !self.counts {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.failure_threshold {
            self.result = Some(false);
        }
        true
    }

    /// Records an attempt without a result, which has no effect on the thresholds. Returns true if
    /// an event reports it.
    pub fn discard(&mut self, now: Timestamp) -> bool {
        self.in_flight = false;
        !self.hastens(now) || self.counts
    }

    /// Schedules an early next attempt; true if there is one.
    fn hastens(&mut self, now: Timestamp) -> bool {
        let (took, period) = (now.duration_since(self.began).as_millis(), self.period_seconds * 1000);
        let quick = self.quick_milliseconds.filter(|quick| {
            let in_time = took <= i128::from(SLOW_MILLISECONDS.max(*quick));
            in_time && *quick < period && self.kind != Kind::Liveness
        });
        self.quick_milliseconds = quick.map(|quick| quick * 2);
        if let Some(quick) = quick {
            self.next = later(now, quick).min(self.regular);
        }
        quick.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    #[test]
    fn a_container_that_is_not_ready_yet_is_asked_again_soon() {
        let mut probe = Probe::new(Kind::Readiness, &Specification::default(), at(0));
        assert_eq!(probe.due(), Some(at(0)));
        probe.begin(at(0));
        assert_eq!(probe.due(), None, "one attempt at a time");
        assert!(!probe.record(false, at(1)), "a quick failure is no event");
        assert_eq!(probe.due(), Some(at(11)));
        probe.begin(at(11));
        probe.record(true, at(12));
        assert!(probe.has_succeeded());
        assert_eq!(probe.due(), Some(at(10_011)));
    }

    /// Time at which a probe that is refused at once has failed, in milliseconds after the start.
    fn given_up(kind: Kind, delay: i32, period: i32, threshold: i32) -> i64 {
        let specification = Specification {
            initial_delay_seconds: Some(delay),
            period_seconds: Some(period),
            failure_threshold: Some(threshold),
            ..Specification::default()
        };
        let mut probe = Probe::new(kind, &specification, at(0));
        while !probe.has_failed() {
            let due = probe.due().unwrap();
            probe.begin(due);
            probe.record(false, due);
        }
        probe.began.as_millisecond()
    }

    /// Like a probe that waits for the startup probe: its first readiness attempt is late.
    #[test]
    fn who_is_first_asked_late_is_asked_again_soon_too() {
        let specification = Specification {
            failure_threshold: Some(1),
            ..Specification::default()
        };
        let mut probe = Probe::new(Kind::Readiness, &specification, at(0));
        probe.begin(at(12_000));
        assert!(probe.record(false, at(12_000)), "the period's own attempt counts");
        assert!(probe.has_failed());
        assert_eq!(probe.due(), Some(at(12_010)));
        probe.begin(at(12_010));
        probe.record(true, at(12_010));
        assert!(probe.has_succeeded());
        probe.begin(at(22_010));
        probe.record(false, at(22_010));
        assert_eq!(probe.due(), Some(at(32_010)), "not once it was ready");
    }

    #[test]
    fn who_is_never_started_is_given_up_after_as_many_periods_as_the_pod_says() {
        for (delay, period, threshold, expected) in [
            (0, 1, 3, 3_000),
            (0, 1, 1, 1_000),
            (0, 10, 3, 30_000),
            (0, 11, 1, 11_000),
            (1, 10, 1, 10_000),
            (12, 10, 1, 20_000),
            (30, 10, 2, 40_000),
        ] {
            for kind in [Kind::Startup, Kind::Readiness] {
                let told = format!("{kind:?}: {delay} {period} {threshold}");
                assert_eq!(given_up(kind, delay, period, threshold), expected, "{told}");
            }
        }
        assert_eq!(given_up(Kind::Liveness, 0, 10, 3), 30_000);
        assert_eq!(given_up(Kind::Liveness, 5, 10, 3), 25_000);
    }

    #[test]
    fn what_takes_long_counts_from_the_first_time() {
        let asked_once = Specification {
            failure_threshold: Some(1),
            ..Specification::default()
        };
        let mut probe = Probe::new(Kind::Startup, &asked_once, at(0));
        probe.begin(at(0));
        assert!(!probe.record(false, at(100)));
        assert_eq!(probe.due(), Some(at(110)));
        probe.begin(at(110));
        assert!(probe.record(false, at(1110)), "an event");
        assert!(probe.has_failed());
        let mut probe = Probe::new(Kind::Readiness, &Specification::default(), at(0));
        for begun in [0, 10_000] {
            assert_eq!(probe.due(), Some(at(begun)));
            probe.begin(at(begun));
            assert!(
                probe.record(false, at(begun + 1000)),
                "it is asked at its pace from then on"
            );
        }
    }

    #[test]
    fn liveness_fails_at_its_threshold_only() {
        let mut probe = Probe::new(Kind::Liveness, &Specification::default(), at(0));
        for failure in 1..=3 {
            assert!(!probe.has_failed());
            probe.begin(at(failure));
            assert!(probe.record(false, at(failure)));
        }
        assert!(probe.has_failed());
    }

    #[test]
    fn a_ready_container_needs_three_failures_to_become_unready() {
        let mut probe = Probe::new(Kind::Readiness, &Specification::default(), at(0)).passed();
        probe.record(false, at(0));
        probe.record(false, at(0));
        assert!(probe.has_succeeded());
        probe.record(false, at(0));
        assert!(probe.has_failed());
        probe.record(true, at(0));
        assert!(probe.has_succeeded());
    }
}
