//! The socket at which plugins register
//! (`pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go`), and the streams of their devices.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use agent_plan::node::devices::is_extended;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use common::task::JoinSet;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message as _;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::messages::{RegisterRequest, VERSION};
use super::plugin::Plugin;
use super::{DIRECTORY, Devices, checkpoint};
use crate::Error;

/// Name of the socket.
const SOCKET: &str = "kubelet.sock";
/// Maximum length of a request.
const REQUEST_BYTES: usize = 64 << 10;
/// Registrations that may be queued.
const REGISTRATIONS: usize = 16;
/// Length of the prefix of a gRPC message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// gRPC status of a failure without a code (`Unknown`).
const UNKNOWN: u16 = 2;

/// A plugin that has registered.
struct Registered {
    resource: String,
    registration: u64,
    plugin: Plugin,
}

#[derive(Clone)]
struct Server {
    devices: Arc<Devices>,
    registered: mpsc::Sender<Registered>,
}

/// Serves registrations and follows the plugins' devices without end.
pub(crate) async fn run(devices: Arc<Devices>) -> Result<Infallible, Error> {
    let (registered, mut plugins) = mpsc::channel(REGISTRATIONS);
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut watches: BTreeMap<String, AbortHandle> = BTreeMap::new();
    let server = Server {
        devices: Arc::clone(&devices),
        // The original keeps the channel open.
        registered: registered.clone(),
    };
    match listen(&devices.directory) {
        Ok(listener) => {
            let router = Router::new()
                .route("/v1beta1.Registration/Register", post(register))
                .with_state(server);
            tasks.spawn(async move {
                if let Err(error) = axum::serve(listener, router).await {
                    warn!(%error, "device plugins can no longer register");
                }
            });
        }
        Err(error) => {
            let directory = devices.directory.display();
            warn!(%directory, %error, "device plugins cannot register");
        }
    }
    loop {
        tokio::select! {
            Some(new) = plugins.recv() => {
                let Registered { resource, registration, plugin } = new;
                let (devices, name) = (Arc::clone(&devices), resource.clone());
                let watch = tasks.spawn(async move { follow(&devices, &name, registration, &plugin).await });
                if let Some(earlier) = watches.insert(resource, watch) {
                    earlier.abort();
                }
            }
            // Each has told its failure.
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Binds the socket anew, and removes those of plugins: they notice and register again
/// (`CleanupPluginDirectory`). A kubelet that runs on the machine keeps its own.
fn listen(directory: &Path) -> io::Result<UnixListener> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    if is_served(directory) {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another kubelet serves its kubelet.sock",
        ));
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            fs::remove_file(entry.path())?;
        }
    }
    let socket = directory.join(SOCKET);
    let listener = UnixListener::bind(&socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn is_served(directory: &Path) -> bool {
    UnixStream::connect(directory.join(SOCKET)).is_ok()
}

/// Removes the plugins' socket and checkpoint of an agent that has ended.
pub(crate) fn clean(kubelet: &Path) -> io::Result<()> {
    let directory = kubelet.join(DIRECTORY);
    trees::remove(&directory.join(SOCKET))?;
    trees::remove(&directory.join(checkpoint::NAME))?;
    // Plugins' sockets are there, or it never was.
    fs::remove_dir(directory).ok();
    Ok(())
}

/// Handles the gRPC method `Register`.
async fn register(State(server): State<Server>, body: Body) -> Response {
    let outcome = match to_bytes(body, REQUEST_BYTES).await {
        Ok(bytes) => match bytes.get(PREFIX..).map(RegisterRequest::decode) {
            Some(Ok(request)) => accept(&server, request).await,
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the request has no message".to_owned()),
        },
        Err(error) => Err(image::chain(&error)),
    };
    if let Err(why) = &outcome {
        warn!(why, "bad registration request from device plugin");
    }
    answer(outcome.err().as_deref())
}

async fn accept(server: &Server, request: RegisterRequest) -> Result<(), String> {
    let RegisterRequest {
        version,
        endpoint,
        resource_name: resource,
    } = request;
    if version != VERSION {
        return Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
        ));
    }
    if !is_extended(&resource) {
        return Err(format!("the ResourceName {resource:?} is invalid"));
    }
    let plugin = Plugin::connect(server.devices.directory.join(endpoint.trim_start_matches('/'))).await?;
    let options = plugin.options().await;
    let options = options.map_err(|why| format!("failed to get device plugin options: {why}"))?;
    let registration = server.devices.register(&resource, plugin.clone(), options);
    info!(resource, "a device plugin has registered");
    let registered = Registered {
        resource,
        registration,
        plugin,
    };
    // Closed only when the agent ends.
    server
        .registered
        .send(registered)
        .await
        .map_err(|error| error.to_string())
}

/// Empty message with the gRPC status in the trailers, or a failure in the headers alone.
fn answer(failure: Option<&str>) -> Response {
    let mut response = Response::new(Body::empty());
    if let Some(why) = failure {
        let why = utf8_percent_encode(why, NON_ALPHANUMERIC).to_string();
        let headers = response.headers_mut();
        headers.insert("grpc-status", HeaderValue::from(UNKNOWN));
        headers.extend(HeaderValue::from_str(&why).map(|why| (HeaderName::from_static("grpc-message"), why)));
    } else {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(0_u16));
        let trailers = std::future::ready(Some(Ok::<_, Infallible>(trailers)));
        let message = Full::new(Bytes::from_static(&[0; PREFIX]));
        *response.body_mut() = Body::new(message.with_trailers(trailers));
    }
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Applies the plugin's lists of devices until it ends.
async fn follow(devices: &Arc<Devices>, resource: &str, registration: u64, plugin: &Plugin) {
    let ended = match plugin.watch().await {
        Ok(mut lists) => loop {
            match lists.message().await {
                Ok(Some(list)) => {
                    if !devices.update(resource, registration, list) {
                        return;
                    }
                    if let Err(error) = devices.save().await {
                        warn!(%error, "the devices of containers could not be written");
                    }
                }
                Ok(None) => break "the stream has ended".to_owned(),
                Err(status) => break status.message().to_owned(),
            }
        },
        Err(why) => why,
    };
    warn!(resource, ended, "ListAndWatch ended unexpectedly for device plugin");
    devices.stop(resource, registration);
}
