//! `/metrics/slis`: only the health checks, for frequent scrapes
//! (`k8s.io/component-base/metrics/prometheus/slis`).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::own;
use super::prometheus::{Family, answer, labels, number};
use crate::context::Context;
use crate::serve::health;

/// Endpoint of the checks.
const TYPE: &str = "healthz";

pub(in crate::serve) async fn metrics(State(context): State<Arc<Context>>) -> Response {
    let mut text = String::new();
    let counts = context.started.counts();
    for family in families(&health::results(context.turned()), &counts.checks) {
        family.write(&mut text, None);
    }
    own::start_time().write(&mut text, None);
    answer(text)
}

/// Returns the results of the checks now, and the counts of those that were asked for.
fn families(now: &[(&str, bool)], asked: &BTreeMap<(&'static str, bool), u64>) -> [Family<'static>; 2] {
    let now = now.iter().map(|(check, passed)| {
        let labels = labels(&[("name", check), ("type", TYPE)]);
        (labels, Some(f64::from(u8::from(*passed))))
    });
    let asked = asked.iter().map(|((check, passed), count)| {
        let status = if *passed { "success" } else { "error" };
        let labels = labels(&[("name", check), ("status", status), ("type", TYPE)]);
        (labels, Some(number(*count)))
    });
    [
        Family::new("kubernetes_healthcheck", now),
        Family::new("kubernetes_healthchecks_total", asked),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_told_as_they_are_now_and_counted_as_they_were_asked_for() {
        let asked = BTreeMap::from([(("syncloop", false), 3), (("syncloop", true), 2)]);
        let mut text = String::new();
        for family in families(&[("ping", true), ("syncloop", false)], &asked) {
            family.write(&mut text, None);
        }
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0",
            "kubernetes_healthchecks_total{name=\"syncloop\",status=\"error\",type=\"healthz\"} 3",
            "kubernetes_healthchecks_total{name=\"syncloop\",status=\"success\",type=\"healthz\"} 2",
        ];
        assert_eq!(lines, expected);
    }
}
