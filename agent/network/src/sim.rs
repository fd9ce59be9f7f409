//! Simulated network that only allocates addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::{AttachSpec, Attachment, Cidr, Error, Network, Ranges};

#[derive(Default)]
struct World {
    ranges: Option<Ranges>,
    attachments: BTreeMap<String, Attachment>,
    refusals: u32,
}

/// Simulated network. Clones share one machine.
#[derive(Clone, Default)]
pub struct Sim {
    world: Arc<Mutex<World>>,
}

impl Sim {
    /// Creates a machine without pods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next calls of `detach` fail.
    pub fn fail_detach(&self, times: u32) {
        self.world().refusals = times;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    fn attach(&mut self, sandbox_id: String) -> Result<Attachment, Error> {
        let ranges = self.ranges.ok_or(Error::NotStarted)?;
        if let Some(known) = self.attachments.get(&sandbox_id) {
            return Ok(known.clone());
        }
        let held = self.attachments.values().flat_map(|known| &known.addresses);
        let taken: BTreeSet<u128> = held.map(|held| held.offset()).collect();
        let free = (2..ranges.size()).find(|candidate| !taken.contains(candidate));
        let number = free.ok_or(Error::Exhausted(ranges))?;
        let addresses: Vec<Cidr> = ranges.iter().map(|range| range.at(number)).collect();
        let gateway = addresses.first().map(|first| first.gateway());
        let attachment = Attachment {
            netns: netns(&sandbox_id),
            sandbox_id: sandbox_id.clone(),
            addresses,
            gateway: gateway.ok_or(Error::NotStarted)?,
            interface: "eth0".to_owned(),
            ports: Vec::new(),
        };
        self.attachments.insert(sandbox_id, attachment.clone());
        Ok(attachment)
    }
}

impl World {
    fn detach(&mut self, sandbox_id: &str) -> Result<(), Error> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(Error::Kernel {
                doing: "remove veth pair",
                cause: "simulated failure".to_owned(),
            });
        }
        self.attachments.remove(sandbox_id);
        Ok(())
    }
}

fn netns(sandbox_id: &str) -> PathBuf {
    PathBuf::from("/sim/netns").join(sandbox_id)
}

impl Network for Sim {
    fn start(&self, ranges: Ranges) -> BoxFuture<'_, Result<(), Error>> {
        self.world().ranges = Some(ranges);
        ready(Ok(())).boxed()
    }

    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>> {
        ready(self.world().attach(spec.sandbox_id)).boxed()
    }

    fn netns(&self, sandbox_id: &str) -> PathBuf {
        netns(sandbox_id)
    }

    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>> {
        ready(Ok(self.world().attachments.values().cloned().collect())).boxed()
    }

    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>> {
        ready(self.world().detach(sandbox_id)).boxed()
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        *self.world() = World::default();
        ready(Ok(())).boxed()
    }
}
