//! Metrics of the service proxy, with kube-proxy's names (`pkg/proxy/metrics/metrics.go`), and what
//! else kube-proxy serves beside them (`serveMetrics`, `cmd/kube-proxy/app/server.go`).

use agent_plan::Timestamp;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};

use super::own::requests::ASKED;
use super::own::{build, process, start_time, transactions};
use super::prometheus::{Family, answer, labels, number};
use crate::networking::services::programmed::{Programmed, ProxyCounts};

/// Answers a request for a path of the proxy's own port.
pub(crate) fn at(path: &str, programmed: &Programmed, counts: &ProxyCounts) -> Response {
    match path {
        "/metrics" => {
            let mut text = String::new();
            build().write(&mut text, None);
            let all = transactions(programmed)
                .into_iter()
                .chain(families(counts))
                .chain(ASKED.families());
            for family in all.chain(process()).chain([start_time()]) {
                family.write(&mut text, None);
            }
            answer(text)
        }
        "/healthz" => plain("ok"),
        "/proxyMode" => plain("nftables"),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
    }
}

fn plain(text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

/// Times of changes, and answers to load balancers.
fn families(counts: &ProxyCounts) -> [Family<'static>; 4] {
    let time = |name, time: Option<Timestamp>| {
        let seconds = time.map(|time| time.as_duration().as_secs_f64());
        Family::one(name, seconds)
    };
    let checks = |name, path: &str| {
        let own = counts.checks.iter().filter(|((own, _), _)| *own == path);
        let each = own.map(|((_, code), count)| (labels(&[("code", &code.to_string())]), Some(number(*count))));
        Family::new(name, each)
    };
    [
        time(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            counts.queued,
        ),
        time("kubeproxy_sync_proxy_rules_last_timestamp_seconds", counts.updated),
        checks("kubeproxy_proxy_healthz_total", "/healthz"),
        checks("kubeproxy_proxy_livez_total", "/livez"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_and_health_checks_are_told() {
        let counts = ProxyCounts {
            queued: Some(Timestamp::from_second(12).unwrap()),
            updated: None,
            checks: BTreeMap::from([(("/healthz", 200), 3), (("/healthz", 503), 1), (("/livez", 200), 2)]),
        };
        let mut text = String::new();
        for family in families(&counts) {
            family.write(&mut text, None);
        }
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 12",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 3",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
            "kubeproxy_proxy_livez_total{code=\"200\"} 2",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn transactions_have_kube_proxys_buckets() {
        let programmed = Programmed::default();
        programmed.note(Duration::from_millis(3), true);
        let mut text = String::new();
        for family in transactions(&programmed) {
            family.write(&mut text, None);
        }
        let name = "kubeproxy_sync_proxy_rules_duration_seconds";
        for line in ["_bucket{le=\"0.002\"} 0", "_bucket{le=\"0.004\"} 1", "_count 1"] {
            assert!(text.lines().any(|own| own == format!("{name}{line}")), "{line}: {text}");
        }
    }

    #[test]
    fn paths_are_those_of_kube_proxy() {
        let code = |path| at(path, &Programmed::default(), &ProxyCounts::default()).status();
        for path in ["/healthz", "/metrics", "/proxyMode"] {
            assert_eq!(code(path), StatusCode::OK, "{path}");
        }
        assert_eq!(code("/configz"), StatusCode::NOT_FOUND);
    }
}
