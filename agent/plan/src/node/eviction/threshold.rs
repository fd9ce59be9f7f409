//! Eviction thresholds in the configuration's syntax:
//! `memory.available<100Mi,nodefs.available<10%`.

use std::collections::BTreeMap;

use api::duration;
use api::quantity::Quantity;

use super::Pressure;

/// Eviction signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory that is available to pods.
    MemoryAvailable,
    /// Memory available to pods, of the allocatable memory of all of them.
    AllocatableMemoryAvailable,
    /// Space on the node's file system (nodefs).
    NodefsAvailable,
    /// Its inodes.
    NodefsInodesFree,
    /// Space on the images' file system (imagefs).
    ImagefsAvailable,
    /// Its inodes.
    ImagefsInodesFree,
    /// PIDs that are available.
    PidAvailable,
}

impl Signal {
    const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// The signal's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The starved resource's name in messages.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// Returns the Node's condition for the signal.
    pub const fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::NodefsAvailable | Self::NodefsInodesFree | Self::ImagefsAvailable | Self::ImagefsInodesFree => {
                Pressure::Disk
            }
            Self::PidAvailable => Pressure::Pid,
        }
    }

    /// Converts an amount of the signal to a quantity, for messages.
    pub fn quantity(self, amount: i64) -> Quantity {
        match self {
            Self::MemoryAvailable
            | Self::AllocatableMemoryAvailable
            | Self::NodefsAvailable
            | Self::ImagefsAvailable => Quantity::bytes(amount),
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::PidAvailable => Quantity::units(amount),
        }
    }

    fn parse(name: &str) -> Result<Self, InvalidThreshold> {
        let known = Self::ALL.into_iter().find(|signal| signal.name() == name);
        known.ok_or_else(|| InvalidThreshold::Signal(name.to_owned()))
    }
}

/// A share of the capacity, or an absolute amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// In the signal's units.
    Quantity(Quantity),
    /// Thousandths of a percent of the capacity.
    Share(u32),
}

impl Amount {
    /// In the signal's units, of a capacity.
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Quantity(quantity) => quantity.value(),
            Self::Share(thousandths) => {
                let part = i128::from(capacity) * i128::from(thousandths) / 100_000;
                i64::try_from(part).unwrap_or(i64::MAX)
            }
        }
    }

    /// Converts the amount to a quantity, for messages.
    pub fn quantity(self, signal: Signal, capacity: i64) -> Quantity {
        match self {
            Self::Quantity(quantity) => quantity,
            Self::Share(_) => signal.quantity(self.of(capacity)),
        }
    }

    fn parse(signal: &str, text: &str) -> Result<Self, InvalidThreshold> {
        let invalid = || InvalidThreshold::Amount(signal.to_owned(), text.to_owned());
        if let Some(percent) = text.strip_suffix('%') {
            let milli = Quantity::parse(percent).map_err(|_unreadable| invalid())?.milli();
            let share = u32::try_from(milli).ok().filter(|share| *share <= 100_000);
            return share.map(Self::Share).ok_or_else(invalid);
        }
        let quantity = Quantity::parse(text).map_err(|_unreadable| invalid())?;
        if quantity.is_negative() || quantity.is_zero() {
            return Err(invalid());
        }
        Ok(Self::Quantity(quantity))
    }
}

/// A threshold, met when less than the amount is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Signal that is compared.
    pub signal: Signal,
    /// The minimum amount.
    pub value: Amount,
    /// Grace period in milliseconds before pods are evicted; 0 for a hard threshold.
    pub grace: i64,
    /// Minimum reclaim: amount to free beyond the threshold once it was met.
    pub reclaim: Option<Amount>,
}

/// The configuration of eviction thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Hard ones first.
    pub all: Vec<Threshold>,
    /// Transition period in milliseconds: time that a condition stays after its cause is gone.
    pub transition: i64,
    /// Maximum grace period in seconds of a soft eviction (`evictionMaxPodGracePeriod`).
    pub longest_grace: i64,
}

/// Invalid threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidThreshold {
    /// It is not `SIGNAL<AMOUNT`, or `SIGNAL=VALUE`.
    #[error("{0:?} is not of the form SIGNAL{1}VALUE")]
    Form(String, char),
    /// The signal does not exist.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// The value is neither a positive quantity nor a valid percentage.
    #[error("eviction threshold {0} must be a positive quantity or a percentage: {1}")]
    Amount(String, String),
    /// The value is not a duration.
    #[error("{0:?} is not a length of time such as 90s or 1m30s")]
    Duration(String),
    /// A soft threshold has no grace period.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    Grace(&'static str),
}

/// Parses a duration such as `1m30s`, in milliseconds.
pub fn parse_duration(text: &str) -> Result<i64, InvalidThreshold> {
    let nanoseconds = duration::parse(text).ok().filter(|nanoseconds| *nanoseconds >= 0);
    let nanoseconds = nanoseconds.ok_or_else(|| InvalidThreshold::Duration(text.to_owned()))?;
    Ok(nanoseconds / 1_000_000)
}

/// `NAME SEPARATOR VALUE, …`
fn pairs(text: &str, separator: char) -> Result<Vec<(Signal, &str, &str)>, InvalidThreshold> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let (name, value) = word
                .split_once(separator)
                .ok_or_else(|| InvalidThreshold::Form(word.to_owned(), separator))?;
            Ok((Signal::parse(name.trim())?, name.trim(), value.trim()))
        })
        .collect()
}

