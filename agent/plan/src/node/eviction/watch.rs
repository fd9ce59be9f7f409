//! Observations of the node over time, and the evictions that follow.

use std::collections::{BTreeMap, BTreeSet};

use api::quantity::Quantity;

use super::{Pressure, Signal, Threshold, Thresholds};
use crate::Timestamp;

/// Observed amount of a resource, in the signal's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Available amount.
    pub available: i64,
    /// Total amount.
    pub capacity: i64,
}

/// Observations at one time, without the signals that cannot be measured.
pub type Observations = BTreeMap<Signal, Observation>;

/// Shortage that calls for an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starved {
    /// Signal that met its threshold.
    pub signal: Signal,
    /// True for a hard threshold, which has no grace period.
    pub hard: bool,
    /// The threshold, for the message.
    pub threshold: Quantity,
    /// Available amount.
    pub available: Quantity,
}

/// Tracks since when thresholds are met.
#[derive(Clone, Debug)]
pub struct Watch {
    thresholds: Thresholds,
    /// By the threshold's index.
    since: BTreeMap<usize, Timestamp>,
    /// Thresholds whose grace period has passed: their minimum reclaim applies.
    met: BTreeSet<usize>,
    seen: BTreeMap<Pressure, Timestamp>,
}

fn short(threshold: &Threshold, observed: Observation, with_reclaim: bool) -> bool {
    let mut least = threshold.value.of(observed.capacity);
    if with_reclaim {
        let more = threshold.reclaim.map_or(0, |reclaim| reclaim.of(observed.capacity));
        least = least.saturating_add(more);
    }
    observed.available < least
}

fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}

impl Watch {
    /// Creates a watch without observations.
    pub const fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            since: BTreeMap::new(),
            met: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    /// The configured thresholds.
    pub const fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Takes the current observations. Returns the node's pressure conditions and the shortage that
    /// calls for an eviction, memory first.
    pub fn observe(&mut self, observations: &Observations, now: Timestamp) -> (BTreeSet<Pressure>, Option<Starved>) {
        let all = self.thresholds.all.iter().enumerate();
        let short_of: BTreeSet<usize> = all
            .filter(|(number, threshold)| {
                let observed = observations.get(&threshold.signal);
                observed.is_some_and(|observed| short(threshold, *observed, self.met.contains(number)))
            })
            .map(|(number, _)| number)
            .collect();
        self.since.retain(|number, _| short_of.contains(number));
        for number in &short_of {
            self.since.entry(*number).or_insert(now);
        }
        for threshold in short_of.iter().filter_map(|number| self.thresholds.all.get(*number)) {
            self.seen.insert(threshold.signal.pressure(), now);
        }
        let transition = self.thresholds.transition;
        let recent = |at: &Timestamp| *at == now || milliseconds(*at, now) < transition;
        self.seen.retain(|_, at| recent(at));
        let thresholds = &self.thresholds.all;
        let due = |number: &usize, since: &Timestamp| {
            let patience = thresholds.get(*number).map_or(0, |threshold| threshold.grace);
            milliseconds(*since, now) >= patience
        };
        self.met = self
            .since
            .iter()
            .filter(|(number, since)| due(number, since))
            .map(|(number, _)| *number)
            .collect();
        let due = self.met.iter().filter_map(|number| thresholds.get(*number));
        let first = due.min_by_key(|threshold| (threshold.signal, threshold.grace));
        let starved = first.and_then(|threshold| {
            let observed = observations.get(&threshold.signal)?;
            Some(Starved {
                signal: threshold.signal,
                hard: threshold.grace == 0,
                threshold: threshold.value.quantity(threshold.signal, observed.capacity),
                available: threshold.signal.quantity(observed.available),
            })
        });
        (self.seen.keys().copied().collect(), starved)
    }

    /// True if a threshold is met that was not met at the last observation.
    pub fn is_news(&self, observations: &Observations) -> bool {
        let mut all = self.thresholds.all.iter().enumerate();
        all.any(|(number, threshold)| {
            let observed = observations.get(&threshold.signal);
            !self.since.contains_key(&number) && observed.is_some_and(|observed| short(threshold, *observed, false))
        })
    }

