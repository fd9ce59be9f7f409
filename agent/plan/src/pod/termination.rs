//! Ends of a pod that the agent decides: by admission, or later.

use std::borrow::Cow;

/// A rejected pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// A CamelCase word for `status.reason`.
    pub reason: Cow<'static, str>,
    /// A sentence for `status.message`.
    pub message: String,
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
}
