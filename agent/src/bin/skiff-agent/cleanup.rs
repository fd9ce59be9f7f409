//! `skiff-agent cleanup`: ends every pod and removes everything that the agent made on this machine.

use std::io::Write as _;

use agent::kubelet_directory::clean;
use agent::lock::Lock;
use anyhow::bail;
use volume::Volumes;

use crate::command::Arguments;

/// Continues after failures and reports all of them; may be repeated. Fails while an agent runs.
/// Records of a container engine that is gone remain with it, and resources that network plugins do
/// not release remain theirs if the images are removed too: these are reported on standard output.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let _lock = Lock::take(&arguments.state_dir, "cleanup")?;
    let mut failures: Vec<String> = Vec::new();
    let trouble = arguments.engine_trouble().await;
    let ended = match arguments.runtime().await {
        Ok(runtime) => runtime.cleanup().await.err().map(|error| image::chain(&error)),
        // No pod of this agent was ever created there.
        Err(error) if matches!(error.downcast_ref(), Some(runtime::Error::GroupTaken { .. })) => None,
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(trouble) = &trouble {
        if ended.is_some() {
            let ended = arguments.end_without_engine(arguments.with_images).await;
            failures.extend(ended.err().map(|error| image::chain(&error)));
        }
        tell_left(&[format!("what containerd has recorded of this node: {trouble:#}")]);
    } else {
        failures.extend(ended);
    }
    if arguments.with_images && trouble.is_none() {
        match arguments.images().await {
            Ok(images) => failures.extend(images.purge().await.err().map(|error| image::chain(&error))),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    match arguments.network() {
        Ok(network) => {
            match network.stop().await {
                Ok(()) => {}
                // A removal of everything does not fail for state that may never be restored.
                Err(network::Error::Held(held)) if arguments.with_images => tell_left(&held),
                Err(error) => failures.push(image::chain(&error)),
            }
            if network.local_address().is_some() {
                let released = common::task::spawn_blocking(network::local::release).await;
                failures.extend(released.into_iter().filter_map(|gone| Some(image::chain(&gone.err()?))));
            }
        }
        Err(error) => failures.push(format!("{error:#}")),
    }
    let tables = [arguments.remove_service_proxy(), arguments.remove_network_policies()];
    failures.extend(tables.into_iter().filter_map(|gone| Some(image::chain(&gone.err()?))));
    let volumes = Volumes::new(arguments.state_dir.join("pods"), true);
    match volumes.pods() {
        Ok(pods) => {
            for uid in pods {
                failures.extend(volumes.tear_down(&uid).err().map(|error| error.to_string()));
            }
        }
        Err(error) => failures.push(error.to_string()),
    }
    let cleaned = clean(arguments.kubelet_dir.as_deref(), &arguments.state_dir);
    let removals = [
        ("the plugins' mounts", cleaned.map(|kept| tell_left(&kept))),
        ("the logs", arguments.logs(&arguments.state_dir).purge()),
        ("the socket", trees::remove(&arguments.state_dir.join("agent.sock"))),
    ];
    for (what, removed) in removals {
        failures.extend(removed.err().map(|error| format!("remove {what}: {error}")));
    }
    if failures.is_empty() {
        tracing::info!("everything is removed");
        return Ok(());
    }
    bail!(
        "{} step(s) of the removal failed: {}",
        failures.len(),
        failures.join("; ")
    )
}

/// Reports what remains on the machine after a successful cleanup.
fn tell_left(held: &[String]) {
    for what in held {
        // Standard output may be closed.
        writeln!(std::io::stdout(), "{what}").ok();
    }
}
