//! Connections to pods: to their loopback, from inside their network namespace, and to their
//! addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::core::v1::Pod;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::refused;
use crate::context::Context;
use crate::serve::streams::upgrade;

/// Timeout of a connection to a pod.
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout of a connection that is only tried.
const TRIED: Duration = Duration::from_secs(3);
const BUFFER: usize = 32 << 10;

/// Network location of a pod.
pub(super) struct Location {
    /// ID of the sandbox, for messages.
    pub(super) sandbox: String,
    /// Path of the network namespace; `None` for the host network.
    pub(super) netns: Option<PathBuf>,
    pub(super) address: Option<IpAddr>,
}

/// Locates a pod by its sandbox and not by its status in the API.
pub(super) async fn locate(context: &Context, pod: &Pod) -> Option<Location> {
    let (uid, spec) = (pods::uid(pod), pod.spec.as_ref()?);
    if pods::host_network(spec) {
        return Some(Location {
            sandbox: uid.to_owned(),
            netns: None,
            address: context.config.addresses.first().copied(),
        });
    }
    let attachments = context.parts.network.attachments().await.ok()?;
    let own = attachments.into_iter().filter(|own| {
        let owner = own.sandbox_id.rsplit_once('-').map(|(owner, _)| owner);
        owner == Some(uid)
    });
    let newest = own.max_by_key(|own| {
        let attempt = own.sandbox_id.rsplit_once('-').map(|(_, attempt)| attempt);
        attempt.and_then(|attempt| attempt.parse::<u32>().ok())
    })?;
    let addresses: Vec<IpAddr> = newest.addresses.iter().map(|held| held.address).collect();
    Some(Location {
        sandbox: newest.sandbox_id,
        netns: Some(newest.netns),
        address: context.config.in_order(&addresses).first().copied(),
    })
}

impl Location {
    /// Connects to a port of the pod's loopback.
    pub(super) async fn loopback(&self, port: u16) -> Result<TcpStream, String> {
        let v4 = match self.connect(IpAddr::V4(Ipv4Addr::LOCALHOST), port).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let v6 = match self.connect(IpAddr::V6(Ipv6Addr::LOCALHOST), port).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let netns = self.netns.as_deref().unwrap_or(std::path::Path::new("host")).display();
        Err(format!(
            "failed to execute portforward in network namespace \"{netns}\": failed to connect to localhost:{port} inside \
             namespace {:?}, IPv4: dial tcp4 127.0.0.1:{port}: connect: {} IPv6 dial tcp6 [::1]:{port}: connect: {} ",
            self.sandbox,
            plain(&v4),
            plain(&v6)
        ))
    }

    async fn connect(&self, address: IpAddr, port: u16) -> io::Result<TcpStream> {
        let socket = TcpSocket::from_std_stream(self.socket(address.is_ipv6()).await?.into());
        let connected = timeout(CONNECT, socket.connect(SocketAddr::new(address, port))).await;
        let stream = connected.map_err(io::Error::from).flatten()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Creates a socket in the pod's network namespace, where it stays. The thread that enters the
    /// namespace is not reused.
    async fn socket(&self, v6: bool) -> io::Result<OwnedFd> {
        let netns = self.netns.clone();
        let (sender, ready) = oneshot::channel();
        let make = move || {
            if let Some(netns) = netns {
                setns(std::fs::File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
            }
            let family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            Ok(socket(family, SockType::Stream, flags, None)?)
        };
        let thread = std::thread::Builder::new().name("dial".to_owned());
        thread.spawn(move || drop(sender.send(make())))?;
        ready.await.map_err(io::Error::other)?
    }
}

/// Returns the kernel's message as Go has it.
fn plain(error: &io::Error) -> String {
    let text = match error.raw_os_error() {
        None if error.kind() == io::ErrorKind::TimedOut => return "i/o timeout".to_owned(),
        None => return error.to_string(),
        Some(number) => Errno::from_raw(number).desc(),
    };
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// `/dial/NAMESPACE/POD/PORT`: switches to a connection to the pod's address, for the API server's
/// proxy.
pub(in super::super) async fn dial(
    State(context): State<Arc<Context>>,
    Path((namespace, name, port)): Path<(String, String, u16)>,
    request: Request,
) -> Response {
    if upgrade::wanted(&request) != "tcp" {
        return refused(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let Some(pod) = context.pod(&namespace, &name) else {
        return refused(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let location = locate(&context, &pod).await;
    let Some(address) = location.and_then(|location| location.address) else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the pod has no address yet");
    };
    join(request, SocketAddr::new(address, port)).await
}

/// `/dial/PORT`: switches to a connection to the node's own address. Services that listen only on
/// loopback are not reachable.
pub(in super::super) async fn dial_node(
    State(context): State<Arc<Context>>,
    Path(port): Path<u16>,
    request: Request,
) -> Response {
    if upgrade::wanted(&request) != "tcp" {
        return refused(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let own = context.config.addresses.iter().find(|address| !address.is_loopback());
    let Some(address) = own else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the node has no address");
    };
    join(request, SocketAddr::new(*address, port)).await
}

/// Destination of a connection that is tried.
#[derive(Deserialize)]
pub(in super::super) struct Destination {
    to: SocketAddr,
}

/// `/reach/NAMESPACE/POD?to=ADDRESS:PORT`: tries a TCP connection from inside the pod, without
/// sending anything, for `skiff why`.
pub(in super::super) async fn reach(
    State(context): State<Arc<Context>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(Destination { to }): Query<Destination>,
) -> Response {
    let Some(pod) = context.pod(&namespace, &name) else {
        return refused(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let Some(location) = locate(&context, &pod).await else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the pod has no network yet");
    };
    let begun = Instant::now();
    let tried = timeout(TRIED, location.connect(to.ip(), to.port())).await;
    let error = tried.map_err(io::Error::from).flatten().err();
    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Json(json!({"micros": micros, "error": error.as_ref().map(plain)})).into_response()
}

async fn join(request: Request, target: SocketAddr) -> Response {
    let connected = timeout(CONNECT, TcpStream::connect(target)).await;
    let mut stream = match connected.map_err(io::Error::from).flatten() {
        Ok(stream) => stream,
        Err(error) => {
            let late = error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none();
            let operation = if late { "" } else { "connect: " };
            let text = format!("dial tcp {target}: {operation}{}", plain(&error));
            return refused(StatusCode::BAD_GATEWAY, text);
        }
    };
    upgrade::switch(request, "tcp", Vec::new(), move |mut io| async move {
        // A broken connection just ends.
        tokio::io::copy_bidirectional_with_sizes(&mut io, &mut stream, BUFFER, BUFFER)
            .await
            .ok();
    })
}
