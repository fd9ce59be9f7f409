//! A node: the real agent over the simulated runtime, network and images.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent::images::{Failure, Sim, Source};
use agent::{Config, Parts};
use futures::future::BoxFuture;
use runtime::Behaviour;
use tokio_util::sync::CancellationToken;

/// Runs one node until `cancel`, without the agent's server and what needs the machine's network; returns why it ended.
pub async fn run(parts: Parts, name: String, state_directory: PathBuf, cancel: CancellationToken) -> agent::Error {
    let config = Config {
        node_name: name,
        logs: agent::log_files::LogFiles::new(&state_directory, None),
        kubelet_directory: state_directory.join("kubelet"),
        state_directory,
        spares: 0,
        pod_cidr: None,
        addresses: vec![IpAddr::from([127, 0, 0, 1])],
        port: 10250,
        max_pods: 110,
        upkeep: agent::Upkeep::default(),
        shutdown: agent_plan::node::shutdown::Grace::default(),
        dns: agent_plan::container::files::ClusterDns::default(),
        resolv_conf: None,
        server: None,
        service_proxy: None,
        network_policies: None,
        secrets_in_memory: false,
        instance_id: None,
        registration: agent_plan::node::registration::Registration::default(),
        flags: Vec::new(),
    };
    let (context, events) = match agent::context(config, parts) {
        Ok(made) => made,
        Err(error) => return error,
    };
    let Err(error) = Box::pin(agent::run(context, events, cancel, || {})).await;
    error
}

/// A machine of the tests.
pub(super) fn parts(client: kube::Client, clock: server::Clock) -> Parts {
    Parts {
        client,
        runtime: Arc::new(machine()),
        network: Arc::new(network::Sim::new()),
        images: Arc::new(Stumbling::default()),
        clock,
    }
}

/// A runtime in which containers called `works` end well after two seconds, and those called `fails` do not after one.
fn machine() -> runtime::Sim {
    let machine = runtime::Sim::new();
    for (name, seconds, exit_code) in [("works", 2, 0), ("fails", 1, 3)] {
        let behaviour = Behaviour {
            runs_for: Some(Duration::from_secs(seconds)),
            exit_code,
            ..Behaviour::default()
        };
        machine.behave(name, behaviour);
    }
    machine
}

/// Number of times that an image stumbles.
const STUMBLES: usize = 3;

/// Images for which the code that asks for them panics a few times: `stumbles-alone` in a task of the pod's worker,
/// `stumbles` in the worker itself.
#[derive(Default)]
struct Stumbling {
    stumbled: AtomicUsize,
}

impl Stumbling {
    fn step(&self, stumbles: bool) {
        let times = self.stumbled.fetch_add(usize::from(stumbles), Ordering::Relaxed);
        assert!(!stumbles || times >= STUMBLES, "stumbled");
    }
}

impl Source for Stumbling {
    fn resolve(&self, name: &str) -> Result<Option<Arc<image::Image>>, Failure> {
        self.step(name.starts_with("stumbles:"));
        Sim.resolve(name)
    }

    fn pull<'a>(
        &'a self,
        name: &'a str,
        credentials: &'a [image::Credentials],
    ) -> BoxFuture<'a, Result<image::Pulled, Failure>> {
        Box::pin(async move {
            self.step(name.starts_with("stumbles-alone:"));
            Sim.pull(name, credentials).await
        })
    }

    fn list(&self) -> Vec<Arc<image::Image>> {
        Sim.list()
    }

    fn discard<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Failure>> {
        Box::pin(Sim.discard(id))
    }

    fn directory(&self) -> Option<&std::path::Path> {
        None
    }
}
