//! Pods' sandboxes and directories of an earlier agent, until their workers adopt them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::Error;
use crate::context::Context;

/// Sandboxes and directories of an earlier agent, by pod.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) sandboxes: BTreeMap<String, Vec<runtime::Sandbox>>,
    pub(crate) addresses: BTreeMap<String, Vec<IpAddr>>,
}

impl Orphans {
    /// Lists sandboxes and addresses from the runtime and the network.
    pub(crate) async fn read(context: &Context) -> Result<Self, Error> {
        let mut sandboxes: BTreeMap<String, Vec<runtime::Sandbox>> = BTreeMap::new();
        for sandbox in context.parts.runtime.sandboxes().await? {
            context.users.adopt(&sandbox);
            context.se_linux.adopt(&sandbox);
            sandboxes.entry(sandbox.pod.uid.clone()).or_default().push(sandbox);
        }
        let attachments = context.parts.network.attachments().await?;
        let addresses = attachments.into_iter().map(|attachment| {
            let addresses = attachment.addresses.iter().map(|cidr| cidr.address).collect();
            (attachment.sandbox_id, addresses)
        });
        Ok(Self {
            sandboxes,
            addresses: addresses.collect(),
        })
    }

    /// Applies an event that occurs before a pod's worker adopts its sandboxes: it would not be
    /// reported again.
    pub(crate) fn note(&mut self, event: &runtime::Event) {
        let mut all = self.sandboxes.values_mut().flatten();
        match event {
            runtime::Event::ContainerExited {
                sandbox_id,
                container_id,
                exit,
            } => {
                let sandbox = all.find(|known| known.id == *sandbox_id);
                let mut containers = sandbox.into_iter().flat_map(|sandbox| &mut sandbox.containers);
                let Some(container) = containers.find(|known| known.id == *container_id) else {
                    return;
                };
                let started_at = match container.state {
                    runtime::State::Running { started_at, .. } => Some(started_at),
                    runtime::State::Exited { started_at, .. } => started_at,
                    runtime::State::Created => None,
                };
                let exit = exit.clone();
                container.state = runtime::State::Exited { exit, started_at };
            }
            runtime::Event::SandboxLost { sandbox_id } => {
                for sandbox in all.filter(|known| known.id == *sandbox_id) {
                    sandbox.lost = true;
                }
            }
        }
    }
}

/// Returns the UID of a sandbox's pod.
pub(crate) fn owner(sandbox: &str) -> &str {
    sandbox.rsplit_once('-').map_or(sandbox, |(uid, _)| uid)
}
