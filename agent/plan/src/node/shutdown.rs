//! Graceful node shutdown: ordinary pods first, critical pods last. The texts are upstream's.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::node::eviction::is_critical;
use crate::pod::pods;
use crate::pod::termination::{Rejection, Termination};

/// Reason of the node's `Ready` condition during a shutdown.
pub const NOT_READY: &str = "node is shutting down";

/// Time for pods to terminate during a shutdown, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// All of them together.
    pub total: i64,
    /// The part of it for critical pods.
    pub critical: i64,
}

impl Grace {
    /// True if the shutdown waits for pods.
    pub const fn is_given(self) -> bool {
        self.total > 0
    }

    /// Returns the grace within the limit of systemd's inhibitor.
    #[must_use]
    pub fn within(self, most: i64) -> Self {
        let total = self.total.min(most);
        Self {
            total,
            critical: self.critical.min(total),
        }
    }
}

/// Pods that are terminated at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Grace period in seconds; then the next group follows.
    pub grace: i64,
    /// Termination of each pod, by uid.
    pub pods: Vec<(String, Termination)>,
}

/// The groups in the order of their termination, without empty ones.
pub fn groups(all: &[Arc<Pod>], grace: Grace) -> Vec<Group> {
    let running = || all.iter().filter(|pod| pods::terminal_phase(pod).is_none());
    let group = |critical: bool, seconds: i64| Group {
        grace: seconds,
        pods: running()
            .filter(|pod| is_critical(pod) == critical)
            .map(|pod| (pods::uid(pod).to_owned(), termination(pod, seconds)))
            .collect(),
    };
    let groups = [
        group(false, grace.total.saturating_sub(grace.critical).max(0)),
        group(true, grace.critical.max(0)),
    ];
    groups.into_iter().filter(|group| !group.pods.is_empty()).collect()
}

fn termination(pod: &Pod, most: i64) -> Termination {
    let message = "Pod was terminated in response to imminent node shutdown.";
    Termination {
        reason: "Terminated",
        message: message.to_owned(),
        grace: pods::deletion_grace(pod).unwrap_or_else(|| pods::grace(pod)).min(most),
        disruption: Some(message.to_owned()),
        annotations: BTreeMap::new(),
    }
}

/// Rejection of new pods during a shutdown.
pub fn refusal() -> Rejection {
    Rejection {
        reason: "NodeShutdown".into(),
        message: "Pod was rejected: Pod was rejected as the node is shutting down.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, priority: i64, grace: i64, phase: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"uid": uid}, "status": {"phase": phase},
            "spec": {"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn shown(all: &[Arc<Pod>], total: i64, critical: i64) -> String {
        let groups = groups(all, Grace { total, critical });
        let shown = groups.iter().map(|group| {
            let pods = group.pods.iter().map(|(uid, end)| format!("{uid}={}", end.grace));
            format!("{}s: {}", group.grace, pods.collect::<Vec<_>>().join(" "))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn critical_pods_end_last_and_nobody_takes_longer_than_there_is_time() {
        let all = [
            pod("dns", 2_000_000_000, 30, "Running"),
            pod("web", 0, 30, "Running"),
            pod("quick", 1_000_000_000, 5, "Pending"),
            pod("done", 0, 30, "Succeeded"),
        ];
        assert_eq!(shown(&all, 30, 10), "20s: web=20 quick=5, 10s: dns=10");
        assert_eq!(shown(&all, 60, 0), "60s: web=30 quick=5, 0s: dns=0");
        assert_eq!(shown(&all[3..], 60, 0), "");
        assert_eq!(shown(&all[..1], 60, 40), "40s: dns=30");
    }

    #[test]
    fn the_machine_may_give_less() {
        let grace = Grace {
            total: 60,
            critical: 20,
        };
        assert_eq!(grace.within(100), grace);
        assert_eq!(
            grace.within(10),
            Grace {
                total: 10,
                critical: 10
            }
        );
        assert!(!Grace::default().is_given());
    }
}
