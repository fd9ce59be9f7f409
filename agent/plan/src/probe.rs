//! Probes: when the next attempt is due, and what the outcomes mean.

use k8s_openapi::api::core::v1::Probe as Specification;
use k8s_openapi::jiff::SignedDuration;

use crate::shift::shift;
use crate::{Timestamp, after, later};

/// What a probe decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Whether the other probes begin.
    Startup,
    /// Whether the container counts as ready.
    Readiness,
    /// Whether the container is restarted.
    Liveness,
}

impl Kind {
    /// As events name it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// The state of one probe of one running instance.
#[derive(Clone, Debug)]
pub struct Probe {
    kind: Kind,
    period_seconds: i64,
    success_threshold: i32,
    failure_threshold: i32,
    began: Timestamp,
    next: Timestamp,
    /// Nothing once an attempt took long.
    quick_milliseconds: Option<i64>,
    successes: i32,
    failures: i32,
    result: Option<bool>,
    in_flight: bool,
}

const QUICK_MILLISECONDS: i64 = 10;
/// An attempt that takes longer is work that is not to be done more often than the pod says.
const SLOW_MILLISECONDS: i64 = 100;

impl Probe {
    /// The probe of an instance that started at `started`.
    pub fn new(kind: Kind, specification: &Specification, started: Timestamp) -> Self {
        let at_least_one = |value: Option<i32>, default: i32| value.filter(|value| *value > 0).unwrap_or(default);
        let period_seconds: i64 = at_least_one(specification.period_seconds, 10).into();
        // Who is asked for its life before its program has begun would lose it for nothing.
        let patience = if kind == Kind::Liveness { period_seconds } else { 0 };
        let delay = specification.initial_delay_seconds.filter(|delay| *delay > 0);
        Self {
            kind,
            period_seconds,
            success_threshold: at_least_one(specification.success_threshold, 1),
            failure_threshold: at_least_one(specification.failure_threshold, 3),
            began: started,
            next: after(started, delay.map_or(patience, i64::from)),
            quick_milliseconds: Some(QUICK_MILLISECONDS),
            successes: 0,
            failures: 0,
            result: None,
            in_flight: false,
        }
    }

    /// See [`crate::shift`].
    pub(crate) fn shift(&mut self, step: SignedDuration) {
        shift([&mut self.began, &mut self.next], step);
    }

    /// Takes the probe as passed: an instance that was ready before the agent was restarted.
    #[must_use]
    pub fn passed(mut self) -> Self {
        self.result = Some(true);
        self
    }

    /// Whether its last verdict is success.
    pub fn has_succeeded(&self) -> bool {
        self.result == Some(true)
    }

    /// Whether its last verdict is failure.
    pub fn has_failed(&self) -> bool {
        self.result == Some(false)
    }

    /// When the next attempt is due; nothing while one runs or none is needed.
    pub fn due(&self) -> Option<Timestamp> {
        let over = self.kind == Kind::Startup && self.result.is_some();
        (!self.in_flight && !over).then_some(self.next)
    }

    /// An attempt begins at `now`.
    pub fn begin(&mut self, now: Timestamp) {
        self.in_flight = true;
        self.began = now;
        self.next = after(now, self.period_seconds);
    }

    /// An attempt ended. Answers whether the failure is worth an event.
    ///
    /// Until a container was ready (or started) once, it is asked again after 10 ms, 20 ms, 40 ms … up to the period:
    /// such extra attempts count neither for thresholds nor for events when they fail. There are none any more once one took
    /// longer than it was waited for, or longer than 100 ms: that one counts.
    pub fn record(&mut self, success: bool, now: Timestamp) -> bool {
        self.in_flight = false;
        if success {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            if self.result != Some(true) && self.successes >= self.success_threshold {
                self.result = Some(true);
            }
            return false;
        }
        self.successes = 0;
        if self.hastens(now) {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.failure_threshold {
            self.result = Some(false);
        }
        true
    }

    /// An attempt ended without an answer, which counts neither way. Answers whether that is worth an event.
    pub fn discard(&mut self, now: Timestamp) -> bool {
        self.in_flight = false;
        !self.hastens(now)
    }

    /// Whether it is asked again soon.
    fn hastens(&mut self, now: Timestamp) -> bool {
        let (took, period) = (now.duration_since(self.began).as_millis(), self.period_seconds * 1000);
        let quick = self.quick_milliseconds.filter(|quick| {
            let in_time = took <= i128::from(SLOW_MILLISECONDS.max(*quick));
            in_time && *quick < period && self.result.is_none() && self.kind != Kind::Liveness
        });
        self.quick_milliseconds = quick.map(|quick| quick * 2);
        if let Some(quick) = quick {
            self.next = later(now, quick);
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
