//! End of drivers' volumes: unpublished with their pod, and unstaged when no pod uses them, before
//! they may be detached. Succeeds in any state, repeatedly.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use common::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::files::Published;
use super::registered::Handle;
use super::{files, nodes};
use crate::Error;
use crate::context::Context;

/// Interval of attempts to release volumes whose release has failed.
const RETRY: Duration = Duration::from_secs(30);

/// Unpublishes all volumes of a pod; continues after failures.
pub(crate) async fn pod(context: &Context, uid: &str) -> Result<(), String> {
    let mut failures = Vec::new();
    let lock = context.drivers.lock(uid).await;
    for published in files::of_pod(&context.config.kubelet_directory, uid) {
        let name = &published.name;
        if let Err(why) = unpublish(context, &published).await {
            failures.push(format!("UnmountVolume.TearDown failed for volume {name:?} : {why}"));
        }
    }
    files::remove_pod(&context.config.kubelet_directory, uid);
    if failures.is_empty() {
        context.drivers.leave(uid);
    }
    drop(lock);
    context.drivers.left.notify_one();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures.join("; "))
    }
}

/// `TearDownAt`, `pkg/volume/csi/csi_mounter.go`
async fn unpublish(context: &Context, published: &Published) -> Result<(), String> {
    let Published { place, handle, .. } = published;
    let _volume = context.drivers.lock(&handle.unique_name()).await;
    let driver = context.drivers.get(&handle.driver);
    let driver =
        driver.map_err(|why| format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {why}"))?;
    let unpublished = driver.unpublish(&handle.volume, &place.target).await;
    unpublished.map_err(|error| format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {error}"))?;
    let what = "kubernetes.io/csi: Unmounter.TearDownAt failed to clean mount dir";
    files::remove(place).map_err(|why| format!("{what} [{}]: {why}", place.target.display()))
}

/// Unstages volumes without end: the pods that used them do not wait for their drivers.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    loop {
        if timeout(RETRY, context.drivers.left.notified()).await.is_err() {
            unpublish_orphans(&context).await;
        }
        release_unused(&context).await;
    }
}

/// Tries again what drivers refused, or were not there for: volumes of pods of which nothing else is
/// left.
async fn unpublish_orphans(context: &Context) {
    for uid in files::pods(&context.config.kubelet_directory) {
        // A pod has its own directory before it has volumes of drivers, and until it is torn down.
        if context.known_pod(&uid).is_some() || context.pod_directory(&uid).exists() {
            continue;
        }
        if let Err(why) = pod(context, &uid).await {
            warn!(
                pod = uid,
                why, "volumes of a pod that is gone could not be unmounted; it will be tried again"
            );
        }
    }
}

/// Unstages volumes that no pod uses, side by side; they then leave the Node's status. A volume that
/// fails stays for the next call.
async fn release_unused(context: &Arc<Context>) {
    let mut tasks = JoinSet::new();
    for handle in context.drivers.unused() {
        let context = Arc::clone(context);
        tasks.spawn(async move { release(&context, &handle).await });
    }
    let mut released = false;
    while let Some(done) = tasks.join_next().await {
        released |= done.unwrap_or(false);
    }
    if released && let Err(why) = nodes::report_in_use(context).await {
        // The next status of the Node has it.
        warn!(why, "the volumes in use could not be reported");
    }
}

/// Unstages a volume unless a pod has come meanwhile; returns whether the Node's status listed it.
async fn release(context: &Context, handle: &Handle) -> bool {
    let _volume = context.drivers.lock(&handle.unique_name()).await;
    if !context.drivers.unused().contains(handle) {
        return false;
    }
    match unstage(context, handle).await {
        Ok(()) => context.drivers.release(handle),
        Err(why) => {
            warn!(
                volume = handle.unique_name(),
                why, "a volume could not be unstaged; it will be tried again"
            );
            false
        }
    }
}

/// `UnmountDevice`, `pkg/volume/csi/csi_attacher.go`
async fn unstage(context: &Context, handle: &Handle) -> Result<(), String> {
    let staged = files::staged(&context.config.kubelet_directory).into_iter();
    for (_, place) in staged.filter(|(known, _)| known == handle) {
        let driver = context.drivers.get(&handle.driver).map_err(|why| {
            format!("kubernetes.io/csi: attacher.UnmountDevice failed to create newCsiDriverClient: {why}")
        })?;
        let abilities = driver.capabilities().await.map_err(|error| {
            let what = "failed to check whether STAGE_UNSTAGE_VOLUME set";
            format!("kubernetes.io/csi: attacher.UnmountDevice {what}: {error}")
        })?;
        if abilities.stages {
            let unstaged = driver.unstage(&handle.volume, &place.target).await;
            unstaged.map_err(|error| format!("kubernetes.io/csi: attacher.UnmountDevice failed: {error}"))?;
        }
        files::remove(&place)?;
    }
    Ok(())
}
