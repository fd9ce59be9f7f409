//! Client of CSI drivers and of the sockets at which they register, without knowledge of pods.
//!
//! * [`plugin_info`], [`notify`]: the kubelet's plugin registration
//! * [`Driver`]: the node service of a registered driver
//! * `messages`: what both say

mod messages;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

pub use messages::{
    AccessMode, CapacityRange, Empty, ExpandRequest, MountVolume, NodeCapabilities, NodeCapability, NodeInfo,
    PluginInfo, PublishRequest, RegistrationStatus, RpcCapability, StageRequest, Topology, UndoRequest,
    VolumeCapability,
};

/// Timeout of a call to a driver (`csiTimeout`, `pkg/volume/csi/csi_plugin.go`).
const CALL: Duration = Duration::from_mins(2);
/// Timeout of the calls of a registration.
const REGISTRATION: Duration = Duration::from_secs(10);

/// Type of a plugin that is a CSI driver.
pub const PLUGIN_TYPE: &str = "CSIPlugin";

/// Failed call, in the words of Go's gRPC library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message } = self;
        // As Go spells it.
        let code = format!("{code:?}").replace("Cancelled", "Canceled");
        write!(formatter, "rpc error: code = {code} desc = {message}")
    }
}

impl std::error::Error for Error {}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

impl Error {
    /// True if the operation is over: it failed, or did not even start (`isFinalError`,
    /// `pkg/volume/csi/csi_client.go`).
    pub fn is_final(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
        !matches!(
            self.code,
            Cancelled | DeadlineExceeded | Unavailable | ResourceExhausted | Aborted
        )
    }

    /// True if the driver cannot do this while the volume is in use (`inUseError`,
    /// `pkg/volume/csi/expander.go`).
    pub fn is_in_use(&self) -> bool {
        self.code == Code::FailedPrecondition
    }

    /// True if another attempt would fail, too (`isInfeasibleError`).
    pub fn is_infeasible(&self) -> bool {
        matches!(self.code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
    }

    fn unreached(socket: &Path, error: &tonic::transport::Error) -> Self {
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        let socket = socket.display();
        Self {
            code: Code::Unavailable,
            message: format!(
                "connection error: desc = \"transport: Error while dialing: dial unix {socket}: connect: {cause}\""
            ),
        }
    }
}

/// Calls a method over a connection of its own, as a kubelet does.
async fn call<Q, A>(socket: &Path, method: &'static str, limit: Duration, question: Q) -> Result<A, Error>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let path = socket.to_owned();
    let asked = Box::pin(async move {
        // The URI is ignored: the connector uses the socket.
        let connector = tower::service_fn(move |_name: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let unreached = |error| Error::unreached(socket, &error);
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await.map_err(unreached)?;
        let mut client = Grpc::new(channel);
        client.ready().await.map_err(unreached)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = client.unary(Request::new(question), PathAndQuery::from_static(method), codec);
        answer.await.map(Response::into_inner).map_err(Error::from)
    });
    timeout(limit, asked).await.unwrap_or_else(|_elapsed| {
        Err(Error {
            code: Code::DeadlineExceeded,
            message: "context deadline exceeded".to_owned(),
        })
    })
}

/// Asks a registration socket for the plugin behind it.
pub async fn plugin_info(socket: &Path) -> Result<PluginInfo, Error> {
    let method = "/pluginregistration.Registration/GetInfo";
    call(socket, method, REGISTRATION, Empty {}).await
}

/// Tells a registration socket the outcome.
pub async fn notify(socket: &Path, outcome: Result<(), String>) -> Result<(), Error> {
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.err().unwrap_or_default(),
    };
    let method = "/pluginregistration.Registration/NotifyRegistrationStatus";
    call(socket, method, REGISTRATION, status).await.map(|Empty {}| ())
}

/// Abilities of a driver's node service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one of the protocol's")]
pub struct Capabilities {
    /// `STAGE_UNSTAGE_VOLUME`
    pub stages: bool,
    /// `EXPAND_VOLUME`
    pub expands: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub tells_writers: bool,
    /// `VOLUME_MOUNT_GROUP`
    pub takes_group: bool,
}

/// Node service of a driver.
#[derive(Clone, Debug)]
pub struct Driver {
    socket: PathBuf,
}

impl Driver {
    /// Driver at a socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// `NodeGetInfo`
    pub async fn info(&self) -> Result<NodeInfo, Error> {
        call(&self.socket, "/csi.v1.Node/NodeGetInfo", CALL, Empty {}).await
    }

