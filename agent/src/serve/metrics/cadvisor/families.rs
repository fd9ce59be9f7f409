//! Metrics of each control group.

use std::time::Duration;

use runtime::{Details, Transfers, Usage};

use super::{Disk, Limits, Subject, family};
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
    let plain = |name, value: fn(&Subject) -> Option<f64>| family(name, each(all, &[], value));
    let total = each(all, &[("cpu", "total")], |of| seconds(of.usage.cpu));
    vec![
        family("container_cpu_usage_seconds_total", total),
        plain("container_cpu_user_seconds_total", |of| {
            seconds(of.usage.details.cpu_user)
        }),
        plain("container_cpu_system_seconds_total", |of| {
            seconds(of.usage.details.cpu_system)
        }),
        plain("container_cpu_cfs_periods_total", |of| {
            of.usage.details.periods.map(number)
        }),
        plain("container_cpu_cfs_throttled_periods_total", |of| {
            of.usage.details.throttled_periods.map(number)
        }),
        plain("container_cpu_cfs_throttled_seconds_total", |of| {
            seconds(of.usage.details.throttled)
        }),
        plain("container_threads", |of| of.usage.processes.map(number)),
    ]
}

pub(super) fn memory(all: &[Subject]) -> Vec<Family<'static>> {
    type Row = (&'static str, fn(&Usage) -> Option<u64>);
    let rows: [Row; 9] = [
        ("container_memory_usage_bytes", |of| of.memory),
        ("container_memory_working_set_bytes", |of| of.working_set),
        ("container_memory_rss", |of| of.rss),
        ("container_memory_cache", |of| of.details.cache),
        ("container_memory_mapped_file", |of| of.details.mapped),
        ("container_memory_swap", |of| of.details.swap),
        ("container_memory_max_usage_bytes", |of| of.memory_peak),
        ("container_memory_failcnt", |of| of.details.limit_hits),
        ("container_oom_events_total", |of| of.details.oom_kills),
    ];
    let row = |(name, value): Row| family(name, each(all, &[], |of| value(&of.usage).map(number)));
    rows.into_iter().map(row).chain([page_faults(all)]).collect()
}

fn page_faults(all: &[Subject]) -> Family<'static> {
    let faults = |kind, count: fn(&Usage) -> Option<u64>| {
        let labels = [("failure_type", kind), ("scope", "hierarchy")];
        each(all, &labels, |of| count(&of.usage).map(number))
    };
    let mut samples = faults("pgfault", |usage| usage.page_faults);
    samples.extend(faults("pgmajfault", |usage| usage.major_page_faults));
    family("container_memory_failures_total", samples)
}

pub(super) fn stalls(all: &[Subject]) -> impl Iterator<Item = Family<'static>> {
    type Row = (&'static str, fn(&Details) -> Option<Duration>);
    let rows: [Row; 6] = [
        ("container_pressure_cpu_stalled_seconds_total", |of| {
            Some(of.cpu_stalls?.full.total)
        }),
        ("container_pressure_cpu_waiting_seconds_total", |of| {
            Some(of.cpu_stalls?.some.total)
        }),
        ("container_pressure_memory_stalled_seconds_total", |of| {
            Some(of.memory_stalls?.full.total)
        }),
        ("container_pressure_memory_waiting_seconds_total", |of| {
            Some(of.memory_stalls?.some.total)
        }),
        ("container_pressure_io_stalled_seconds_total", |of| {
            Some(of.io_stalls?.full.total)
        }),
        ("container_pressure_io_waiting_seconds_total", |of| {
            Some(of.io_stalls?.some.total)
        }),
    ];
    let row = move |(name, value): Row| family(name, each(all, &[], |of| seconds(value(&of.usage.details))));
    rows.into_iter().map(row)
}

