//! The connection to a containerd: one channel, one namespace, a deadline for every call.
//!
//! Images and containers each have one of their own. Nothing is decided here but what a failure means to who made the call.

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

mod leftover;

/// A call that only reads or changes records.
pub const CALL: Duration = Duration::from_secs(10);
/// A call that runs the OCI runtime, and perhaps starts a shim before; or one that removes files.
pub const TASK: Duration = Duration::from_mins(1);
/// containerd's own limit of a message.
const MESSAGE_LIMIT: usize = 16 << 20;
/// What containerd says of a shim that ends while it waits for its answer.
const SHIM_ENDED: &str = "ttrpc: closed";
/// Whose something in containerd is: the value is the agent's state directory.
pub const OWNER: &str = "skiff/owner";
/// What has this label is kept by itself; containerd looks for the key alone.
pub const KEPT: &str = "containerd.io/gc.root";

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

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}")]
pub struct Error {
    /// What containerd was asked to do.
    pub doing: &'static str,
    /// Its answer.
    #[source]
    pub source: Failure,
}

/// The name of a containerd namespace is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid containerd namespace {0:?}")]
pub struct InvalidNamespace(pub String);

/// What a failure means to who made the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// There is no such thing.
    NotFound,
    /// There is one already.
    Exists,
    /// It is in another state.
    WrongState,
    /// This containerd has no such call.
    NoSuchCall,
    /// It may have happened or not.
    Silent,
    /// It must be reported.
    Other,
}

impl Failure {
    /// The connection to containerd, or containerd's to its shim, ended before the answer came.
    fn is_cut_off(&self) -> bool {
        let words = ["transport error", "h2 protocol error", SHIM_ENDED];
        self.code == Code::Unknown && words.iter().any(|word| self.message.contains(word))
    }

    /// The shim that was asked has ended.
    pub fn is_end_of_shim(&self) -> bool {
        self.code == Code::Unknown && self.message.contains(SHIM_ENDED)
    }

    /// What it means.
    pub fn meaning(&self) -> Meaning {
        // runc's own words come through as they are, and those of containerd's database.
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

/// One connection. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

impl Client {
    /// Connects at the first call, and again after containerd was away.
    pub fn new(address: &Path, namespace: &str) -> Result<Self, InvalidNamespace> {
        let invalid = || InvalidNamespace(namespace.to_owned());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if namespace.is_empty() || namespace.len() > 64 || !namespace.bytes().all(plain) {
            return Err(invalid());
        }
        let parsed = namespace.parse().ok();
        let namespace = parsed.ok_or_else(invalid)?;
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

    /// A message with our namespace.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// The same; what is made by it stays for as long as the lease does.
    pub fn leased<T>(&self, lease: &str, message: T) -> Request<T> {
        let mut request = self.request(message);
        // Ours are letters and digits.
        if let Ok(lease) = lease.parse() {
            request.metadata_mut().insert("containerd-lease", lease);
        }
        request
    }

    /// Running containers.
    pub fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Records of containers.
    pub fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Records of sandboxes. containerd has them since its version 1.7.
    pub fn sandboxes(&self) -> StoreClient<Channel> {
        StoreClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// What happens.
    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
    }

    /// Its version.
    pub fn version(&self) -> VersionClient<Channel> {
        VersionClient::new(self.channel.clone())
    }

    /// Blobs, by digest.
    pub fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Names of images.
    pub fn images(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// Layers that lie on one another.
    pub fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    /// What keeps things that nothing refers to yet.
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone())
    }

    /// Unpacks blobs.
    pub fn diff(&self) -> DiffClient<Channel> {
        DiffClient::new(self.channel.clone())
    }

    /// What it is made of.
    pub fn introspection(&self) -> IntrospectionClient<Channel> {
        IntrospectionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }
}

/// Waits for an answer, but not for ever: a containerd that hangs holds up nothing but this call.
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

/// Nothing there to do it to is as good as done.
pub fn or_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.source.meaning() == Meaning::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
