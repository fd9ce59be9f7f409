//! The only reader of the wall clock, and detection of clock steps.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use k8s_openapi::jiff::SignedDuration;
use tokio::time::Instant;

/// Reads the wall clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Smallest difference that counts as a step: the two clocks are not read at the same instant, and
/// time servers slew the wall clock.
const STEP: Duration = Duration::from_millis(500);

/// The machine's clock.
pub fn wall() -> Clock {
    Arc::new(Timestamp::now)
}

/// Detects steps of a wall clock by the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    last: (Timestamp, Instant),
}

impl Steps {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            last: (now, Instant::now()),
        }
    }

    /// Returns how far the clock was set forward (or back) since the last call.
    pub(crate) fn step(&mut self, now: Timestamp) -> Option<SignedDuration> {
        let (before, then) = std::mem::replace(&mut self.last, (now, Instant::now()));
        let passed = SignedDuration::try_from(self.last.1.duration_since(then)).ok()?;
        let step = now.duration_since(before).saturating_sub(passed);
        (step.unsigned_abs() >= STEP).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_steps_are_told() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut steps = Steps::new(at(1000));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(steps.step(at(1010)), None);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(steps.step(at(1015 - 3600)), Some(SignedDuration::from_secs(-3600)));
        assert_eq!(steps.step(at(1015 - 3600)), None);
        assert_eq!(steps.step(at(1015)), Some(SignedDuration::from_secs(3600)));
    }
}
