//! `/metrics`: metrics of the server, under upstream's names.
//!
//! Labels are static texts: counting a request allocates nothing, and how many series there are is bounded by the table of
//! kinds.

mod admission;
mod aggregator;
mod labels;
mod page;
mod policies;
mod process;
mod slis;
mod uses;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use api::Registration;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use self::admission::Admission;
use self::aggregator::Aggregator;
use self::labels::{Answer, InFlight, Plugin, Request, Resource, Stored, Subject, Termination, Watched};
use self::policies::Policies;
use self::process::Process;
use self::slis::Slis;
use self::uses::Uses;
use self::webhooks::Webhooks;
use crate::discovery::version::Version;
use crate::request::info::RequestInfo;
use crate::server::flow_control::Numbers;

pub(crate) use self::admission::{Half, Watch};
pub(crate) use self::labels::Manner;
pub(crate) use self::policies::Checked;
pub(crate) use self::webhooks::{Called, Converted};

/// Content type of the page: the text format of Prometheus, as upstream serves it.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the duration buckets, in seconds: upstream's, and finer ones below.
const SECONDS: [f64; 27] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0,
    6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper bounds of the sizes of answers, in bytes.
const BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Upper bounds of what is left of a certificate's life, in seconds
/// (`staging/src/k8s.io/apiserver/pkg/authentication/request/x509/x509.go`).
const LIFETIMES: [f64; 14] = [
    0.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 345_600.0, 604_800.0, 2.592e6, 7.776e6,
    1.5552e7, 3.1104e7,
];

/// Upstream's help texts, each after the name of its series without `_total`. The final dot is added
/// on output.
const HELP: &str = include_str!("metrics/help.txt");

/// Help text of a series.
fn help(name: &str) -> &'static str {
    let text = |line: &'static str| line.strip_prefix(name)?.strip_prefix(' ');
    HELP.lines().find_map(text).unwrap_or_default()
}

/// Metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    answers: Family<Answer, Counter>,
    terminations: Family<Termination, Counter>,
    durations: Family<Request, Histogram, fn() -> Histogram>,
    sizes: Family<Subject, Histogram, fn() -> Histogram>,
    lasting: Family<Subject, Gauge>,
    events: Family<Watched, Counter>,
    in_flight: Family<InFlight, Gauge>,
    stored: Family<Stored, Gauge>,
    resources: Family<Resource, Gauge>,
    database: Family<Vec<(&'static str, &'static str)>, Gauge>,
    pub(crate) slis: Slis,
    pub(crate) admission: Arc<Admission>,
    pub(crate) access: Access,
    /// Remaining lifetimes of the certificates by which requests were authenticated.
    pub(crate) lifetimes: Histogram,
    pub(crate) uses: Uses,
    pub(crate) webhooks: Webhooks,
    pub(crate) flow: Arc<Numbers>,
    pub(crate) policies: Policies,
    pub(crate) aggregator: Aggregator,
    unarchived: Gauge,
    audited: Counter,
    unaudited: Family<Plugin, Counter>,
    process: Process,
}

/// Metrics of authentication and authorization.
#[derive(Clone, Default)]
pub(crate) struct Access {
    authentications: Family<Outcome, Counter>,
    users: Family<[(&'static str, &'static str); 1], Counter>,
    authorizations: Family<Outcome, Counter>,
}

/// `result`.
type Outcome = [(&'static str, &'static str); 1];

impl Access {
    /// Counts an authentication, anonymous ones included; `None` is a failed one.
    pub(crate) fn authenticated(&self, user: Option<&str>) {
        let result = if user.is_some() { "success" } else { "error" };
        self.authentications.get_or_create(&[("result", result)]).inc();
        let Some(name) = user else { return };
        let known = ["admin", "client", "kube_proxy", "kubelet", "kubelets", "none"];
        let other = if name.contains('@') { "email_id" } else { "other" };
        let name = known.into_iter().find(|known| *known == name).unwrap_or(other);
        self.users.get_or_create(&[("username", name)]).inc();
    }

    /// Counts a decision of authorization.
    pub(crate) fn authorized(&self, is_allowed: bool) {
        let result = if is_allowed { "allowed" } else { "no-opinion" };
        self.authorizations.get_or_create(&[("result", result)]).inc();
    }
}

/// An answer that lasts is counted until this is dropped.
pub(crate) struct Lasting(Gauge);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new(version: &Version) -> Self {
        let mut registry = Registry::default();
        let of_seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let of_bytes: fn() -> Histogram = || Histogram::new(BYTES);
        let metrics = Self {
            answers: Family::default(),
            terminations: Family::default(),
            durations: Family::new_with_constructor(of_seconds),
            sizes: Family::new_with_constructor(of_bytes),
            lasting: Family::default(),
            events: Family::default(),
            in_flight: Family::default(),
            stored: Family::default(),
            resources: Family::default(),
            database: Family::default(),
            slis: Slis::new(),
            admission: Arc::new(Admission::new()),
            access: Access::default(),
            lifetimes: Histogram::new(LIFETIMES),
            uses: Uses::default(),
            webhooks: Webhooks::default(),
            flow: Arc::default(),
            policies: Policies::default(),
            aggregator: Aggregator::default(),
            unarchived: Gauge::default(),
            audited: Counter::default(),
            unaudited: Family::default(),
            process: Process::new(&mut registry),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        build(version, &mut registry);
        Self { registry, ..metrics }
    }

