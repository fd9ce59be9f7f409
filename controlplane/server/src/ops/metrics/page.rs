//! The pages at `/metrics` and `/metrics/slis`, with what is counted when they are read.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use api::{Registration, Row};
use prometheus_client::encoding::text;
use store::ListAt;

use super::Metrics;
use super::labels::{InFlight, Plugin, Resource, Stored};
use super::slis::Slis;
use crate::ops::health;
use crate::server::shared::Shared;
use crate::storage;

impl Metrics {
    /// The text that Prometheus reads.
    pub(crate) async fn text(&self, shared: &Shared) -> String {
        shared.flow.refresh();
        let lasting = ("lasting", shared.limits.in_flight());
        for (kind, number) in shared.flow.in_flight().into_iter().chain([lasting]) {
            let gauge = self.in_flight.get_or_create(&InFlight { request_kind: kind });
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.slis.look(shared);
        self.aggregator.look(shared.aggregation.availability());
        let table = shared.definitions.current();
        // Of kinds with several versions, that which is stored.
        let is_counted = |row: &Row| match row {
            Row::Program(row) => row.verbs.are_stored() && !row.converts,
            Row::Defined(row) => row.storage.version == row.version,
        };
        for row in table.kinds.rows().filter(is_counted) {
            self.count_stored(shared, &row).await;
        }
        if let Some(sink) = &shared.options.audit {
            self.audited.inner().store(sink.events(), Ordering::Relaxed);
            let failures = sink.failures();
            if failures > 0 {
                let counter = self.unaudited.get_or_create(&Plugin { plugin: "log" });
                counter.inner().store(failures, Ordering::Relaxed);
            }
        }
        if let Some(size) = shared.store.size() {
            let gauge = self.database.get_or_create(&vec![("storage_cluster_id", "sqlite")]);
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
        self.unarchived.set(i64::from(!shared.store.archives()));
        self.process.read();
        let mut page = String::new();
        // Writing to a String cannot fail.
        text::encode(&mut page, &self.registry).unwrap_or_default();
        let mut page = plain(&page);
        if let Some(more) = &shared.options.metrics {
            page.push_str(&more());
        }
        page
    }

    async fn count_stored(&self, shared: &Shared, row: &Registration) {
        let prefix = storage::prefix(row, "");
        let listed = shared.store.list(&prefix, ListAt::Latest, None, Some(0)).await;
        let number = listed.map_or(0, |list| i64::try_from(list.remaining).unwrap_or(i64::MAX));
        let resource = if row.group.is_empty() {
            row.plural.to_owned()
        } else {
            format!("{}.{}", row.plural, row.group)
        };
        self.stored.get_or_create(&Stored { resource }).set(number);
        let resource = Resource {
            group: row.group,
            resource: row.plural,
        };
        self.resources.get_or_create(&resource).set(number);
    }
}

impl Slis {
    /// Notes how all checks are now.
    fn look(&self, shared: &Shared) {
        for endpoint in health::ENDPOINTS {
            for (name, passed) in health::results(shared, endpoint) {
                let gauge = self.checks.get_or_create(&[("name", name), ("type", endpoint)]);
                gauge.set(i64::from(passed));
            }
        }
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self, shared: &Shared) -> String {
        self.look(shared);
        let mut page = String::new();
        // Writing to a String cannot fail.
        text::encode(&mut page, &self.registry).unwrap_or_default();
        plain(&page)
    }
}

/// Converts the page from the `OpenMetrics` format to Prometheus's, whose counters have the names
/// of their samples.
pub(super) fn plain(page: &str) -> String {
    let mut lines: Vec<Cow<'_, str>> = Vec::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        let counted = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        let Some(name) = counted else {
            lines.push(whole_bound(line));
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
    let mut page = lines.join("\n") + "\n";
    for name in [
        "apiserver_admission_webhook_fail_open_count",
        "apiserver_admission_webhook_rejection_count",
        "authenticated_user_requests",
        "authentication_attempts",
    ] {
        // Counters without the suffix `_total` upstream.
        page = page.replace(&format!("{name}_total"), name);
    }
    page
}

/// Rewrites a bucket with an integer bound, which Go writes without a decimal point, and from a
/// million on with an exponent.
fn whole_bound(line: &str) -> Cow<'_, str> {
    match line.split_once("le=\"") {
        Some((before, rest)) => match rest.split_once(".0\"") {
            Some((digits, after)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let mut bound = digits.to_owned();
                if digits.len() > 6 {
                    let (first, rest) = digits.trim_end_matches('0').split_at(1);
                    let point = if rest.is_empty() { "" } else { "." };
                    bound = format!("{first}{point}{rest}e+{:02}", digits.len() - 1);
                }
                format!("{before}le=\"{bound}\"{after}").into()
            }
            _ => line.into(),
        },
        None => line.into(),
    }
}