pub(super) fn network(all: &[Subject]) -> Vec<Family<'static>> {
    type Row = (&'static str, fn(&Interface) -> u64);
    let rows: [Row; 8] = [
        ("container_network_receive_bytes_total", |of| of.received.bytes),
        ("container_network_receive_packets_total", |of| of.received.packets),
        ("container_network_receive_packets_dropped_total", |of| {
            of.received.dropped
        }),
        ("container_network_receive_errors_total", |of| of.received.errors),
        ("container_network_transmit_bytes_total", |of| of.sent.bytes),
        ("container_network_transmit_packets_total", |of| of.sent.packets),
        ("container_network_transmit_packets_dropped_total", |of| of.sent.dropped),
        ("container_network_transmit_errors_total", |of| of.sent.errors),
    ];
    let row = |(name, value): Row| {
        let samples = all.iter().flat_map(|subject| {
            let one = move |of: &Interface| (subject.labels(&[("interface", &of.name)]), Some(number(value(of))));
            subject.interfaces.iter().map(one)
        });
        family(name, samples)
    };
    rows.into_iter().map(row).collect()
}

pub(super) fn disks(all: &[Subject], device: &str) -> Vec<Family<'static>> {
    type Row = (&'static str, fn(&Disk) -> f64);
    let rows: [Row; 4] = [
        ("container_fs_usage_bytes", |of| of.used),
        ("container_fs_limit_bytes", |of| of.size),
        ("container_fs_inodes_total", |of| of.inodes),
        ("container_fs_inodes_free", |of| of.inodes_free),
    ];
    let row = |(name, value): Row| {
        let samples = each(all, &[("device", device)], |of| of.disk.as_ref().map(value));
        family(name, samples)
    };
    rows.into_iter().map(row).collect()
}

/// Reads from disks, and writes to them.
pub(super) fn transfers(all: &[Subject]) -> Vec<Family<'static>> {
    type Row = (&'static str, fn(&Transfers) -> u64);
    let rows: [Row; 4] = [
        ("container_fs_reads_bytes_total", |of| of.bytes_read),
        ("container_fs_reads_total", |of| of.reads),
        ("container_fs_writes_bytes_total", |of| of.bytes_written),
        ("container_fs_writes_total", |of| of.writes),
    ];
    let row = |(name, value): Row| {
        let samples = all.iter().flat_map(|subject| {
            let one = move |(device, of): (&String, &Transfers)| {
                (subject.labels(&[("device", device)]), Some(number(value(of))))
            };
            subject.transfers.iter().map(one)
        });
        family(name, samples)
    };
    rows.into_iter().map(row).collect()
}

/// Resource limits of containers, and when they were first and last seen.
pub(super) fn specified(all: &[Subject], now: f64) -> Vec<Family<'static>> {
    type Row = (&'static str, fn(&Limits) -> Option<f64>);
    let rows: [Row; 4] = [
        ("container_spec_cpu_shares", |of| of.shares),
        ("container_spec_cpu_period", |of| of.processors.map(|_| 100_000.0)),
        ("container_spec_cpu_quota", |of| {
            of.processors.map(|cores| cores * 100_000.0)
        }),
        ("container_spec_memory_limit_bytes", |of| of.memory),
    ];
    let row = |(name, value): Row| family(name, each(all, &[], |of| value(&of.limits)));
    let mut families: Vec<_> = rows.into_iter().map(row).collect();
    families.push(family("container_start_time_seconds", each(all, &[], |of| of.started)));
    families.push(family("container_last_seen", each(all, &[], |_| Some(now))));
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_told_by_device() {
        let names = ["app", "nginx", "c1", "default", "web"];
        let mut subject = Subject::new("/skiff/p/c1".to_owned(), names, &Usage::default());
        let of_disk = Transfers {
            bytes_written: 8192,
            writes: 2,
            ..Transfers::default()
        };
        subject.transfers.insert("/dev/vda".to_owned(), of_disk);
        let mut text = String::new();
        for family in transfers(&[subject]) {
            family.write(&mut text, None);
        }
        let subject = "container=\"app\",device=\"/dev/vda\",id=\"/skiff/p/c1\",image=\"nginx\",name=\"c1\",\
                       namespace=\"default\",pod=\"web\"";
        for line in [
            format!("container_fs_reads_total{{{subject}}} 0"),
            format!("container_fs_writes_total{{{subject}}} 2"),
            format!("container_fs_writes_bytes_total{{{subject}}} 8192"),
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }
}
