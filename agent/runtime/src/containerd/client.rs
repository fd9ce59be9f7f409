//! Calls to containerd, with this crate's own failures.

use std::path::Path;
use std::time::Duration;

pub(super) use agent_containerd::{CALL, Client, Meaning, TASK};
use tonic::{Response, Status};

use super::Shared;
use crate::Error;

impl Shared {
    /// Whether containerd is there.
    pub(super) async fn answers(&self) -> Result<(), Error> {
        let doing = "ask containerd for its version";
        within(CALL, doing, self.client.version().version(self.client.request(())))
            .await
            .map(drop)
    }
}

impl From<agent_containerd::Error> for Error {
    fn from(error: agent_containerd::Error) -> Self {
        let agent_containerd::Error { doing, source } = error;
        Self::Containerd { doing, source }
    }
}

pub(super) fn connect(address: &Path, namespace: &str) -> Result<Client, Error> {
    Client::new(address, namespace).map_err(|invalid| Error::Invalid {
        what: "containerd namespace",
        value: invalid.0,
    })
}

pub(super) fn meaning(error: &Error) -> Meaning {
    let Error::Containerd { source, .. } = error else {
        return Meaning::Other;
    };
    source.meaning()
}

/// Nothing there to do it to is as good as done.
pub(super) fn or_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if meaning(&error) == Meaning::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn within<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    Ok(agent_containerd::within(limit, doing, call).await?)
}
