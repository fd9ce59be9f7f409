//! Registration of drivers at sockets in `plugins_registry` (`pkg/kubelet/pluginmanager`, and
//! `RegistrationHandler` of `pkg/volume/csi/csi_plugin.go`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::task::JoinSet;
use futures::FutureExt as _;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::{info, warn};

use super::registered::Registered;
use super::{files, nodes};
use crate::Error;
use crate::context::Context;

/// Interval of looks at the directory.
const LOOK: Duration = Duration::from_secs(1);
/// First and longest time between two attempts to register a plugin.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

/// Inode and time of a socket, which differ for the next one at the same path.
type Identity = (u64, i64, i64);

/// Socket that is, or was, in the directory.
struct Socket {
    identity: Identity,
    /// Dropped when the socket is gone.
    present: Option<oneshot::Sender<Infallible>>,
    task: AbortHandle,
}

/// Makes the kubelet's directories, and adopts the volumes of an earlier agent.
pub(crate) fn start(context: &Context) {
    if !context.config.secrets_in_memory {
        // Simulated nodes have no drivers.
        return;
    }
    let kubelet = &context.config.kubelet_directory;
    for name in [files::REGISTRY, "plugins", "pods"] {
        if let Err(error) = files::make(&kubelet.join(name)) {
            warn!(path = %kubelet.display(), %error, "storage drivers cannot register: the directory could not be made");
        }
    }
    // As if all were attached: whether one is, its `CSIDriver` says, which may be gone.
    for (handle, _) in files::staged(kubelet) {
        context.drivers.take(&handle, None, true);
    }
    for uid in files::pods(kubelet) {
        for published in files::of_pod(kubelet, &uid) {
            context.drivers.take(&published.handle, Some(&uid), true);
        }
    }
}

/// Registers drivers without end.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    if !context.config.secrets_in_memory {
        return std::future::pending().await;
    }
    let registry = context.config.kubelet_directory.join(files::REGISTRY);
    nodes::begin(&context).await;
    let mut sockets: BTreeMap<PathBuf, Socket> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let found = look(&registry);
        sockets.retain(|path, socket| {
            if found.get(path) != Some(&socket.identity) {
                socket.present = None;
            }
            !socket.task.is_finished()
        });
        // The next socket at a path comes when the plugin of the last one is unregistered.
        for (path, identity) in found {
            sockets.entry(path).or_insert_with_key(|path| {
                let (present, gone) = oneshot::channel();
                Socket {
                    identity,
                    present: Some(present),
                    task: tasks.spawn(attend(Arc::clone(&context), path.clone(), gone)),
                }
            });
        }
        // Of those that have ended.
        while tasks.join_next().now_or_never().flatten().is_some() {}
        sleep(LOOK).await;
    }
}

/// Registers the plugin behind a socket, until that is gone.
async fn attend(context: Arc<Context>, path: PathBuf, mut gone: oneshot::Receiver<Infallible>) {
    let name = OnceLock::new();
    let mut pause = PAUSES.0;
    let register = async {
        while let Err(why) = register(&context, &path, &name).await {
            warn!(why, path = %path.display(), "a plugin could not be registered; it will be tried again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        info!(driver = name.get(), path = %path.display(), "a storage driver has registered");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = register => {}
        _ = &mut gone => {}
    }
    if let Some(driver) = name.get() {
        let _turn = turn(&context, driver).await;
        info!(driver, path = %path.display(), "a storage driver is gone");
        unregister(&context, driver, &path).await;
    }
}

/// Sockets in the directory, without hidden ones.
fn look(registry: &Path) -> BTreeMap<PathBuf, Identity> {
    let entries = std::fs::read_dir(registry).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        let identity = (found.ino(), found.mtime(), found.mtime_nsec());
        (found.file_type().is_socket() && !is_hidden).then(|| (entry.path(), identity))
    });
    sockets.collect()
}

/// Registers the plugin behind a socket and tells it the outcome; `name` is set if it is a driver's.
async fn register(context: &Context, socket: &Path, name: &OnceLock<String>) -> Result<(), String> {
    let plugin = csi::plugin_info(socket).await.map_err(|error| {
        let socket = socket.display();
        format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, err: {error}")
    })?;
    let _turn = turn(context, &plugin.name).await;
    let outcome = accept(context, socket, &plugin, name).await;
    let registered = outcome.is_ok();
    if let Err(error) = csi::notify(socket, outcome.clone()).await {
        if registered {
            unregister(context, &plugin.name, socket).await;
        }
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {}, err: {error}",
            socket.display()
        ));
    }
    outcome
}

/// Locks a driver's registration: another socket may come with the same name.
async fn turn(context: &Context, driver: &str) -> OwnedMutexGuard<()> {
    context.drivers.lock(&format!("registration of {driver}")).await
}

async fn accept(
    context: &Context,
    socket: &Path,
    plugin: &csi::PluginInfo,
    known_as: &OnceLock<String>,
) -> Result<(), String> {
    let csi::PluginInfo {
        kind,
        name,
        endpoint,
        supported_versions: versions,
    } = plugin;
    if kind != csi::PLUGIN_TYPE {
        let socket = socket.display();
        return Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}"
        ));
    }
    let invalid = |why: String| {
        format!(
            "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver {name} at endpoint \
             {endpoint}: kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. {why}"
        )
    };
    // The name becomes part of paths.
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(invalid("The name is invalid".to_owned()));
    }
    let Some(version) = csi::highest_version(versions) else {
        return Err(invalid(format!(
            "None of the versions specified {versions:?} are supported."
        )));
    };
    if let Some(known) = context.drivers.version(name)
        && known >= version
    {
        let known: Vec<String> = known.iter().map(u64::to_string).collect();
        return Err(invalid(format!(
            "Another driver with the same name is already registered with a higher supported version: {:?}",
            known.join(".")
        )));
    }
    let endpoint = if endpoint.is_empty() {
        socket
    } else {
        Path::new(endpoint)
    };
    let driver = csi::Driver::new(endpoint.to_owned());
    let failed = |why: String| format!("RegisterPlugin error -- plugin registration failed with err: {why}");
    let info = driver.info().await.map_err(|error| failed(error.to_string()))?;
    known_as.get_or_init(|| name.clone());
    if let Err(why) = nodes::install(context, name, &info).await {
        unregister(context, name, socket).await;
        return Err(failed(why));
    }
    let socket = socket.to_owned();
    let registered = Registered {
        driver,
        version,
        socket,
    };
    context.drivers.register(name, registered);
    Ok(())
}

async fn unregister(context: &Context, driver: &str, socket: &Path) {
    if !context.drivers.unregister(driver, socket) {
        return;
    }
    if let Err(why) = nodes::uninstall(context, driver).await {
        warn!(
            driver,
            why, "a storage driver that is gone could not be removed from the node"
        );
    }
}
