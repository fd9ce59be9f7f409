//! Health of the service proxy, as kube-proxy tells it (`pkg/proxy/healthcheck/proxy_health.go`):
//! load balancers send nothing new to a node whose rules are old, or that is about to go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::X_CONTENT_TYPE_OPTIONS;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::programmed::ProxyCounts;
use crate::clock::Clock;
use crate::context::Context;

/// Time within which the kernel must have a change (twice the `syncPeriod` of kube-proxy).
const TIMEOUT: Duration = Duration::from_mins(1);
/// Taint of a node that the cluster's autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Health of the proxy and of its node.
pub(super) struct ProxyHealth {
    clock: Clock,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// Families of the node's addresses.
    families: Vec<&'static str>,
    synced: Mutex<Synced>,
}

#[derive(Default)]
struct Synced {
    /// Time of the oldest change that the kernel does not have.
    queued: Option<Instant>,
    counts: ProxyCounts,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, Family>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    last_updated: String,
    healthy: bool,
}

impl ProxyHealth {
    pub(super) fn of(context: &Context) -> Arc<Self> {
        let families = context.config.host_addresses().into_iter();
        let families = families.map(|address| if address.is_ipv4() { "IPv4" } else { "IPv6" });
        Arc::new(Self {
            clock: Arc::clone(&context.parts.clock),
            node: context.node.subscribe(),
            families: families.collect(),
            synced: Mutex::default(),
        })
    }

    /// Notes a change that the kernel does not have.
    pub(super) fn queued(&self) {
        let queued = Some((self.clock)());
        let mut synced = self.synced();
        synced.queued.get_or_insert_with(Instant::now);
        synced.counts.queued = queued;
    }

    /// Notes that the kernel has all changes.
    pub(super) fn updated(&self) {
        let updated = Some((self.clock)());
        let mut synced = self.synced();
        synced.queued = None;
        synced.counts.updated = updated;
    }

    pub(super) fn counts(&self) -> ProxyCounts {
        self.synced().counts.clone()
    }

    fn synced(&self) -> MutexGuard<'_, Synced> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True unless a change is late.
    pub(super) fn is_healthy(&self) -> bool {
        let synced = self.synced();
        synced.queued.is_none_or(|queued| queued.elapsed() < TIMEOUT)
    }

    /// True if the node is there to stay.
    fn is_eligible(&self) -> bool {
        let node = self.node.borrow();
        node.as_ref().is_some_and(|node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
            let goes = taints
                .unwrap_or_default()
                .iter()
                .any(|taint| taint.key == TO_BE_DELETED);
            !goes && node.metadata.deletion_timestamp.is_none()
        })
    }

    pub(super) fn answer(&self, path: &str) -> Response {
        let Some((path, passes, report)) = self.report(path) else {
            return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
        };
        let status = if passes {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        *self.synced().counts.checks.entry((path, status.as_u16())).or_default() += 1;
        (status, [(X_CONTENT_TYPE_OPTIONS, "nosniff")], axum::Json(report)).into_response()
    }

    /// Path and outcome of a check, and its report. The node counts for `/healthz` alone.
    fn report(&self, path: &str) -> Option<(&'static str, bool, Report)> {
        let (path, node_eligible) = match path {
            "/healthz" => ("/healthz", Some(self.is_eligible())),
            "/livez" => ("/livez", None),
            _ => return None,
        };
        let (healthy, now) = (self.is_healthy(), (self.clock)().to_string());
        let passes = healthy && node_eligible != Some(false);
        let updated = self.synced().counts.updated.map(|updated| updated.to_string());
        let mut status = BTreeMap::new();
        if let Some(last_updated) = &updated {
            status.extend(self.families.iter().map(|family| {
                let last_updated = last_updated.clone();
                (*family, Family { last_updated, healthy })
            }));
        }
        let last_updated = if passes { Some(now.clone()) } else { updated };
        let report = Report {
            last_updated: last_updated.unwrap_or_else(|| NEVER.to_owned()),
            current_time: now,
            node_eligible,
            healthy,
            status,
        };
        Some((path, passes, report))
    }
}

#[cfg(test)]
mod tests {
    use agent_plan::Timestamp;
    use serde_json::{Value, from_value, json};

    use super::*;

    const NOW: &str = "2026-01-02T00:00:00Z";

    fn checks(health: &ProxyHealth) -> [(bool, Value); 2] {
        ["/healthz", "/livez"].map(|path| {
            let (_, passes, report) = health.report(path).unwrap();
            (passes, serde_json::to_value(report).unwrap())
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_goes_and_rules_that_are_late_are_told() {
        let node = watch::Sender::new(None);
        let health = ProxyHealth {
            clock: Arc::new(|| NOW.parse::<Timestamp>().unwrap()),
            node: node.subscribe(),
            families: vec!["IPv4"],
            synced: Mutex::default(),
        };
        assert!(health.report("/").is_none());
        let [(passes, report), (lives, _)] = checks(&health);
        assert!(!passes && lives, "the node is not known yet");
        let expected = json!({ "lastUpdated": NEVER, "currentTime": NOW, "nodeEligible": false, "healthy": true });
        assert_eq!(report, expected);

        let see = |value: Value| {
            node.send_replace(Some(Arc::new(from_value(value).unwrap())));
        };
        see(json!({ "metadata": {}, "spec": { "taints": [{ "key": "other", "effect": "NoSchedule" }] } }));
        health.queued();
        health.updated();
        tokio::time::advance(TIMEOUT).await;
        let [(passes, _), (lives, report)] = checks(&health);
        assert!(passes && lives);
        let status = json!({ "IPv4": { "lastUpdated": NOW, "healthy": true } });
        assert_eq!(
            report,
            json!({ "lastUpdated": NOW, "currentTime": NOW, "healthy": true, "status": status })
        );

        for going in [
            json!({ "metadata": {}, "spec": { "taints": [{ "key": TO_BE_DELETED, "effect": "NoSchedule" }] } }),
            json!({ "metadata": { "deletionTimestamp": NOW } }),
        ] {
            see(going);
            let [(passes, _), (lives, _)] = checks(&health);
            assert!(!passes && lives);
        }
        see(json!({ "metadata": {} }));
        health.queued();
        tokio::time::advance(TIMEOUT).await;
        assert!(checks(&health).iter().all(|(passes, _)| !passes), "the rules are old");
        assert_eq!(health.answer("/livez").status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(health.counts().checks, BTreeMap::from([(("/livez", 503), 1)]));
    }
}
