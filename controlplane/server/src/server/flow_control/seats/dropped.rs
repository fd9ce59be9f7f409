//! Requests that a level has refused, and when their clients should try again
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/dropped_requests_tracker.go`).

use std::collections::VecDeque;

/// Maximum of `Retry-After`, in seconds.
const LONGEST: i64 = 32;

#[derive(Debug)]
pub(super) struct Dropped {
    /// Seconds with as many refusals.
    history: VecDeque<(i64, i64)>,
    second: i64,
    count: i64,
    retry_after: i64,
    raised: i64,
}

impl Default for Dropped {
    fn default() -> Self {
        Self {
            history: VecDeque::new(),
            second: 0,
            count: 0,
            retry_after: 1,
            raised: 0,
        }
    }
}

impl Dropped {
    /// Counts a rejection; returns the client's `Retry-After` in seconds. It doubles when three
    /// times as many requests are rejected in that time, and shrinks when fewer are than seconds.
    pub(super) fn note(&mut self, second: i64) -> i32 {
        if self.second == second {
            self.count += 1;
        } else {
            self.history.push_back((self.second, self.count));
            let oldest = self.second - (2 * self.retry_after).min(LONGEST);
            self.history.retain(|(then, _)| *then >= oldest);
            (self.second, self.count) = (second, 1);
            self.update(second);
        }
        i32::try_from(self.retry_after).unwrap_or(1)
    }

    fn update(&mut self, second: i64) {
        let recent = self
            .history
            .iter()
            .filter(|(then, _)| *then < second && second - then <= self.retry_after);
        let refused: i64 = recent.map(|(_, count)| count).sum();
        if second - self.raised >= self.retry_after && refused >= 3 * self.retry_after {
            self.retry_after = (2 * self.retry_after).min(LONGEST);
            self.raised = second;
        } else if refused < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_to_wait_for_longer_while_many_are_refused() {
        let mut dropped = Dropped::default();
        let mut told = Vec::new();
        for second in 1000..1010 {
            for _ in 0..100 {
                dropped.note(second);
            }
            told.push(dropped.retry_after);
        }
        assert_eq!(told, [1, 2, 2, 4, 4, 4, 4, 8, 8, 8]);
        assert_eq!(dropped.note(2000), 7);
    }
}
