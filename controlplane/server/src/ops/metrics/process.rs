//! Metrics of this process, from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

/// Metrics of this process, from `/proc`.
pub(super) struct Process {
    processor: Counter<f64, AtomicU64>,
    resident: Gauge,
    descriptors: Gauge,
    most_descriptors: Gauge,
    virtual_memory: Gauge,
    started: Gauge<f64, AtomicU64>,
}

impl Process {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let process = Self {
            processor: registered(
                registry,
                "process_cpu_seconds",
                "Total user and system CPU time spent in seconds",
            ),
            resident: registered(
                registry,
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
            ),
            descriptors: registered(registry, "process_open_fds", "Number of open file descriptors"),
            most_descriptors: registered(registry, "process_max_fds", "Maximum number of open file descriptors"),
            virtual_memory: registered(registry, "process_virtual_memory_bytes", "Virtual memory size in bytes"),
            started: registered(
                registry,
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds",
            ),
        };
        process.begin();
        process
    }

    /// Sets the values that do not change.
    fn begin(&self) {
        let read = |path: &str| fs::read_to_string(path).ok();
        let booted = read("/proc/stat").and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
            line.trim().parse::<f64>().ok()
        });
        let times = read("/proc/self/stat").as_deref().and_then(times);
        if let (Some(booted), Some(times)) = (booted, times) {
            self.started.set(booted + times.started / TICKS);
        }
        let most = read("/proc/self/limits").and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        });
        if let Some(most) = most {
            self.most_descriptors.set(most);
        }
    }

    /// Updates the values; those that cannot be read keep their last value.
    pub(super) fn read(&self) {
        if let Some(times) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(times) {
            let seconds = (times.user + times.system) / TICKS;
            self.processor.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        let pages = fs::read_to_string("/proc/self/statm").ok();
        for (index, gauge) in [(0, &self.virtual_memory), (1, &self.resident)] {
            let pages = pages
                .as_deref()
                .and_then(|text| text.split(' ').nth(index)?.parse::<i64>().ok());
            if let Some(pages) = pages {
                gauge.set(pages * PAGE);
            }
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.descriptors.set(i64::try_from(entries.count()).unwrap_or(i64::MAX));
        }
    }
}

/// Returns a new metric that the registry encodes.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Clock ticks per second, and bytes of a page: the same on every Linux that this runs on.
const TICKS: f64 = 100.0;
const PAGE: i64 = 4096;

/// Times out of `/proc/PID/stat`, in ticks.
struct Times {
    user: f64,
    system: f64,
    /// Start time of the process since boot.
    started: f64,
}

/// The program's name may hold blanks and brackets.
fn times(stat: &str) -> Option<Times> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = |skipped: usize| fields.nth(skipped)?.parse().ok();
    Some(Times {
        user: next(0)?,
        system: next(0)?,
        started: next(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn processor_time_behind_a_strange_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 9000 1 1";
        let times = times(stat).unwrap();
        assert_eq!((times.user, times.system, times.started), (250.0, 50.0, 9000.0));
    }
}
