//! Requests to the API server
//! (`staging/src/k8s.io/component-base/metrics/prometheus/restclient/metrics.go`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};

use crate::serve::metrics::prometheus::{Family, Histogram, labels, number};

/// Upper bounds of the durations in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Requests of this process.
pub(crate) static ASKED: Asked = Asked(Mutex::new(Counted {
    requests: BTreeMap::new(),
    durations: BTreeMap::new(),
}));

pub(crate) struct Asked(Mutex<Counted>);

struct Counted {
    /// By status, method and server.
    requests: BTreeMap<(Option<u16>, String, String), u64>,
    /// By method and server.
    durations: BTreeMap<(String, String), Histogram<{ BOUNDS.len() }>>,
}

impl Asked {
    /// Counts a request: without a status it failed, without a duration it is a watch.
    pub(crate) fn count(&self, status: Option<StatusCode>, method: &Method, host: &str, took: Option<Duration>) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, subject) = (status.map(|code| code.as_u16()), (method.to_string(), host.to_owned()));
        if let Some(took) = took {
            let durations = counted.durations.entry(subject.clone()).or_default();
            durations.observe(&BOUNDS, took);
        }
        let (method, host) = subject;
        *counted.requests.entry((code, method, host)).or_default() += 1;
    }

    pub(in crate::serve::metrics) fn families(&self) -> [Family<'static>; 2] {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = counted.requests.iter().map(|((code, method, host), count)| {
            let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
            let names = labels(&[("code", &code), ("host", host), ("method", method)]);
            (names, Some(number(*count)))
        });
        let durations = counted.durations.iter();
        let durations = durations.flat_map(|((verb, host), of)| of.samples(&BOUNDS, &[("host", host), ("verb", verb)]));
        [
            Family::new("rest_client_requests_total", requests),
            Family::new("rest_client_request_duration_seconds", durations),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_their_answers() {
        let asked = Asked(Mutex::new(Counted {
            requests: BTreeMap::new(),
            durations: BTreeMap::new(),
        }));
        let (host, took) = ("10.0.0.1:6443", Some(Duration::from_millis(50)));
        asked.count(Some(StatusCode::OK), &Method::GET, host, took);
        asked.count(Some(StatusCode::OK), &Method::GET, host, None);
        asked.count(None, &Method::POST, host, took);
        let mut text = String::new();
        for family in asked.families() {
            family.write(&mut text, None);
        }
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"<error>\",host=\"10.0.0.1:6443\",method=\"POST\"} 1",
            "rest_client_request_duration_seconds_bucket{host=\"10.0.0.1:6443\",verb=\"GET\",le=\"0.025\"} 0",
            "rest_client_request_duration_seconds_bucket{host=\"10.0.0.1:6443\",verb=\"GET\",le=\"0.1\"} 1",
            "rest_client_request_duration_seconds_count{host=\"10.0.0.1:6443\",verb=\"POST\"} 1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }
}
