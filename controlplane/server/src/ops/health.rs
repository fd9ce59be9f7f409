//! `/livez`, `/readyz` and `/healthz`, with their single checks.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use http::StatusCode;

use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::transport::respond::{Response, text};

/// The paths of health.
pub(crate) const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];
/// Checks that pass as long as the process answers, which ends with its store. The names are those
/// that clients know.
const ALWAYS: [&str; 3] = ["ping", "log", "etcd"];
/// Checks for the parts that run once [`crate::server::bootstrap`] has ended, under upstream's
/// names. Those of liveness pass before, as within upstream's `--livez-grace-period`.
const STARTED: [&str; 22] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// A named check.
struct Check {
    name: &'static str,
    passed: bool,
}

/// Answers a health path; `None` for other paths.
pub(crate) fn answer(shared: &Shared, segments: &[String], query: &Query) -> Option<Result<Response, Failure>> {
    let (endpoint, only) = match segments {
        [endpoint] => (endpoint.as_str(), None),
        [endpoint, only @ ..] => (endpoint.as_str(), Some(only.join("/"))),
        [] => return None,
    };
    let endpoint = ENDPOINTS.into_iter().find(|own| *own == endpoint)?;
    let mut checks = checks(shared, endpoint);
    if let Some(only) = only {
        checks.retain(|check| check.name == only);
        if checks.is_empty() {
            return Some(Err(Failure::NoSuchPath));
        }
    }
    for check in &checks {
        shared.metrics.slis.checked(endpoint, check.name, check.passed);
    }
    Some(Ok(report(endpoint, &checks, query)))
}

/// The paths that are answered here.
pub(crate) fn paths(shared: &Shared) -> impl Iterator<Item = String> {
    ENDPOINTS.into_iter().flat_map(move |endpoint| {
        let checks = checks(shared, endpoint).into_iter();
        let single = checks.map(move |check| format!("/{endpoint}/{}", check.name));
        std::iter::once(format!("/{endpoint}")).chain(single)
    })
}

/// The checks behind an endpoint, and whether they pass.
pub(crate) fn results(shared: &Shared, endpoint: &str) -> impl Iterator<Item = (&'static str, bool)> {
    checks(shared, endpoint)
        .into_iter()
        .map(|check| (check.name, check.passed))
}

fn checks(shared: &Shared, endpoint: &str) -> Vec<Check> {
    let mut checks: Vec<Check> = ALWAYS.map(|name| Check { name, passed: true }).into();
    let started = shared.ready.load(Ordering::Acquire);
    let passed = started || endpoint == "livez";
    checks.extend(STARTED.map(|name| Check { name, passed }));
    if endpoint == "readyz" {
        checks.push(Check {
            name: "informer-sync",
            passed: started,
        });
        // Upstream's name (pkg/server/options/etcd.go).
        checks.push(Check {
            name: "etcd-readiness",
            passed: shared.store.is_writable(),
        });
        checks.push(Check {
            name: "shutdown",
            passed: !shared.stopping.load(Ordering::Acquire),
        });
    }
    checks
}

fn report(endpoint: &str, checks: &[Check], query: &Query) -> Response {
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    for check in checks {
        let outcome = if excluded.contains(&check.name) {
            "excluded: ok"
        } else if check.passed {
            "ok"
        } else {
            failed = true;
            "failed: reason withheld"
        };
        let sign = if outcome.starts_with("failed") { "-" } else { "+" };
        lines.extend(["[", sign, "]", check.name, " ", outcome, "\n"]);
    }
    let strange: BTreeSet<&str> = excluded
        .into_iter()
        .filter(|name| checks.iter().all(|check| check.name != *name))
        .collect();
    if !strange.is_empty() {
        let quoted: Vec<String> = strange.iter().map(|name| format!("{name:?}")).collect();
        let matches = quoted.join(",");
        lines.extend([
            "warn: some health checks cannot be excluded: no matches for ",
            &matches,
            "\n",
        ]);
    }
    if failed {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{lines}{endpoint} check failed\n"),
        );
    }
    if query.get("verbose").is_some() {
        return text(StatusCode::OK, format!("{lines}{endpoint} check passed\n"));
    }
    text(StatusCode::OK, "ok")
}
