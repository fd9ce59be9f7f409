//! A network that only hands out addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::{AttachSpec, Attachment, Cidr, Error, Network};

#[derive(Default)]
struct World {
    range: Option<Cidr>,
    attachments: BTreeMap<String, Attachment>,
    failures: u32,
}

/// The simulated network. Clones share one machine.
#[derive(Clone, Default)]
pub struct Sim {
    world: Arc<Mutex<World>>,
}

impl Sim {
    /// A machine without pods.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next so many calls of `attach` fail.
    pub fn fail_attach(&self, times: u32) {
        self.world().failures = times;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    fn attach(&mut self, sandbox_id: String) -> Result<Attachment, Error> {
        let range = self.range.ok_or(Error::NotStarted)?;
        if self.failures > 0 {
            self.failures -= 1;
            return Err(Error::Kernel {
                doing: "create veth pair",
                cause: "simulated failure".to_owned(),
            });
        }
        if let Some(known) = self.attachments.get(&sandbox_id) {
            return Ok(known.clone());
        }
        let taken: BTreeSet<Ipv4Addr> = self
            .attachments
            .values()
            .flat_map(|known| known.addresses.iter().map(|held| held.address))
            .collect();
        let (first, last) = (range.network().to_bits() + 2, range.broadcast().to_bits());
        let free = (first..last)
            .map(Ipv4Addr::from_bits)
            .find(|candidate| !taken.contains(candidate));
        let address = range.with(free.ok_or(Error::Exhausted(range))?);
        let attachment = Attachment {
            netns: PathBuf::from("/sim/netns").join(&sandbox_id),
            sandbox_id: sandbox_id.clone(),
            addresses: vec![address],
            gateway: range.gateway().into(),
            interface: "eth0".to_owned(),
            ports: Vec::new(),
        };
        self.attachments.insert(sandbox_id, attachment.clone());
        Ok(attachment)
    }
}

impl Network for Sim {
    fn start(&self, pod_cidr: Cidr) -> BoxFuture<'_, Result<(), Error>> {
        self.world().range = Some(pod_cidr);
        ready(Ok(())).boxed()
    }

    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>> {
        ready(self.world().attach(spec.sandbox_id)).boxed()
    }

    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>> {
        ready(Ok(self.world().attachments.values().cloned().collect())).boxed()
    }

    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>> {
        self.world().attachments.remove(sandbox_id);
        ready(Ok(())).boxed()
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        *self.world() = World::default();
        ready(Ok(())).boxed()
    }
}