    /// `NodeGetCapabilities`
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        let method = "/csi.v1.Node/NodeGetCapabilities";
        let all: NodeCapabilities = call(&self.socket, method, CALL, Empty {}).await?;
        let has = |kind| {
            all.capabilities
                .iter()
                .any(|one| one.rpc == Some(RpcCapability { kind }))
        };
        Ok(Capabilities {
            stages: has(1),
            expands: has(3),
            tells_writers: has(5),
            takes_group: has(6),
        })
    }

    /// `NodeStageVolume`
    pub async fn stage(&self, request: StageRequest) -> Result<(), Error> {
        self.change("/csi.v1.Node/NodeStageVolume", request).await
    }

    /// `NodePublishVolume`
    pub async fn publish(&self, request: PublishRequest) -> Result<(), Error> {
        self.change("/csi.v1.Node/NodePublishVolume", request).await
    }

    /// `NodeExpandVolume`
    pub async fn expand(&self, request: ExpandRequest) -> Result<(), Error> {
        self.change("/csi.v1.Node/NodeExpandVolume", request).await
    }

    /// `NodeUnstageVolume`
    pub async fn unstage(&self, volume: &str, path: &Path) -> Result<(), Error> {
        self.change("/csi.v1.Node/NodeUnstageVolume", undo(volume, path)).await
    }

    /// `NodeUnpublishVolume`
    pub async fn unpublish(&self, volume: &str, path: &Path) -> Result<(), Error> {
        self.change("/csi.v1.Node/NodeUnpublishVolume", undo(volume, path))
            .await
    }

    async fn change<Q: Message + 'static>(&self, method: &'static str, request: Q) -> Result<(), Error> {
        call(&self.socket, method, CALL, request).await.map(|Empty {}| ())
    }
}

fn undo(volume: &str, path: &Path) -> UndoRequest {
    UndoRequest {
        volume_id: volume.to_owned(),
        path: path.display().to_string(),
    }
}

/// Highest version that a driver supports, by its numbers; those above 1 do not count
/// (`HighestSupportedVersion`, `apimachinery/pkg/util/version/version.go`).
pub fn highest_version(versions: &[String]) -> Option<Vec<u64>> {
    let parsed = versions.iter().filter_map(|version| {
        let digits = version.trim().trim_start_matches('v');
        let end = digits.find(|sign: char| !sign.is_ascii_digit() && sign != '.');
        let fields = digits.get(..end.unwrap_or(digits.len()))?.split('.');
        let numbers: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        (numbers.len() > 1).then_some(numbers)
    });
    let highest = parsed.filter(|numbers| numbers.first() <= Some(&1)).max();
    highest.filter(|numbers| numbers.first() == Some(&1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_of_version_1_are_supported() {
        let highest = |versions: &[&str]| {
            let versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
            highest_version(&versions)
        };
        assert_eq!(highest(&["1.0.0", "v1.3.0-rc1", "2.0.0"]), Some(vec![1, 3, 0]));
        assert_eq!(highest(&["0.3.0"]), None);
        assert_eq!(highest(&["1", "x"]), None);
    }

    #[test]
    fn modes_depend_on_whether_the_driver_tells_writers() {
        let mode = |mode: &str, tells_writers| {
            let driver = Capabilities {
                tells_writers,
                ..Capabilities::default()
            };
            let capability = VolumeCapability::new("ext4", &[], Some(7), mode, driver);
            assert_eq!(capability.mount.unwrap().volume_mount_group, "7");
            capability.access_mode.unwrap().mode
        };
        assert_eq!([mode("ReadWriteOnce", false), mode("ReadWriteOnce", true)], [1, 7]);
        assert_eq!(
            [mode("ReadWriteOncePod", false), mode("ReadWriteOncePod", true)],
            [1, 6]
        );
        assert_eq!([mode("ReadOnlyMany", false), mode("ReadWriteMany", true)], [3, 5]);
    }

    #[tokio::test]
    async fn a_driver_that_does_not_answer_is_named() {
        let long = PathBuf::from(format!("/{}", "x".repeat(200)));
        for socket in [PathBuf::from("/nowhere/csi.sock"), long] {
            let driver = Driver::new(socket.clone());
            let error = driver.capabilities().await.unwrap_err();
            let told = format!(
                "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}",
                socket.display()
            );
            assert!(error.to_string().starts_with(&told), "{error}");
            assert!(!error.is_final());
        }
    }
}
