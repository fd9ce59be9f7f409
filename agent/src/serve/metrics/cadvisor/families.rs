//! Metrics of each control group.

use std::time::Duration;

use runtime::{Details, Usage};

use super::{Disk, Limits, Subject};
use crate::serve::metrics::network::Interface;
use crate::serve::metrics::prometheus::{Family, number};

fn each(
    subjects: &[Subject],
    more: &[(&str, &str)],
    value: impl Fn(&Subject) -> Option<f64>,
) -> Vec<(String, Option<f64>)> {
    let sample = |subject: &Subject| (subject.labels(more), value(subject));
    subjects.iter().map(sample).collect()
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

pub(super) fn processors(all: &[Subject]) -> Vec<Family<'static>> {
    let total = each(all, &[("cpu", "total")], |of| seconds(of.usage.cpu));
    let plain = |value: fn(&Subject) -> Option<f64>| each(all, &[], value);
    vec![
        Family::new(
            "counter",
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed in seconds.",
            total,
        ),
        Family::new(
            "counter",
            "container_cpu_user_seconds_total",
            "Cumulative user cpu time consumed in seconds.",
            plain(|of| seconds(of.usage.details.cpu_user)),
        ),
        Family::new(
            "counter",
            "container_cpu_system_seconds_total",
            "Cumulative system cpu time consumed in seconds.",
            plain(|of| seconds(of.usage.details.cpu_system)),
        ),
        Family::new(
            "counter",
            "container_cpu_cfs_periods_total",
            "Number of elapsed enforcement period intervals.",
            plain(|of| of.usage.details.periods.map(number)),
        ),
        Family::new(
            "counter",
            "container_cpu_cfs_throttled_periods_total",
            "Number of throttled period intervals.",
            plain(|of| of.usage.details.throttled_periods.map(number)),
        ),
        Family::new(
            "counter",
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
            plain(|of| seconds(of.usage.details.throttled)),
        ),
        Family::new(
            "gauge",
            "container_threads",
            "Number of threads running inside the container",
            plain(|of| of.usage.processes.map(number)),
        ),
    ]
}

pub(super) fn memory(all: &[Subject]) -> Vec<Family<'static>> {
    type Row = (&'static str, &'static str, &'static str, fn(&Usage) -> Option<u64>);
    let rows: [Row; 9] = [
        (
            "gauge",
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            |of| of.memory,
        ),
        (
            "gauge",
            "container_memory_working_set_bytes",
            "Current working set in bytes.",
            |of| of.working_set,
        ),
        ("gauge", "container_memory_rss", "Size of RSS in bytes.", |of| of.rss),
        (
            "gauge",
            "container_memory_cache",
            "Number of bytes of page cache memory.",
            |of| of.details.cache,
        ),
        (
            "gauge",
            "container_memory_mapped_file",
            "Size of memory mapped files in bytes.",
            |of| of.details.mapped,
        ),
        (
            "gauge",
            "container_memory_swap",
            "Container swap usage in bytes.",
            |of| of.details.swap,
        ),
        (
            "gauge",
            "container_memory_max_usage_bytes",
            "Maximum memory usage recorded in bytes",
            |of| of.memory_peak,
        ),
        (
            "counter",
            "container_memory_failcnt",
            "Number of memory usage hits limits",
            |of| of.details.limit_hits,
        ),
        (
            "counter",
            "container_oom_events_total",
            "Count of out of memory events observed for the container",
            |of| of.details.oom_kills,
        ),
    ];
    let row = |(kind, name, help, value): Row| {
        Family::new(kind, name, help, each(all, &[], |of| value(&of.usage).map(number)))
    };
    rows.into_iter().map(row).chain([page_faults(all)]).collect()
}

fn page_faults(all: &[Subject]) -> Family<'static> {
    let faults = [("pgfault", false), ("pgmajfault", true)]
        .into_iter()
        .flat_map(|(kind, major)| {
            each(all, &[("failure_type", kind), ("scope", "hierarchy")], |of| {
                let count = if major {
                    of.usage.major_page_faults
                } else {
                    of.usage.page_faults
                };
                count.map(number)
            })
        });
    let help = "Cumulative count of memory allocation failures.";
    Family::new("counter", "container_memory_failures_total", help, faults)
}

