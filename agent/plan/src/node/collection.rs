//! Choice of the images to remove when their disk is nearly full.

use std::collections::{BTreeMap, BTreeSet};

use crate::Timestamp;

/// Thresholds and ages of image garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Disk usage in percent at which image garbage collection starts.
    pub high: u8,
    /// Disk usage in percent at which it stops.
    pub low: u8,
    /// Minimum age in milliseconds of an image that may be removed.
    pub youth: i64,
}

/// Invalid policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// A percentage is above 100.
    #[error("invalid {0}ThresholdPercent {1}, must be in range [0-100]")]
    Range(&'static str, u8),
    /// The low threshold is above the high one.
    #[error("LowThresholdPercent {0} can not be higher than HighThresholdPercent {1}")]
    Order(u8, u8),
}

impl Policy {
    /// Validates the thresholds.
    pub fn new(high: u8, low: u8, youth: i64) -> Result<Self, InvalidPolicy> {
        for (name, percent) in [("High", high), ("Low", low)] {
            if percent > 100 {
                return Err(InvalidPolicy::Range(name, percent));
            }
        }
        if low > high {
            return Err(InvalidPolicy::Order(low, high));
        }
        Ok(Self { high, low, youth })
    }

    /// Returns the number of bytes to free on a disk with so much space available, if any.
    pub fn surplus(&self, capacity: u64, available: u64) -> Option<u64> {
        let available = available.min(capacity);
        let left = u128::from(available) * 100 / u128::from(capacity.max(1));
        if self.high == 100 || 100 - left.min(100) < u128::from(self.high) {
            return None;
        }
        let wanted = u128::from(capacity) * u128::from(100 - self.low) / 100;
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        Some(wanted.saturating_sub(available)).filter(|bytes| *bytes > 0)
    }
}

/// Message about a disk on which the removal of unused images freed too little (`GarbageCollect` of
/// `pkg/kubelet/images/image_gc_manager.go`).
pub fn shortage(capacity: u64, available: u64, freed: u64) -> String {
    let left = u128::from(available.min(capacity)) * 100 / u128::from(capacity.max(1));
    format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by \
         deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, \
         volumes, or other data.",
        100 - left,
        size(capacity)
    )
}

/// Formats a size in its largest unit.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10 + (1_u128 << (shift - 1))) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Records about images. Losing them with the agent does no harm.
#[derive(Clone, Debug, Default)]
pub struct Records {
    images: BTreeMap<String, Record>,
    looked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// `None` for images from before the agent's start.
    detected: Option<Timestamp>,
    used: Option<Timestamp>,
}

impl Records {
    /// Records the existing images, by id, and those among them that pods use.
    pub fn note<'a>(&mut self, images: impl Iterator<Item = &'a str>, in_use: &BTreeSet<String>, now: Timestamp) {
        let detected = self.looked.then_some(now);
        self.looked = true;
        let mut known = std::mem::take(&mut self.images);
        for id in images {
            let mut record = known.remove(id).unwrap_or(Record { detected, used: None });
            if in_use.contains(id) {
                record.used = Some(now);
            }
            self.images.insert(id.to_owned(), record);
        }
    }

    /// Returns the images to remove: not in use at the last check and old enough. Least recently
    /// used ones first, and the oldest of these first.
    pub fn unused(&self, in_use: &BTreeSet<String>, youth: i64, now: Timestamp) -> Vec<String> {
        let is_old = |record: &Record| {
            let age = record.detected.map(|at| now.duration_since(at).as_millis());
            age.is_none_or(|age| age >= i128::from(youth))
        };
        let mut all: Vec<(&String, &Record)> = self
            .images
            .iter()
            .filter(|(id, record)| !in_use.contains(*id) && is_old(record))
            .collect();
        all.sort_by_key(|(_, record)| (record.used, record.detected));
        all.into_iter().map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::after;

    #[test]
    fn so_much_is_freed_that_the_lower_mark_is_reached() {
        let policy = Policy::new(85, 80, 0).unwrap();
        for (capacity, available, expected) in [
            (1000, 160, None),
            (1000, 159, Some(41)),
            (1000, 150, Some(50)),
            (1000, 0, Some(200)),
            (0, 0, None),
            (1000, 2000, None),
            (u64::MAX, 1, Some(3_689_348_814_741_910_322)),
        ] {
            assert_eq!(
                policy.surplus(capacity, available),
                expected,
                "{available} of {capacity}"
            );
        }
        assert_eq!(Policy::new(100, 0, 0).unwrap().surplus(1000, 0), None, "100 is never");
        assert_eq!(Policy::new(80, 85, 0), Err(InvalidPolicy::Order(85, 80)));
        assert_eq!(
            Policy::new(101, 85, 0).unwrap_err().to_string(),
            "invalid HighThresholdPercent 101, must be in range [0-100]"
        );
    }

    #[test]
    fn a_disk_that_stays_full_is_told_with_its_size() {
        for (capacity, available, expected) in [
            (10 << 30, 1 << 29, "(95% of 10.0 GiB used)"),
            (1_600_000_000_000, 0, "(100% of 1.5 TiB used)"),
            (1023, 1023, "(0% of 1023 B used)"),
        ] {
            let told = shortage(capacity, available, 7);
            assert!(told.contains(expected) && told.contains("(freed 7 bytes)"), "{told}");
        }
    }

    #[test]
    fn what_was_used_least_lately_goes_first_and_new_images_stay() {
        let at = |second| after(Timestamp::UNIX_EPOCH, second);
        let used = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let mut records = Records::default();
        records.note(["a", "b", "c"].into_iter(), &used(&["a", "b"]), at(0));
        records.note(["a", "b", "c", "d"].into_iter(), &used(&["a"]), at(60));
        let unused = |records: &Records, now| records.unused(&used(&["x"]), 120_000, at(now)).join(" ");
        assert_eq!(unused(&records, 60), "c b a");
        assert_eq!(unused(&records, 179), "c b a");
        assert_eq!(unused(&records, 180), "c d b a");
        assert_eq!(records.unused(&used(&["c"]), 120_000, at(180)).join(" "), "d b a");
        records.note(["d"].into_iter(), &used(&[]), at(200));
        assert_eq!(unused(&records, 200), "d");
    }
}