    /// True if the observations after a reclaim satisfy every threshold, minimum reclaim included.
    pub fn is_satisfied(&self, observations: &Observations) -> bool {
        self.thresholds.all.iter().all(|threshold| {
            let observed = observations.get(&threshold.signal);
            observed.is_none_or(|observed| !short(threshold, *observed, true))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::after;

    fn watch(hard: &str, soft: &str, patience: &str, reclaim: &str) -> Watch {
        Watch::new(Thresholds {
            all: Thresholds::parse(hard, soft, patience, reclaim).unwrap(),
            transition: 300_000,
            longest_grace: 0,
        })
    }

    fn left(signal: Signal, available: i64) -> Observations {
        let capacity = 1000;
        BTreeMap::from([(signal, Observation { available, capacity })])
    }

    fn told(watch: &mut Watch, observations: &Observations, second: i64) -> String {
        let now = after(Timestamp::UNIX_EPOCH, second);
        let (pressures, starved) = watch.observe(observations, now);
        let starved = starved.map(|starved| {
            let Starved {
                signal,
                hard,
                threshold,
                available,
            } = starved;
            format!(" evict for {} hard={hard} {available}<{threshold}", signal.resource())
        });
        let pressures: Vec<_> = pressures.into_iter().map(Pressure::condition).collect();
        format!("[{}]{}", pressures.join(" "), starved.unwrap_or_default())
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_its_condition_stays_for_a_while() {
        let mut watch = watch("memory.available<10%,nodefs.available<100", "", "", "");
        let (much, little) = (left(Signal::MemoryAvailable, 100), left(Signal::MemoryAvailable, 99));
        assert_eq!(told(&mut watch, &much, 0), "[]");
        assert_eq!(
            told(&mut watch, &little, 10),
            "[MemoryPressure] evict for memory hard=true 99<100"
        );
        assert_eq!(told(&mut watch, &much, 20), "[MemoryPressure]");
        assert_eq!(told(&mut watch, &much, 309), "[MemoryPressure]");
        assert_eq!(told(&mut watch, &much, 310), "[]");
        let disk = left(Signal::NodefsAvailable, 5);
        assert_eq!(
            told(&mut watch, &disk, 400),
            "[DiskPressure] evict for ephemeral-storage hard=true 5<100"
        );
    }

    #[test]
    fn what_was_short_before_is_no_news() {
        let mut watch = watch(
            "memory.available<100",
            "memory.available<200",
            "memory.available=30s",
            "",
        );
        let observed = |available| left(Signal::MemoryAvailable, available);
        assert!(!watch.is_news(&observed(200)) && watch.is_news(&observed(199)));
        told(&mut watch, &observed(199), 0);
        assert!(!watch.is_news(&observed(100)) && watch.is_news(&observed(99)));
        told(&mut watch, &observed(99), 10);
        assert!(!watch.is_news(&observed(1)) && !watch.is_news(&Observations::new()));
    }

    #[test]
    fn a_soft_threshold_is_patient_and_then_wants_more() {
        let mut watch = watch(
            "",
            "memory.available<100",
            "memory.available=30s",
            "memory.available=50",
        );
        let observed = |available| left(Signal::MemoryAvailable, available);
        assert_eq!(told(&mut watch, &observed(99), 0), "[MemoryPressure]");
        assert_eq!(told(&mut watch, &observed(99), 29), "[MemoryPressure]");
        assert_eq!(told(&mut watch, &observed(120), 30), "[MemoryPressure]");
        assert_eq!(told(&mut watch, &observed(99), 40), "[MemoryPressure]");
        let evict = "[MemoryPressure] evict for memory hard=false 99<100";
        assert_eq!(told(&mut watch, &observed(99), 70), evict);
        let evict = "[MemoryPressure] evict for memory hard=false 149<100";
        assert_eq!(told(&mut watch, &observed(149), 80), evict, "not yet won back");
        assert!(!watch.is_satisfied(&observed(149)));
        assert!(watch.is_satisfied(&observed(150)));
        assert_eq!(told(&mut watch, &observed(150), 90), "[MemoryPressure]");
        assert_eq!(
            told(&mut watch, &observed(149), 100),
            "[MemoryPressure]",
            "from the beginning"
        );
    }

    #[test]
    fn the_node_comes_before_what_all_pods_may_have() {
        let mut watch = watch("allocatableMemory.available<100,memory.available<100", "", "", "");
        let mut observed = left(Signal::AllocatableMemoryAvailable, 5);
        let evict = "[MemoryPressure] evict for memory hard=true 5<100";
        assert_eq!(told(&mut watch, &observed, 0), evict);
        observed.extend(left(Signal::MemoryAvailable, 7));
        let evict = "[MemoryPressure] evict for memory hard=true 7<100";
        assert_eq!(told(&mut watch, &observed, 10), evict);
    }

    #[test]
    fn memory_comes_first_and_what_is_not_seen_is_not_short() {
        let mut watch = watch("pid.available<10,nodefs.inodesFree<10,memory.available<10", "", "", "");
        let mut observed = left(Signal::MemoryAvailable, 1);
        observed.extend(left(Signal::PidAvailable, 1));
        observed.extend(left(Signal::NodefsInodesFree, 1));
        let all = "[MemoryPressure DiskPressure PIDPressure] evict for memory hard=true 1<10";
        assert_eq!(told(&mut watch, &observed, 0), all);
        assert_eq!(told(&mut watch, &Observations::new(), 1000), "[]");
    }
}
