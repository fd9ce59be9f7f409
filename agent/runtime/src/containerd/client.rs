//! The connection to containerd: one channel, our namespace, a deadline for every call.

use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use crate::Error;

/// A call that only reads or changes records.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// A call that runs the OCI runtime, and perhaps starts a shim before.
pub(super) const TASK: Duration = Duration::from_mins(1);
/// containerd's own limit of a message.
const MESSAGE_LIMIT: usize = 16 << 20;

/// What containerd answered when it could not do it, or that it did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    code: Code,
    message: String,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// What a failure means to who made the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// There is no such thing.
    NotFound,
    /// It is in another state.
    WrongState,
    /// It may have happened or not.
    Silent,
    /// It must be reported.
    Other,
}

pub(super) fn meaning(error: &Error) -> Meaning {
    let Error::Containerd { source, .. } = error else {
        return Meaning::Other;
    };
    // runc's own words come through as they are.
    if source.code == Code::NotFound || source.message.contains("process already finished") {
        Meaning::NotFound
    } else if source.code == Code::FailedPrecondition {
        Meaning::WrongState
    } else if matches!(
        source.code,
        Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled
    ) {
        Meaning::Silent
    } else {
        Meaning::Other
    }
}

/// Nothing there to do it to is as good as done.
pub(super) fn or_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if meaning(&error) == Meaning::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

impl Client {
    /// Connects at the first call, and again after containerd was away.
    pub(super) fn new(address: &Path, namespace: &str) -> Result<Self, Error> {
        let invalid = |what: &'static str, value: &str| Error::Invalid {
            what,
            value: value.to_owned(),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if namespace.is_empty() || namespace.len() > 64 || !namespace.bytes().all(plain) {
            return Err(invalid("containerd namespace", namespace));
        }
        let parsed = namespace.parse().ok();
        let namespace = parsed.ok_or_else(|| invalid("containerd namespace", namespace))?;
        let path = address.to_owned();
        // The name is of no use: the connector knows the socket.
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(tower::service_fn(
            move |_name: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            },
        ));
        Ok(Self { channel, namespace })
    }

    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", self.namespace.clone());
        request
    }

    pub(super) fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    pub(super) fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    pub(super) fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
    }

    pub(super) fn version(&self) -> VersionClient<Channel> {
        VersionClient::new(self.channel.clone())
    }
}

/// Waits for an answer, but not for ever: a containerd that hangs holds up nothing but this call.
pub(super) async fn within<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let answered = tokio::time::timeout(limit, call).await;
    tracing::debug!(doing, took = ?begun.elapsed(), "containerd");
    let late = |_elapsed| Failure {
        code: Code::DeadlineExceeded,
        message: format!("containerd did not answer within {limit:?}"),
    };
    let source = match answered.map_err(late) {
        Ok(Ok(response)) => return Ok(response.into_inner()),
        Ok(Err(status)) => Failure::from(status),
        Err(failure) => failure,
    };
    Err(Error::Containerd { doing, source })
}
