//! Durations of image pulls, by the size of the image (`pkg/kubelet/metrics/metrics.go`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::prometheus::{Family, Histogram};

/// Upper bounds of the duration buckets in seconds.
const BOUNDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Names of sizes, and the bytes that an image has more than.
const SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// Durations of successful pulls by the images' sizes.
#[derive(Default)]
pub(crate) struct PullTimes(Mutex<BTreeMap<&'static str, Histogram<{ BOUNDS.len() }>>>);

impl PullTimes {
    /// Counts a pull, with its wait for others, of an image with this many bytes.
    pub(crate) fn count(&self, size: u64, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name(size)).or_default().observe(&BOUNDS, took);
    }

    pub(super) fn family(&self) -> Family<'static> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = all.iter();
        let each = each.flat_map(|(size, took)| took.samples(&BOUNDS, &[("image_size_in_bytes", *size)]));
        Family::new("kubelet_image_pull_duration_seconds", each)
    }
}

fn name(size: u64) -> &'static str {
    let sizes = SIZES.iter().rev();
    sizes
        .copied()
        .find(|(above, _)| size > *above)
        .map_or("N/A", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_are_told_by_the_sizes_of_their_images() {
        let pulls = PullTimes::default();
        for (size, seconds) in [(0, 1), (10 * MIB, 1), (GIB, 7), (GIB + 1, 4000), (200 * GIB, 5)] {
            pulls.count(size, Duration::from_secs(seconds));
        }
        let mut text = String::new();
        pulls.family().write(&mut text, None);
        let name = "kubelet_image_pull_duration_seconds";
        for line in [
            "_bucket{image_size_in_bytes=\"N/A\",le=\"1\"} 1",
            "_count{image_size_in_bytes=\"0-10MB\"} 1",
            "_bucket{image_size_in_bytes=\"500MB-1GB\",le=\"5\"} 0",
            "_bucket{image_size_in_bytes=\"500MB-1GB\",le=\"10\"} 1",
            "_bucket{image_size_in_bytes=\"1GB-5GB\",le=\"3600\"} 0",
            "_bucket{image_size_in_bytes=\"1GB-5GB\",le=\"+Inf\"} 1",
            "_sum{image_size_in_bytes=\"GT100GB\"} 5",
        ] {
            let line = format!("{name}{line}");
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }
}
