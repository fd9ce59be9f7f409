//! Calls to containerd, with this crate's error type.

use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

pub(super) use agent_containerd::{CALL, Client, Meaning, TASK};
use tonic::{Response, Status};

use super::Shared;
use crate::{Error, Info};

impl Shared {
    /// Checks that containerd answers, and updates its version, which may have changed.
    pub(super) async fn answers(&self) -> Result<(), Error> {
        let info = info(&self.client).await?;
        *self.info() = info;
        Ok(())
    }

    pub(super) fn info(&self) -> MutexGuard<'_, Info> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Name and version of containerd.
pub(super) async fn info(client: &Client) -> Result<Info, Error> {
    let doing = "ask containerd for its version";
    let told = within(CALL, doing, client.version().version(client.request(()))).await?;
    Ok(Info {
        name: "containerd".to_owned(),
        version: told.version.trim_start_matches('v').to_owned(),
    })
}

pub(super) fn meaning(error: &Error) -> Meaning {
    let Error::Containerd { source, .. } = error else {
        return Meaning::Other;
    };
    source.meaning()
}

/// Maps "not found" to `None`: the object is gone already.
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