    fn register(&self, registry: &mut Registry) {
        fn add(registry: &mut Registry, name: &str, metric: impl Metric) {
            registry.register(name, help(name), metric);
        }
        add(registry, "apiserver_request", self.answers.clone());
        add(registry, "apiserver_request_terminations", self.terminations.clone());
        add(registry, "apiserver_request_duration_seconds", self.durations.clone());
        add(
            registry,
            "apiserver_request_sli_duration_seconds",
            self.durations.clone(),
        );
        add(registry, "apiserver_response_sizes", self.sizes.clone());
        add(registry, "apiserver_longrunning_requests", self.lasting.clone());
        add(registry, "apiserver_watch_events", self.events.clone());
        add(registry, "apiserver_current_inflight_requests", self.in_flight.clone());
        add(registry, "apiserver_storage_objects", self.stored.clone());
        add(registry, "apiserver_resource_objects", self.resources.clone());
        add(registry, "apiserver_storage_size_bytes", self.database.clone());
        add(registry, "kubernetes_healthcheck", self.slis.checks.clone());
        add(registry, "kubernetes_healthchecks", self.slis.all_checked());
        add(registry, "skiff_history_archive_failing", self.unarchived.clone());
        add(registry, "apiserver_audit_event", self.audited.clone());
        add(registry, "apiserver_audit_error", self.unaudited.clone());
        add(registry, "authentication_attempts", self.access.authentications.clone());
        add(registry, "authenticated_user_requests", self.access.users.clone());
        add(registry, "authorization_attempts", self.access.authorizations.clone());
        add(
            registry,
            "apiserver_client_certificate_expiration_seconds",
            self.lifetimes.clone(),
        );
        self.uses.register(registry);
        self.webhooks.register(registry);
        self.policies.register(registry);
        self.aggregator.register(registry);
        registry.register_collector(Box::new(Arc::clone(&self.admission)));
        registry.register_collector(Box::new(Arc::clone(&self.flow)));
    }

    /// Counts one answer. `took` is left out for long-running requests, `bytes` where the size is
    /// unknown.
    pub(crate) fn count(
        &self,
        (info, row, manner): (&RequestInfo, Option<&Registration>, Manner),
        code: u16,
        took: Option<Duration>,
        bytes: Option<u64>,
    ) {
        let subject = Subject::of(info, row, manner);
        let request = subject.asked(manner);
        self.answers.get_or_create(&request.answered(code)).inc();
        if let Some(took) = took {
            self.durations.get_or_create(&request).observe(took.as_secs_f64());
        }
        if let Some(bytes) = bytes.filter(|_| took.is_some() && subject.is_read()) {
            let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.sizes.get_or_create(&subject).observe(bytes);
        }
    }

    /// Counts a request that was refused for lack of resources (`RecordRequestTermination`,
    /// `staging/src/k8s.io/apiserver/pkg/endpoints/metrics/metrics.go`).
    pub(crate) fn terminated(&self, (info, row, manner): (&RequestInfo, Option<&Registration>, Manner), code: u16) {
        let subject = Subject::of(info, row, manner);
        let code = code.into();
        self.terminations.get_or_create(&Termination { code, subject }).inc();
    }

    /// Counts an answer as long as it lasts.
    pub(crate) fn lasting(&self, (info, row, manner): (&RequestInfo, Option<&Registration>, Manner)) -> Lasting {
        let gauge = self.lasting.get_or_create(&Subject::of(info, row, manner)).clone();
        gauge.inc();
        Lasting(gauge)
    }

    /// Counts watch events of a kind.
    pub(crate) fn events(&self, row: &Registration) -> Counter {
        let watched = Watched {
            group: row.group,
            version: row.version,
            resource: row.plural,
        };
        self.events.get_or_create(&watched).clone()
    }
}

