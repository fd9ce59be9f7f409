//! Reaction to a shortage of memory, disk or PIDs: the node's conditions, the pods that it still
//! admits, and the pod to evict.
//!
//! [`Thresholds`] is the configuration, [`Watch`] keeps the observations, [`Layout`] tells which
//! data is on which file system, [`rank()`] chooses the pod and [`message()`] explains the eviction
//! in upstream's words.

mod layout;
mod message;
mod rank;
mod threshold;
mod watch;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Toleration};

pub use layout::{Contents, Layout};
pub use message::message;
pub use rank::{Candidate, Used, rank};
pub use threshold::{Amount, InvalidThreshold, Signal, Threshold, Thresholds, parse_duration};
pub use watch::{Observation, Observations, Starved, Watch};

use crate::pod::termination::{Rejection, Termination};

/// `status.reason` of an evicted pod, and of one that is rejected under pressure.
pub const REASON: &str = "Evicted";
/// Grace period in seconds of a hard eviction.
pub const AT_ONCE: i64 = 1;

/// Condition of the Node that reports a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Memory.
    Memory,
    /// Space or inodes of a file system.
    Disk,
    /// Process identifiers.
    Pid,
}

impl Pressure {
    /// The type of the Node's condition.
    pub const fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// True for critical pods, which the node must keep running: `IsCriticalPod`.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM: i32 = 2_000_000_000;
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.priority.is_some_and(|priority| priority >= SYSTEM))
}

/// Returns the rejection of a pod that a node under pressure does not admit.
pub fn refusal(pod: &Pod, pressures: &BTreeSet<Pressure>) -> Option<Rejection> {
    if pressures.is_empty() || is_critical(pod) {
        return None;
    }
    let only_memory = pressures.iter().all(|pressure| *pressure == Pressure::Memory);
    let spec = pod.spec.as_ref()?;
    if only_memory && (api::pod::qos(spec) != "BestEffort" || tolerates_memory_pressure(spec.tolerations.as_deref())) {
        return None;
    }
    let conditions: Vec<&str> = pressures.iter().map(|pressure| pressure.condition()).collect();
    Some(Rejection {
        reason: REASON.into(),
        message: format!("Pod was rejected: The node had condition: [{}]. ", conditions.join(" ")),
    })
}

fn tolerates_memory_pressure(tolerations: Option<&[Toleration]>) -> bool {
    let tolerates = |own: &Toleration| {
        let effect = own.effect.as_deref().unwrap_or_default();
        let key = own.key.as_deref().unwrap_or_default();
        let exists = own.operator.as_deref() == Some("Exists");
        let value = own.value.as_deref().unwrap_or_default();
        (effect.is_empty() || effect == "NoSchedule")
            && (key == "node.kubernetes.io/memory-pressure" || (key.is_empty() && exists))
            && (exists || value.is_empty())
    };
    tolerations.unwrap_or(&[]).iter().any(tolerates)
}

/// The end of a pod that has to go.
pub fn termination(message: String, grace: i64, disruption: bool) -> Termination {
    Termination {
        reason: REASON,
        disruption: disruption.then(|| message.clone()),
        message,
        grace,
        annotations: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        Pod {
            spec: Some(serde_json::from_value(spec).unwrap()),
            ..Pod::default()
        }
    }

    fn says(pod: &Pod, pressures: &[Pressure]) -> String {
        refusal(pod, &pressures.iter().copied().collect()).map_or_else(String::new, |refused| refused.message)
    }

    #[test]
    fn a_node_under_pressure_takes_few_pods() {
        let plain = pod(json!({"containers": [{"name": "a"}]}));
        let burstable = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]}));
        let critical = pod(json!({"containers": [{"name": "a"}], "priority": 2_000_000_000}));
        let tolerant = pod(json!({"containers": [{"name": "a"}], "tolerations": [
            {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]}));
        let memory = "Pod was rejected: The node had condition: [MemoryPressure]. ";
        let disk = "Pod was rejected: The node had condition: [DiskPressure]. ";
        let both = "Pod was rejected: The node had condition: [MemoryPressure DiskPressure]. ";
        for (pod, under_memory, under_disk, under_both) in [
            (&plain, memory, disk, both),
            (&burstable, "", disk, both),
            (&tolerant, "", disk, both),
            (&critical, "", "", ""),
        ] {
            assert_eq!(says(pod, &[]), "");
            assert_eq!(says(pod, &[Pressure::Memory]), under_memory);
            assert_eq!(says(pod, &[Pressure::Disk]), under_disk);
            assert_eq!(says(pod, &[Pressure::Memory, Pressure::Disk]), under_both);
        }
    }
}
