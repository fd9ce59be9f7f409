//! Reasons that a sandbox could not be prepared.

/// Reason that a sandbox could not be prepared.
pub(crate) struct Failure {
    pub(super) reason: &'static str,
    pub(super) messages: Vec<String>,
}

impl Failure {
    pub(super) fn sandbox(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::sandbox_text(&image::chain(error))
    }

    pub(super) fn sandbox_text(cause: &str) -> Self {
        Self {
            reason: "FailedCreatePodSandBox",
            messages: vec![format!("Failed to create pod sandbox: {cause}")],
        }
    }

    pub(in crate::pod::worker) fn mount(message: String) -> Self {
        Self {
            reason: "FailedMount",
            messages: vec![message],
        }
    }
}
