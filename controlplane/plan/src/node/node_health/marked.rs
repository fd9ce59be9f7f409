//! Sets pods of a node that is not ready to not ready.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::condition;
use crate::objects::{Meta as _, seconds, target, uid};
use crate::pod::{Pod, is_ready};
use crate::step::{PODS, Severity, Step};

/// Number of versions of a pod that are marked while its node is not ready. One is enough; others
/// guard against concurrent writes.
const TIMES: u8 = 3;

/// Pods that were marked not ready since their node is not ready. The node's agent may be alive and
/// know better: its later status stays, or the two would overwrite each other forever.
#[derive(Debug, Clone, Default)]
pub struct Marked(BTreeMap<String, Mark>);

#[derive(Debug, Clone, Default)]
struct Mark {
    /// Version of the pod when it was marked: while it is current, the mark has not been written.
    version: Option<String>,
    times: u8,
}

impl Marked {
    /// Marks pods that are ready.
    pub(super) fn steps(&mut self, node: &Node, pods: &[&Pod], now: Timestamp) -> Vec<Step> {
        if condition(node, "Ready").is_none_or(|ready| ready.status == "True") {
            self.0.clear();
            return Vec::new();
        }
        self.0.retain(|known, _| pods.iter().any(|pod| uid(*pod) == known));
        let ready = pods.iter().filter(|pod| is_ready(pod));
        ready
            .filter(|pod| self.is_due(pod))
            .flat_map(|pod| unready(pod, now))
            .collect()
    }

    fn is_due(&mut self, pod: &Pod) -> bool {
        let version = pod.metadata.resource_version();
        let mark = self.0.entry(uid(pod).to_owned()).or_default();
        if mark.times > 0 && mark.version == version {
            return true;
        }
        let due = mark.times < TIMES;
        if due {
            mark.times += 1;
            mark.version = version;
        }
        due
    }
}

fn unready(pod: &Pod, now: Timestamp) -> [Step; 2] {
    // Reason and message are kept: conditions are merged by type.
    let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": seconds(now),
        "observedGeneration": pod.metadata.observed() });
    let about = target(PODS, pod);
    let note = about.note(Severity::Warning, "NodeNotReady", "Node is not ready");
    let patch = about.strategic_status(json!({
        "metadata": { "uid": pod.metadata.uid(), "resourceVersion": pod.metadata.resource_version() },
        "status": { "conditions": [ready] },
    }));
    [patch, Step::Event(note)]
}
