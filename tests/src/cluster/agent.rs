//! A node: the real agent over the simulated runtime, network and images.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use agent::{Config, Parts};
use tokio_util::sync::CancellationToken;

/// Runs one node until `cancel`.
pub(super) async fn run(
    client: kube::Client,
    name: String,
    clock: server::Clock,
    directory: PathBuf,
    cancel: CancellationToken,
) {
    let config = Config {
        node_name: name.clone(),
        state_directory: directory,
        pod_cidr: None,
        addresses: vec![IpAddr::from([127, 0, 0, 1])],
        port: 10250,
        max_pods: 110,
        disk_floor_percent: 0,
        dns: agent_plan::files::ClusterDns::default(),
        labels: BTreeMap::new(),
    };
    let parts = Parts {
        client,
        runtime: Arc::new(runtime::Sim::new()),
        network: Arc::new(network::Sim::new()),
        images: Arc::new(agent::images::Sim),
        clock,
    };
    let (context, events) = match agent::context(config, parts) {
        Ok(made) => made,
        Err(error) => {
            tracing::error!(node = name, %error, "the agent could not start");
            return;
        }
    };
    let Err(error) = Box::pin(agent::run(context, events, cancel, || {})).await;
    tracing::debug!(node = name, %error, "the agent ended");
}
