//! `/metrics`: what the server has done, in numbers, under the names that upstream uses.
//!
//! Labels are static texts: counting a request allocates nothing, and how many series there are is bounded by the table of
//! kinds.

use std::borrow::Cow;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::Registration;
use api::kind::{Scope, Verbs};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use store::ListAt;

use crate::request::RequestInfo;
use crate::server::Shared;
use crate::{storage, subresource};

/// Of the page: the text format of Prometheus, as upstream serves it.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the durations that are told apart, in seconds.
const SECONDS: [f64; 12] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answer {
    code: u32,
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InFlight {
    request_kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stored {
    resource: String,
}

/// All series of a server.
pub(crate) struct Metrics {
    registry: Registry,
    answers: Family<Answer, Counter>,
    durations: Family<Request, Histogram, fn() -> Histogram>,
    in_flight: Family<InFlight, Gauge>,
    stored: Family<Stored, Gauge>,
    process: Process,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let answers = Family::<Answer, Counter>::default();
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and HTTP code",
            answers.clone(),
        );
        let new: fn() -> Histogram = || Histogram::new(SECONDS);
        let durations = Family::new_with_constructor(new);
        registry.register(
            "apiserver_request_duration_seconds",
            "Time from a request to its answer; watches and streams are left out",
            durations.clone(),
        );
        let in_flight = Family::default();
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests that are being answered, and lasting ones apart",
            in_flight.clone(),
        );
        let stored = Family::default();
        registry.register("apiserver_storage_objects", "Stored objects", stored.clone());
        let process = Process::new(&mut registry);
        Self {
            registry,
            answers,
            durations,
            in_flight,
            stored,
            process,
        }
    }

    /// Counts one answer. `took` is left out for answers that last.
    pub(crate) fn count(
        &self,
        info: &RequestInfo,
        row: Option<&'static Registration>,
        code: u16,
        took: Option<Duration>,
    ) {
        let request = Request::of(info, row);
        self.answers.get_or_create(&request.answered(code)).inc();
        if let Some(took) = took {
            self.durations.get_or_create(&request).observe(took.as_secs_f64());
        }
    }

    /// The text that Prometheus reads.
    pub(crate) async fn text(&self, shared: &Shared) -> String {
        for (kind, number) in shared.gates.in_flight() {
            let gauge = self.in_flight.get_or_create(&InFlight { request_kind: kind });
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        for row in api::KINDS.iter().filter(|row| row.verbs == Verbs::All && !row.converts) {
            let listed = shared
                .store
                .list(&storage::prefix(row, ""), ListAt::Latest, None, Some(0))
                .await;
            let number = listed.map_or(0, |list| list.remaining);
            let resource = if row.group.is_empty() {
                row.plural.to_owned()
            } else {
                format!("{}.{}", row.plural, row.group)
            };
            let gauge = self.stored.get_or_create(&Stored { resource });
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.process.read();
        let mut page = String::new();
        // Writing to a String cannot fail.
        text::encode(&mut page, &self.registry).unwrap_or_default();
        plain(&page)
    }
}

/// The page in Prometheus's own format, whose counters have the names of their samples, out of the newer one.
fn plain(page: &str) -> String {
    let mut lines: Vec<Cow<'_, str>> = Vec::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        let counted = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        let Some(name) = counted else {
            lines.push(line.into());
            continue;
        };
        let help = format!("# HELP {name} ");
        if let Some(last) = lines.last_mut()
            && let Some(text) = last.strip_prefix(&help)
        {
            *last = format!("# HELP {name}_total {text}").into();
        }
        lines.push(format!("# TYPE {name}_total counter").into());
    }
    lines.join("\n") + "\n"
}

impl Request {
    fn of(info: &RequestInfo, row: Option<&'static Registration>) -> Self {
        let scope = if !info.is_resource {
            ""
        } else if !info.name.is_empty() || info.verb == "create" {
            "resource"
        } else if info.namespace.is_empty() || row.is_some_and(|row| row.scope == Scope::Cluster) {
            "cluster"
        } else {
            "namespace"
        };
        let sub = row.and_then(|row| subresource::find(row, &info.subresource));
        Self {
            verb: verb(info.verb),
            group: row.map_or("", |row| row.group),
            version: row.map_or("", |row| row.version),
            resource: row.map_or("", |row| row.plural),
            subresource: sub.map_or("", |sub| sub.name()),
            scope,
            component: "apiserver",
        }
    }

    fn answered(self, code: u16) -> Answer {
        Answer {
            code: code.into(),
            verb: self.verb,
            group: self.group,
            version: self.version,
            resource: self.resource,
            subresource: self.subresource,
            scope: self.scope,
            component: self.component,
        }
    }
}

/// Upstream counts by these names.
fn verb(verb: &'static str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

/// What the kernel knows of this process.
struct Process {
    processor: Counter<f64, AtomicU64>,
    resident: Gauge,
    descriptors: Gauge,
}

impl Process {
    fn new(registry: &mut Registry) -> Self {
        let process = Self {
            processor: Counter::default(),
            resident: Gauge::default(),
            descriptors: Gauge::default(),
        };
        registry.register(
            "process_cpu_seconds",
            "Processor time that the process has used",
            process.processor.clone(),
        );
        registry.register(
            "process_resident_memory_bytes",
            "Memory of the process that is resident",
            process.resident.clone(),
        );
        registry.register("process_open_fds", "Open file descriptors", process.descriptors.clone());
        process
    }

    /// What cannot be read keeps its last value.
    fn read(&self) {
        if let Some((user, system)) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(ticks) {
            let seconds = (user + system) / TICKS;
            self.processor.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        let pages = fs::read_to_string("/proc/self/statm").ok();
        let pages = pages
            .as_deref()
            .and_then(|text| text.split(' ').nth(1)?.parse::<i64>().ok());
        if let Some(pages) = pages {
            self.resident.set(pages * PAGE);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.descriptors.set(i64::try_from(entries.count()).unwrap_or(i64::MAX));
        }
    }
}

/// Of the processor's clock in a second, and bytes of a page: the same on every Linux that this runs on.
const TICKS: f64 = 100.0;
const PAGE: i64 = 4096;

/// User and system time out of `/proc/PID/stat`; the program's name may hold blanks and brackets.
fn ticks(stat: &str) -> Option<(f64, f64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_under_upstreams_names() {
        let metrics = Metrics::new();
        let info = RequestInfo {
            is_resource: true,
            verb: "list",
            namespace: "default".to_owned(),
            ..RequestInfo::default()
        };
        let took = Some(Duration::from_millis(2));
        metrics.count(&info, api::find("", "v1", "pods"), 200, took);
        metrics.count(&info, api::find("", "v1", "pods"), 200, took);
        let mut page = String::new();
        text::encode(&mut page, &metrics.registry).unwrap();
        let line = r#"apiserver_request_total{code="200",verb="LIST",group="",version="v1",resource="pods",subresource="",scope="namespace",component="apiserver"} 2"#;
        let page = plain(&page);
        assert!(page.contains(line), "{page}");
        assert!(page.contains("# TYPE apiserver_request_total counter\n"), "{page}");
        assert!(page.contains("# HELP apiserver_request_total Requests by"), "{page}");
        assert!(page.contains("# TYPE process_cpu_seconds_total counter\n"), "{page}");
        assert!(!page.contains("# EOF"), "{page}");
        assert!(
            page.contains("apiserver_request_duration_seconds_bucket{le=\"0.0025\","),
            "{page}"
        );
    }

    #[test]
    fn processor_time_behind_a_strange_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(ticks(stat), Some((250.0, 50.0)));
    }
}
