//! Connection to a containerd: one channel, one namespace, a timeout for every call.
//!
//! Images and containers each have a connection of their own. Beyond the calls, this crate only
//! classifies errors.

use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::sandbox::store_client::StoreClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

mod snapshot;

/// Timeout of a call that only reads or changes records.
pub const CALL: Duration = Duration::from_secs(10);
/// Timeout of a call that runs the OCI runtime and may start a shim, or that removes files.
pub const TASK: Duration = Duration::from_mins(1);
/// containerd's own limit of message sizes.
const MESSAGE_LIMIT: usize = 16 << 20;
/// Error message of containerd when a shim exits before it answers.
const SHIM_ENDED: &str = "ttrpc: closed";
/// Label of the owner of an object in containerd: its value is the agent's state directory.
pub const OWNER: &str = "skiff/owner";
/// Label that protects an object from garbage collection; containerd looks for the key alone.
pub const KEPT: &str = "containerd.io/gc.root";

/// gRPC status of a failed call, or a timeout.
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

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}")]
pub struct Error {
    /// Operation that was requested.
    pub doing: &'static str,
    /// Status that was returned.
    #[source]
    pub source: Failure,
}

/// The name of a containerd namespace is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid containerd namespace {0:?}")]
pub struct InvalidNamespace(pub String);

/// Classification of an error for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The object does not exist.
    NotFound,
    /// The object exists already.
    Exists,
    /// The object is in another state.
    WrongState,
    /// This containerd does not implement the call.
    NoSuchCall,
    /// The outcome is unknown.
    Silent,
    /// Any other error, to be reported.
    Other,
}

impl Failure {
    /// The connection to containerd, or containerd's to its shim, ended before the answer.
    fn is_cut_off(&self) -> bool {
        let words = ["transport error", "h2 protocol error", SHIM_ENDED];
        self.code == Code::Unknown && words.iter().any(|word| self.message.contains(word))
    }

    /// True if the shim exited before it answered.
    pub fn is_end_of_shim(&self) -> bool {
        self.code == Code::Unknown && self.message.contains(SHIM_ENDED)
    }

    /// Classifies the error.
    pub fn meaning(&self) -> Meaning {
        // Errors of runc and of containerd's database are passed on as text, with the code
        // `Unknown`.
        let words = ["process already finished", "bucket not found"];
        if self.code == Code::NotFound || words.iter().any(|words| self.message.contains(words)) {
            Meaning::NotFound
        } else if self.code == Code::AlreadyExists {
            Meaning::Exists
        } else if self.code == Code::FailedPrecondition {
            Meaning::WrongState
        } else if self.code == Code::Unimplemented {
            Meaning::NoSuchCall
        } else if matches!(self.code, Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled) || self.is_cut_off()
        {
            Meaning::Silent
        } else {
            Meaning::Other
        }
    }
}

/// Connection to containerd. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

impl Client {
    /// Connects at the first call, and reconnects after containerd was down.
    pub fn new(address: &Path, namespace: &str) -> Result<Self, InvalidNamespace> {
        let invalid = || InvalidNamespace(namespace.to_owned());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if namespace.is_empty() || namespace.len() > 64 || !namespace.bytes().all(plain) {
            return Err(invalid());
        }
        let parsed = namespace.parse().ok();
        let namespace = parsed.ok_or_else(invalid)?;
        let path = address.to_owned();
        // The URI is ignored: the connector uses the socket.
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(tower::service_fn(
            move |_name: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            },
        ));
        Ok(Self { channel, namespace })
    }

    /// Request with the namespace in its metadata.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// Request with namespace and lease: the lease protects created objects from garbage
    /// collection.
    pub fn leased<T>(&self, lease: &str, message: T) -> Request<T> {
        let mut request = self.request(message);
        // Lease ids consist of letters and digits.
        if let Ok(lease) = lease.parse() {
            request.metadata_mut().insert("containerd-lease", lease);
        }
        request
    }

    /// Client for tasks: running containers.
    pub fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for containers' records.
    pub fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for sandboxes' records, which containerd has since version 1.7.
    pub fn sandboxes(&self) -> StoreClient<Channel> {
        StoreClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for events.
    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
    }

    /// Client for the version.
    pub fn version(&self) -> VersionClient<Channel> {
        VersionClient::new(self.channel.clone())
    }

    /// Client for blobs, by digest.
    pub fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for image names.
    pub fn images(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for snapshots.
    pub fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Client for leases, which protect unreferenced objects from garbage collection.
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone())
    }

    /// Client that unpacks blobs into snapshots.
    pub fn diff(&self) -> DiffClient<Channel> {
        DiffClient::new(self.channel.clone())
    }

    /// Client for the list of containerd's plugins.
    pub fn introspection(&self) -> IntrospectionClient<Channel> {
        IntrospectionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }
}

/// Waits for an answer up to a timeout, so that a hung containerd blocks only this call.
pub async fn within<T>(
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
    Err(Error { doing, source })
}

/// Maps "not found" to `None`, for removals.
pub fn or_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.source.meaning() == Meaning::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