impl Thresholds {
    /// Parses hard and soft thresholds (`SIGNAL<AMOUNT`), the grace periods of the soft ones
    /// (`SIGNAL=TIME`) and the minimum reclaims (`SIGNAL=AMOUNT`), each a list with commas. A
    /// threshold of 0 % or 100 % is disabled.
    pub fn parse(hard: &str, soft: &str, patience: &str, reclaim: &str) -> Result<Vec<Threshold>, InvalidThreshold> {
        let mut patiences = BTreeMap::new();
        for (signal, _, value) in pairs(patience, '=')? {
            patiences.insert(signal, parse_duration(value)?);
        }
        let mut reclaims = BTreeMap::new();
        for (signal, name, value) in pairs(reclaim, '=')? {
            reclaims.insert(signal, Amount::parse(name, value)?);
        }
        let mut all = Vec::new();
        for (text, is_soft) in [(hard, false), (soft, true)] {
            for (signal, name, value) in pairs(text, '<')? {
                let value = Amount::parse(name, value)?;
                if matches!(value, Amount::Share(0 | 100_000)) {
                    continue;
                }
                let grace = match (is_soft, patiences.get(&signal)) {
                    (false, _) => 0,
                    (true, Some(grace)) => (*grace).max(1),
                    (true, None) => return Err(InvalidThreshold::Grace(signal.name())),
                };
                all.push(Threshold {
                    signal,
                    value,
                    grace,
                    reclaim: reclaims.get(&signal).copied(),
                });
            }
        }
        Ok(all)
    }

    /// Adds thresholds for a node that limits all pods together to its allocatable memory: its hard
    /// memory thresholds apply to that part as well, so that a pod is evicted before the kernel
    /// kills a process of some pod.
    #[must_use]
    pub fn enforced(mut self) -> Self {
        let of_node = |one: &&Threshold| one.signal == Signal::MemoryAvailable && one.grace == 0;
        let of_pods = |one: &Threshold| Threshold {
            signal: Signal::AllocatableMemoryAvailable,
            ..*one
        };
        let more: Vec<Threshold> = self.all.iter().filter(of_node).map(of_pods).collect();
        self.all.splice(..0, more);
        self
    }

    /// Part of `capacity` that is not allocatable because hard thresholds keep it free.
    pub fn held_back(&self, signal: Signal, capacity: i64) -> i64 {
        let hard = self.all.iter().filter(|one| one.signal == signal && one.grace == 0);
        hard.map(|one| one.value.of(capacity)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(hard: &str, soft: &str, patience: &str) -> Result<Vec<Threshold>, String> {
        Thresholds::parse(hard, soft, patience, "").map_err(|error| error.to_string())
    }

    #[test]
    fn thresholds_are_read_as_upstream_reads_them() {
        let read = parse(
            "memory.available<100Mi,nodefs.available<10%",
            "memory.available<300Mi",
            "memory.available=1m30s",
        );
        let read = read.unwrap();
        let shown: Vec<_> = read
            .iter()
            .map(|one| (one.signal.name(), one.value.of(1000), one.grace))
            .collect();
        assert_eq!(
            shown,
            [
                ("memory.available", 100 << 20, 0),
                ("nodefs.available", 100, 0),
                ("memory.available", 300 << 20, 90_000)
            ]
        );
        assert_eq!(
            parse("nodefs.available<0%,imagefs.available<100%", "", ""),
            Ok(Vec::new())
        );
        for (hard, soft, expected) in [
            ("disk.available<1Gi", "", "unsupported eviction signal disk.available"),
            (
                "memory.available=1Gi",
                "",
                "\"memory.available=1Gi\" is not of the form SIGNAL<VALUE",
            ),
            (
                "memory.available<-1Gi",
                "",
                "eviction threshold memory.available must be a positive quantity or a percentage: -1Gi",
            ),
            (
                "nodefs.available<101%",
                "",
                "eviction threshold nodefs.available must be a positive quantity or a percentage: 101%",
            ),
            (
                "",
                "memory.available<1Gi",
                "grace period must be specified for the soft eviction threshold memory.available",
            ),
        ] {
            assert_eq!(parse(hard, soft, ""), Err(expected.to_owned()));
        }
    }

    #[test]
    fn all_pods_together_have_the_nodes_hard_thresholds_of_memory() {
        let all = Thresholds::parse(
            "memory.available<100Mi,nodefs.available<10%",
            "memory.available<300Mi",
            "memory.available=30s",
            "memory.available=50Mi",
        );
        let thresholds = Thresholds {
            all: all.unwrap(),
            transition: 0,
            longest_grace: 0,
        };
        let enforced = thresholds.clone().enforced();
        let shown = |signal: Signal| {
            let own = enforced.all.iter().filter(|one| one.signal == signal);
            let own = own.map(|one| (one.value.of(0), one.grace, one.reclaim.map(|more| more.of(0))));
            own.collect::<Vec<_>>()
        };
        let (hard, soft) = ((100 << 20, 0, Some(50 << 20)), (300 << 20, 30_000, Some(50 << 20)));
        assert_eq!(shown(Signal::AllocatableMemoryAvailable), [hard]);
        assert_eq!(shown(Signal::MemoryAvailable), [hard, soft]);
        assert_eq!(enforced.all.len(), thresholds.all.len() + 1);
        let named = parse("allocatableMemory.available<1Gi", "", "").unwrap();
        let named = named.iter().map(|one| (one.signal, one.value.of(0)));
        assert_eq!(
            named.collect::<Vec<_>>(),
            [(Signal::AllocatableMemoryAvailable, 1 << 30)]
        );
    }

    #[test]
    fn lengths_of_time_are_read() {
        for (text, expected) in [
            ("0", Some(0)),
            ("5m0s", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("250ms", Some(250)),
            ("1.5s", Some(1500)),
            ("-1s", None),
            ("", None),
            ("5", None),
            ("m", None),
            ("1d", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }
}
