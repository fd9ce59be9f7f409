//! `/healthz` with single checks, as in a kubelet.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::logs::parameters;
use crate::context::Context;

/// Longest interval between iterations of the pod loop, and the time without one after which it
/// counts as stuck.
pub(crate) const TURN: Duration = Duration::from_mins(1);
const STUCK: Duration = Duration::from_mins(5);

const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

/// Returns why a check fails, if it does.
fn trouble(check: &str, turned: Instant) -> Option<&'static str> {
    let stuck = check == "syncloop" && turned.elapsed() > STUCK;
    stuck.then_some("sync Loop took longer than expected")
}

/// Returns the checks, and whether they pass.
pub(super) fn results(turned: Instant) -> [(&'static str, bool); CHECKS.len()] {
    CHECKS.map(|check| (check, trouble(check, turned).is_none()))
}

pub(super) async fn all(State(context): State<Arc<Context>>, RawQuery(query): RawQuery) -> Response {
    let count = |check, passed| context.started.checked(check, passed);
    let (code, text) = report(context.turned(), &query.unwrap_or_default(), count);
    (code, text).into_response()
}

pub(super) async fn one(State(context): State<Arc<Context>>, Path(check): Path<String>) -> Response {
    if !CHECKS.contains(&check.as_str()) {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    match trouble(&check, context.turned()) {
        None => "ok".into_response(),
        Some(trouble) => {
            let text = format!("internal server error: {trouble}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

fn report(turned: Instant, query: &str, count: impl Fn(&'static str, bool)) -> (StatusCode, String) {
    let asked = parameters(query);
    let excluded = |check: &str| asked.iter().any(|(name, value)| name == "exclude" && value == check);
    let mut lines = String::new();
    let mut failed = false;
    for (check, passed) in results(turned) {
        let (sign, outcome) = if excluded(check) {
            ("+", "excluded: ok")
        } else {
            count(check, passed);
            failed |= !passed;
            if passed {
                ("+", "ok")
            } else {
                ("-", "failed: reason withheld")
            }
        };
        lines.extend(["[", sign, "]", check, " ", outcome, "\n"]);
    }
    if failed {
        return (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{lines}healthz check failed\n"),
        );
    }
    let verbose = asked.iter().any(|(name, _)| name == "verbose");
    let text = if verbose {
        format!("{lines}healthz check passed\n")
    } else {
        "ok".to_owned()
    };
    (StatusCode::OK, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::started::StartCounts;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_told() {
        let counts = StartCounts::default();
        let report = |turned, query: &str| report(turned, query, |check, passed| counts.checked(check, passed));
        let turned = Instant::now();
        assert_eq!(report(turned, ""), (StatusCode::OK, "ok".to_owned()));
        let text = "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n";
        assert_eq!(report(turned, "verbose").1, text);
        tokio::time::advance(STUCK + TURN).await;
        let (code, text) = report(turned, "");
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        let failed = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
        assert_eq!(text, failed);
        assert_eq!(report(turned, "exclude=syncloop").0, StatusCode::OK);
        let counted: Vec<_> = counts.counts().checks.into_iter().collect();
        let expected = [
            (("log", true), 4),
            (("ping", true), 4),
            (("syncloop", false), 1),
            (("syncloop", true), 2),
        ];
        assert_eq!(counted, expected);
        assert_eq!(trouble("ping", turned), None);
    }
}
