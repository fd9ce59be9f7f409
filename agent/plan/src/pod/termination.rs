//! Ends of a pod that the agent decides: by admission, or later.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// A rejected pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// A CamelCase word for `status.reason`.
    pub reason: Cow<'static, str>,
    /// A sentence for `status.message`.
    pub message: String,
}

/// Reasons that the metric of rejections tells apart.
const REASONS: [&str; 11] = [
    "AppArmor",
    "Evicted",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SysctlForbidden",
    "UnexpectedAdmissionError",
];

impl Rejection {
    /// Reason in the metric of rejections, whose number is limited (`recordAdmissionRejection`,
    /// `pkg/kubelet/kubelet.go`).
    pub fn label(&self) -> &'static str {
        match REASONS.into_iter().find(|known| *known == self.reason) {
            Some(known) => known,
            None if self.reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        }
    }
}

/// A termination by the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// A CamelCase word for `status.reason`.
    pub reason: &'static str,
    /// A sentence for `status.message`.
    pub message: String,
    /// Seconds until SIGKILL.
    pub grace: i64,
    /// Message of the condition `DisruptionTarget`, if the pod gets it.
    pub disruption: Option<String>,
    /// Annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_rejections_are_few() {
        for (reason, expected) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfexample.com/dongle", "OutOfExtendedResources"),
            ("SysctlForbidden", "SysctlForbidden"),
            ("NodePorts", "Other"),
        ] {
            let rejection = Rejection {
                reason: reason.into(),
                message: String::new(),
            };
            assert_eq!(rejection.label(), expected);
        }
    }
}
