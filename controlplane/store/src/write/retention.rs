//! Retention of superseded versions by age and by size. Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use super::Class;
use crate::object::entry::{Entry, Event};
use crate::shared::Shared;

/// Resolution of the recorded times.
const STEP: Duration = Duration::from_secs(5);

/// Records when each revision was reached, and how many bytes had been superseded by then.
#[derive(Debug)]
pub(crate) struct Retention {
    age: Duration,
    bytes: u64,
    superseded: u64,
    samples: VecDeque<Sample>,
    /// Pairs of time and revision, as far back as the longest time to live and the retention.
    times: VecDeque<(Duration, u64)>,
    longest_life: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    revision: u64,
    superseded: u64,
}

impl Retention {
    pub(crate) fn new(age: Duration, bytes: u64, revision: u64) -> Self {
        let first = Sample {
            at: Duration::ZERO,
            revision,
            superseded: 0,
        };
        Self {
            age,
            bytes,
            superseded: 0,
            samples: VecDeque::from([first]),
            times: VecDeque::from([(Duration::ZERO, revision)]),
            longest_life: Duration::ZERO,
        }
    }

    pub(crate) fn stored(&mut self, events: &[Event]) {
        for event in events {
            let bytes = event.prev().map_or(0, |prev| prev.bytes.len());
            self.superseded = self.superseded.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Revision up to which the past is no longer needed at this time.
    pub(crate) fn floor(&mut self, now: Duration, revision: u64) -> u64 {
        let newest = self.samples.back().copied();
        if newest.is_none_or(|newest| newest.revision < revision && now >= newest.at + STEP) {
            self.samples.push_back(Sample {
                at: now,
                revision,
                superseded: self.superseded,
            });
            self.times.push_back((now, revision));
        }
        let mut floor = 0;
        while let Some(oldest) = self.samples.front() {
            let old = now.saturating_sub(oldest.at) >= self.age;
            let large = self.superseded.saturating_sub(oldest.superseded) > self.bytes;
            if !old && !large {
                break;
            }
            floor = oldest.revision;
            self.samples.pop_front();
        }
        floor
    }

    /// Revision up to which the past is too old, regardless of its size.
    pub(crate) fn aged(&self, now: Duration) -> u64 {
        self.reached(now, self.age).unwrap_or(0)
    }

    /// Returns up to `limit` objects that were not written within the time to live of their
    /// resource.
    pub(crate) fn expired(&mut self, now: Duration, shared: &Shared, limit: usize) -> Vec<Entry> {
        let cache = shared.cache();
        let mut due = Vec::new();
        for (resource, entries) in cache.resources() {
            let Class::HeadOnly {
                time_to_live: Some(life),
            } = (shared.options.class)(resource)
            else {
                continue;
            };
            self.longest_life = self.longest_life.max(life);
            if let Some(reached) = self.reached(now, life) {
                due.extend(
                    entries
                        .filter(|entry| entry.revision <= reached)
                        .take(limit - due.len())
                        .cloned(),
                );
            }
        }
        drop(cache);
        let longest = self.longest_life.max(self.age);
        while self.times.len() > 1
            && self
                .times
                .get(1)
                .is_some_and(|(at, _)| now.saturating_sub(*at) > longest)
        {
            self.times.pop_front();
        }
        due
    }

    /// The newest revision that was reached at least `life` ago.
    fn reached(&self, now: Duration, life: Duration) -> Option<u64> {
        let end = self.times.partition_point(|(at, _)| now.saturating_sub(*at) >= life);
        self.times.get(end.checked_sub(1)?).map(|(_, revision)| *revision)
    }
}