/// Registers the build information, as labels.
fn build(version: &Version, registry: &mut Registry) {
    let info = Family::<Vec<(&'static str, String)>, Gauge>::default();
    let labels = [
        ("build_date", &version.build_date),
        ("compiler", &version.compiler),
        ("git_commit", &version.git_commit),
        ("git_tree_state", &version.git_tree_state),
        ("git_version", &version.git_version),
        ("go_version", &version.go_version),
        ("major", &version.major),
        ("minor", &version.minor),
        ("platform", &version.platform),
    ];
    let labels = labels.map(|(name, value)| (name, value.clone()));
    info.get_or_create(&labels.to_vec()).set(1);
    registry.register("kubernetes_build_info", help("kubernetes_build_info"), info);
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;

    use super::page::plain;
    use super::*;

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let metrics = Metrics::new(&Version::default());
        metrics.lifetimes.observe(8e6);
        let mut page = String::new();
        text::encode(&mut page, &metrics.registry).unwrap();
        let page = plain(&page);
        for line in ["{le=\"1800\"} 0\n", "{le=\"7.776e+06\"} 0\n", "{le=\"1.5552e+07\"} 1\n"] {
            let line = format!("apiserver_client_certificate_expiration_seconds_bucket{line}");
            assert!(page.contains(&line), "{line}\n{page}");
        }
    }

    #[test]
    fn requests_that_are_not_taken_are_told() {
        let metrics = Metrics::new(&Version::default());
        let info = RequestInfo {
            is_resource: true,
            verb: "list",
            namespace: "default".to_owned(),
            ..RequestInfo::default()
        };
        metrics.terminated((&info, api::find("", "v1", "pods"), Manner::default()), 429);
        let mut page = String::new();
        text::encode(&mut page, &metrics.registry).unwrap();
        let page = plain(&page);
        let line = "apiserver_request_terminations_total{code=\"429\",verb=\"LIST\",group=\"\",version=\"v1\",\
                    resource=\"pods\",subresource=\"\",scope=\"namespace\",component=\"apiserver\"} 1\n";
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn requests_are_counted_under_upstreams_names() {
        let metrics = Metrics::new(&Version::default());
        let info = RequestInfo {
            is_resource: true,
            verb: "list",
            namespace: "default".to_owned(),
            ..RequestInfo::default()
        };
        let took = Some(Duration::from_millis(2));
        let row = api::find("", "v1", "pods");
        let asked = (&info, row, Manner::default());
        metrics.count(asked, 200, took, Some(1500));
        metrics.count(asked, 200, took, None);
        let watch = RequestInfo {
            verb: "watch",
            ..info.clone()
        };
        let one = metrics.lasting((&watch, row, Manner::default()));
        drop(metrics.lasting((&watch, row, Manner::default())));
        metrics.events(row.unwrap()).inc();
        let mut watch = Watch::start(&metrics.admission, Half::Admit, true);
        watch.lap("LimitRanger", false);
        watch.lap("Priority", true);
        watch.stop(true);
        metrics.access.authenticated(Some("jane"));
        metrics.access.authorized(false);
        let mut page = String::new();
        text::encode(&mut page, &metrics.registry).unwrap();
        drop(one);
        let about = r#"verb="LIST",group="",version="v1",resource="pods",subresource="",scope="namespace",component="apiserver""#;
        let line = format!("apiserver_request_total{{code=\"200\",{about},dry_run=\"\"}} 2\n");
        let lasting = about.replace("LIST", "WATCH");
        let page = plain(&page);
        for line in [
            line.as_str(),
            &format!("apiserver_response_sizes_bucket{{le=\"1000\",{about}}} 0\n"),
            &format!("apiserver_response_sizes_bucket{{le=\"10000\",{about}}} 1\n"),
            &format!("apiserver_longrunning_requests{{{lasting}}} 1\n"),
            "apiserver_watch_events_total{group=\"\",version=\"v1\",resource=\"pods\"} 1\n",
            "apiserver_request_sli_duration_seconds_bucket{le=\"5\",",
            "kubernetes_build_info{build_date=\"1970-01-01T00:00:00Z\",compiler=\"rustc\",",
            "process_start_time_seconds ",
            "process_max_fds ",
            "process_virtual_memory_bytes ",
            "apiserver_admission_controller_admission_duration_seconds_count{name=\"LimitRanger\",operation=\"CREATE\",\
             rejected=\"false\",type=\"admit\"} 1\n",
            "apiserver_admission_controller_admission_duration_seconds_bucket{le=\"0.005\",name=\"Priority\",\
             operation=\"CREATE\",rejected=\"true\",type=\"admit\"} 1\n",
            "apiserver_admission_step_admission_duration_seconds_bucket{le=\"+Inf\",operation=\"CREATE\",rejected=\"true\",\
             type=\"admit\"} 1\n",
            "authentication_attempts{result=\"success\"} 1\n",
            "authenticated_user_requests{username=\"other\"} 1\n",
            "authorization_attempts_total{result=\"no-opinion\"} 1\n",
            "apiserver_audit_event_total 0\n",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        assert!(page.contains("# TYPE apiserver_request_total counter\n"), "{page}");
        let help = "# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb,";
        assert!(page.contains(help), "{page}");
        assert!(
            page.lines()
                .all(|line| !line.starts_with("# HELP") || line.contains('[') || line.contains(" process_")),
            "{page}"
        );
        assert!(page.contains("# TYPE process_cpu_seconds_total counter\n"), "{page}");
        assert!(!page.contains("# EOF"), "{page}");
        assert!(
            page.contains("apiserver_request_duration_seconds_bucket{le=\"0.0025\","),
            "{page}"
        );
    }
}