pub(super) fn stalls(all: &[Subject]) -> impl Iterator<Item = Family<'static>> {
    type Row = (&'static str, &'static str, fn(&Details) -> Option<Duration>);
    let rows: [Row; 6] = [
        (
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
            |of| Some(of.cpu_stalls?.full.total),
        ),
        (
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
            |of| Some(of.cpu_stalls?.some.total),
        ),
        (
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
            |of| Some(of.memory_stalls?.full.total),
        ),
        (
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
            |of| Some(of.memory_stalls?.some.total),
        ),
        (
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
            |of| Some(of.io_stalls?.full.total),
        ),
        (
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
            |of| Some(of.io_stalls?.some.total),
        ),
    ];
    rows.into_iter().map(move |(name, help, value)| {
        Family::new(
            "counter",
            name,
            help,
            each(all, &[], |of| seconds(value(&of.usage.details))),
        )
    })
}

pub(super) fn network(all: &[Subject]) -> Vec<Family<'static>> {
    type Row = (&'static str, &'static str, fn(&Interface) -> u64);
    let rows: [Row; 8] = [
        (
            "container_network_receive_bytes_total",
            "Cumulative count of bytes received",
            |of| of.received.bytes,
        ),
        (
            "container_network_receive_packets_total",
            "Cumulative count of packets received",
            |of| of.received.packets,
        ),
        (
            "container_network_receive_packets_dropped_total",
            "Cumulative count of packets dropped while receiving",
            |of| of.received.dropped,
        ),
        (
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
            |of| of.received.errors,
        ),
        (
            "container_network_transmit_bytes_total",
            "Cumulative count of bytes transmitted",
            |of| of.sent.bytes,
        ),
        (
            "container_network_transmit_packets_total",
            "Cumulative count of packets transmitted",
            |of| of.sent.packets,
        ),
        (
            "container_network_transmit_packets_dropped_total",
            "Cumulative count of packets dropped while transmitting",
            |of| of.sent.dropped,
        ),
        (
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
            |of| of.sent.errors,
        ),
    ];
    let row = |(name, help, value): Row| {
        let samples = all.iter().flat_map(|subject| {
            let one = move |of: &Interface| (subject.labels(&[("interface", &of.name)]), Some(number(value(of))));
            subject.interfaces.iter().map(one)
        });
        Family::new("counter", name, help, samples)
    };
    rows.into_iter().map(row).collect()
}

pub(super) fn disks(all: &[Subject], device: &str) -> Vec<Family<'static>> {
    type Row = (&'static str, &'static str, fn(&Disk) -> f64);
    let rows: [Row; 4] = [
        (
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
            |of| of.used,
        ),
        (
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
            |of| of.size,
        ),
        ("container_fs_inodes_total", "Number of Inodes", |of| of.inodes),
        ("container_fs_inodes_free", "Number of available Inodes", |of| {
            of.inodes_free
        }),
    ];
    let row = |(name, help, value): Row| {
        let samples = each(all, &[("device", device)], |of| of.disk.as_ref().map(value));
        Family::new("gauge", name, help, samples)
    };
    rows.into_iter().map(row).collect()
}

/// Resource limits of containers, and when they were first and last seen.
pub(super) fn specified(all: &[Subject], now: f64) -> Vec<Family<'static>> {
    type Row = (&'static str, &'static str, fn(&Limits) -> Option<f64>);
    let rows: [Row; 4] = [
        ("container_spec_cpu_shares", "CPU share of the container.", |of| {
            of.shares
        }),
        ("container_spec_cpu_period", "CPU period of the container.", |of| {
            of.processors.map(|_| 100_000.0)
        }),
        ("container_spec_cpu_quota", "CPU quota of the container.", |of| {
            of.processors.map(|cores| cores * 100_000.0)
        }),
        (
            "container_spec_memory_limit_bytes",
            "Memory limit for the container.",
            |of| of.memory,
        ),
    ];
    let row = |(name, help, value): Row| Family::new("gauge", name, help, each(all, &[], |of| value(&of.limits)));
    let mut families: Vec<_> = rows.into_iter().map(row).collect();
    families.push(Family::new(
        "gauge",
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        each(all, &[], |of| of.started),
    ));
    families.push(Family::new(
        "gauge",
        "container_last_seen",
        "Last time a container was seen by the exporter",
        each(all, &[], |_| Some(now)),
    ));
    families
}
