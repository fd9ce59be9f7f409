//! Orders to the pods' workers.

use agent_plan::pod::termination::Termination;
use tokio::sync::oneshot;

/// Order to the pods' workers.
#[derive(Debug)]
pub(crate) enum Order {
    /// Ends the pod with this UID.
    End(String, Termination),
    /// Passes a request to the worker of the pod with this UID.
    Ask(String, Question),
    /// Terminated containers that are no longer needed for logs are removed.
    Shed,
}

/// Instance whose log is requested.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) container: String,
    pub(crate) previous: bool,
    /// Attempt whose log is requested, or why there is none.
    pub(crate) answer: oneshot::Sender<Result<u32, String>>,
}
