//! State of the name server that others read.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use agent_plan::container::files::ClusterDns;
use agent_plan::network::dns::Forwarding;
use tokio::sync::Notify;

use super::last::Last;

/// State of the node's name server.
pub(crate) struct Names {
    pub(super) servers: OnceLock<Vec<IpAddr>>,
    /// True once all Services and EndpointSlices are listed.
    pub(super) complete: AtomicBool,
    /// State of an earlier run, used until then.
    last: Mutex<Option<Last>>,
    pub(super) file: PathBuf,
    pub(super) changed: Notify,
    /// Upstream servers that the operator has configured.
    pub(super) forwarding: Mutex<Forwarding>,
}

impl Names {
    /// Reads the state of an earlier run.
    pub(crate) fn open(file: PathBuf) -> Self {
        let last = Last::read(&file);
        let forwarding = last.as_ref().map(|last| last.forwarding.clone());
        Self {
            servers: OnceLock::new(),
            complete: AtomicBool::new(false),
            last: Mutex::new(last),
            file,
            changed: Notify::new(),
            forwarding: Mutex::new(forwarding.unwrap_or_default()),
        }
    }

    pub(super) fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forwarding(&self) -> Forwarding {
        self.forwarding.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Called once all Services and EndpointSlices are listed, and after changes.
    pub(crate) fn learn(&self) {
        if !self.complete.swap(true, Ordering::Relaxed) {
            *self.last() = None;
        }
        self.changed.notify_one();
    }

    /// True if this node runs a name server of the cluster.
    pub(crate) fn is_served(&self) -> bool {
        self.servers.get().is_some_and(|servers| !servers.is_empty())
    }

    /// Value of the annotation that announces the server's addresses to the control plane.
    pub(crate) fn told(&self) -> Option<String> {
        let servers = self.servers.get()?;
        // A link-local address cannot be an endpoint.
        let is_endpoint = |server: &&IpAddr| !matches!(server, IpAddr::V4(server) if server.is_link_local());
        let servers: Vec<String> = servers.iter().filter(is_endpoint).map(ToString::to_string).collect();
        (!servers.is_empty()).then(|| servers.join(","))
    }

    /// Servers and domain in the pods' `resolv.conf`.
    pub(crate) fn cluster(&self, configured: &ClusterDns) -> ClusterDns {
        let own = self.servers.get().into_iter().flatten().map(ToString::to_string);
        let servers = if configured.servers.is_empty() {
            own.collect()
        } else {
            configured.servers.clone()
        };
        ClusterDns {
            servers,
            domain: configured.domain.clone(),
        }
    }
}
