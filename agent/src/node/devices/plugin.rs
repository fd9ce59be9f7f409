//! Calls to a device plugin.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Empty, ListAndWatchResponse, Options, PreStartContainerRequest,
    PreferredAllocationRequest, PreferredAllocationResponse,
};

/// Time to connect (`dial`, `pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`).
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout of `PreStartContainer` (`KubeletPreStartContainerRPCTimeoutInSecs`).
const PRE_START: Duration = Duration::from_secs(30);
/// Timeout of other calls, which have none upstream: one that hangs would keep out all other pods.
const CALL: Duration = Duration::from_mins(2);

/// Connection to a plugin. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Plugin(Channel);

impl Plugin {
    pub(super) async fn connect(socket: PathBuf) -> Result<Self, String> {
        let shown = socket.display().to_string();
        // The URI is ignored: the connector uses the socket.
        let connector = tower::service_fn(move |_name: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let connecting = endpoint.connect_with_connector(connector);
        match timeout(CONNECT, connecting).await {
            Ok(Ok(channel)) => Ok(Self(channel)),
            Ok(Err(error)) => Err(format!(
                "failed to dial device plugin: {shown}: {}",
                image::chain(&error)
            )),
            Err(elapsed) => Err(format!("failed to dial device plugin: {shown}: {elapsed}")),
        }
    }

    pub(super) async fn options(&self) -> Result<Options, String> {
        self.call("/v1beta1.DevicePlugin/GetDevicePluginOptions", Empty {}, CALL)
            .await
    }

    pub(super) async fn watch(&self) -> Result<Streaming<ListAndWatchResponse>, String> {
        let path = PathAndQuery::from_static("/v1beta1.DevicePlugin/ListAndWatch");
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| image::chain(&error))?;
        let codec: ProstCodec<Empty, ListAndWatchResponse> = ProstCodec::default();
        let answer = grpc.server_streaming(Request::new(Empty {}), path, codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| csi::Error::from(status).to_string())
    }

    pub(super) async fn allocate(&self, devices_ids: Vec<String>) -> Result<ContainerAllocateResponse, String> {
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { devices_ids }],
        };
        let answer: AllocateResponse = self.call("/v1beta1.DevicePlugin/Allocate", request, CALL).await?;
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| "no containers return in allocation response".to_owned())
    }

    /// Returns the devices that the plugin would choose.
    pub(super) async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        wanted: usize,
    ) -> Result<Vec<String>, String> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available,
                must_include,
                allocation_size: i32::try_from(wanted).unwrap_or(i32::MAX),
            }],
        };
        let method = "/v1beta1.DevicePlugin/GetPreferredAllocation";
        let answer: Result<PreferredAllocationResponse, String> = self.call(method, request, CALL).await;
        let answer =
            answer.map_err(|why| format!("device plugin GetPreferredAllocation rpc failed with err: {why}"))?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|first| first.ids).unwrap_or_default())
    }

    pub(super) async fn pre_start(&self, devices_ids: Vec<String>) -> Result<(), String> {
        let request = PreStartContainerRequest { devices_ids };
        let method = "/v1beta1.DevicePlugin/PreStartContainer";
        let answer: Result<Empty, String> = self.call(method, request, PRE_START).await;
        answer.map(drop)
    }

    async fn call<Q, A>(&self, method: &'static str, message: Q, limit: Duration) -> Result<A, String>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let calling = async {
            let mut grpc = Grpc::new(self.0.clone());
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(image::chain(&error)))?;
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            let path = PathAndQuery::from_static(method);
            grpc.unary(Request::new(message), path, codec).await
        };
        let late = || Err(Status::deadline_exceeded("context deadline exceeded"));
        let answer = timeout(limit, calling).await.unwrap_or_else(|_elapsed| late());
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| csi::Error::from(status).to_string())
    }
}
