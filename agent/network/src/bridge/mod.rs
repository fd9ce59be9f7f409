//! The built-in network: a bridge, a veth pair for each sandbox, addresses of the node's own range, all by rtnetlink.
//!
//! Each operation runs on a short-lived thread with a netlink socket of its own, so that nothing is held while nothing
//! happens. A new namespace is entered by a thread that does nothing else and ends in it: no other work, least of all the
//! removal of what a failed attachment left, is ever done in the wrong one.

pub(crate) mod kernel;
mod masquerade;
pub(crate) mod names;
pub(crate) mod namespace;
mod ports;
pub(crate) mod records;
mod routes;
mod settings;
mod slots;
mod users;

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tokio::sync::{Semaphore, oneshot};

use crate::{AttachSpec, Attachment, Cidr, Error, Network, Ranges};
use records::{Records, Reservation};

/// Threads that may work on the kernel's tables at once; the kernel itself lets in one at a time.
const WORKERS: usize = 4;

/// What this network is called and where it keeps its records. Several may share a machine under different names.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder for records and held namespaces.
    pub state_dir: PathBuf,
    /// Name of the bridge: at most 15 bytes, unique in this network namespace.
    pub bridge: String,
    /// Ranges that pods reach under their own address; everything else outside the pods' range is masqueraded.
    pub direct: Vec<Cidr>,
    /// How many pods' networks are made ahead of time.
    pub slots: usize,
}

/// A namespace that somebody else made.
pub(crate) struct Place {
    /// Where it is held.
    pub(crate) netns: PathBuf,
    /// What the interface in it is to be called.
    pub(crate) interface: String,
}

/// The built-in network. Clones share one.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<Inner>,
    _end: Arc<End>,
}

/// Goes with the last clone, after which nothing is made ahead any more: another process may be next.
struct End(Arc<slots::Filling>);

impl Drop for End {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

struct Inner {
    config: Config,
    records: Mutex<Records>,
    /// Held while the ports of the node are set: what is set last must be what the records say last.
    ports: Mutex<()>,
    workers: Arc<Semaphore>,
    filling: Arc<slots::Filling>,
}

impl Bridge {
    /// Reads the records of an earlier process; those whose namespace is gone (after a reboot) are dropped.
    pub fn open(config: Config) -> Result<Self, Error> {
        names::bridge(&config.bridge)?;
        let records = Records::open(&config.state_dir)?;
        let filling = Arc::new(slots::Filling::default());
        Ok(Self {
            _end: Arc::new(End(Arc::clone(&filling))),
            inner: Arc::new(Inner {
                config,
                records: Mutex::new(records),
                ports: Mutex::new(()),
                workers: Arc::new(Semaphore::new(WORKERS)),
                filling,
            }),
        })
    }
}

/// For a process that does one thing and ends.
impl Bridge {
    pub(crate) fn start_now(&self, ranges: Ranges) -> Result<(), Error> {
        self.inner.start(ranges)
    }

    pub(crate) fn join_now(&self, spec: &AttachSpec, place: &Place) -> Result<Attachment, Error> {
        self.inner.attach(spec, Some(place))
    }

    pub(crate) fn detach_now(&self, sandbox: &str) -> Result<(), Error> {
        self.inner.detach(sandbox)
    }

    pub(crate) fn known(&self) -> Vec<Attachment> {
        self.inner.records().attachments()
    }

    /// Whether a sandbox's end on the machine is there.
    pub(crate) fn is_connected(sandbox: &str) -> Result<bool, Error> {
        kernel::with(|kernel| kernel.is_connected(sandbox))
    }

    /// Whether there are addresses of these ranges for one more.
    pub(crate) fn has_room(&self, ranges: Ranges) -> bool {
        self.inner.records().free(ranges).is_some()
    }
}

impl Inner {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, ranges: Ranges) -> Result<(), Error> {
        // Network, gateway, one pod and broadcast.
        if let Some(small) = ranges.iter().find(|range| range.host_bits() < 2) {
            return Err(Error::RangeTooSmall(small));
        }
        self.records().allows(ranges)?;
        let lost = self.records().lost();
        kernel::with(|kernel| lost.iter().try_for_each(|link| kernel.remove_link(link)))?;
        let before = self.records().ranges();
        if before.is_some_and(|before| before != ranges) {
            // Nobody has an address of the earlier ranges.
            finish(self.remove_slots())?;
            finish(self.dismantle(before))?;
        }
        self.records().serve(ranges)?;
        settings::forward(ranges)?;
        kernel::with(|kernel| kernel.prepare(&self.config.bridge, ranges))?;
        masquerade::replace(&self.config.bridge, ranges, &self.config.direct)?;
        self.lead_ports()
    }

    fn lead_ports(&self) -> Result<(), Error> {
        let _guard = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let (ranges, attachments) = {
            let records = self.records();
            (records.ranges(), records.attachments())
        };
        match ranges {
            Some(ranges) => ports::replace(&self.config.bridge, ranges, &attachments),
            None => Ok(()),
        }
    }

    /// Takes away what is there for all pods of the ranges; what failed.
    fn dismantle(&self, ranges: Option<Ranges>) -> Vec<String> {
        let (bridge, mut failures) = (&self.config.bridge, Vec::new());
        note(&mut failures, kernel::with(|kernel| kernel.dismantle(bridge, ranges)));
        note(&mut failures, masquerade::remove(bridge, ranges));
        note(&mut failures, ports::remove(bridge, ranges));
        failures
    }

    fn redirect(&self, service: SocketAddrV4, server: SocketAddrV4) -> Result<bool, Error> {
        masquerade::redirect(&self.config.bridge, service, server)?;
        Ok(true)
    }

    /// Attaches a namespace of our own, or the one at the given place.
    fn attach(&self, spec: &AttachSpec, place: Option<&Place>) -> Result<Attachment, Error> {
        let sandbox = spec.sandbox_id.as_str();
        names::sandbox(sandbox)?;
        if let Some(known) = self.records().known(sandbox) {
            return Ok(known);
        }
        // The namespaces of slots belong to the machine's users.
        let slot = if place.is_none() && spec.user_ids.is_none() {
            self.claim_slot()
        } else {
            None
        };
        let reserved = match slot {
            Some(slot) => self.records().take(spec, slot)?,
            None => self.reserve(spec, place)?,
        };
        let attachment = match reserved {
            Reservation::Known(attachment) => return Ok(attachment),
            Reservation::New(attachment) => attachment,
        };
        let connected = match (slot, place) {
            (Some(slot), _) => namespace::rename(&slots::path(&self.config.state_dir, slot), &attachment.netns),
            (None, None) => kernel::with(|kernel| kernel.attach(&self.config.bridge, &attachment, spec.user_ids)),
            (None, Some(_)) => kernel::with(|kernel| kernel.join(&self.config.bridge, &attachment)),
        };
        let led = connected.and_then(|()| {
            if attachment.ports.is_empty() {
                Ok(())
            } else {
                self.lead_ports()
            }
        });
        match led {
            Ok(()) => Ok(attachment),
            Err(failure) => {
                // What was made of it goes again; the failure that counts is the first.
                if let Err(second) = self.detach(sandbox) {
                    tracing::warn!(sandbox, error = %second, "clean up after a failed attach");
                }
                Err(failure)
            }
        }
    }

    fn reserve(&self, spec: &AttachSpec, place: Option<&Place>) -> Result<Reservation, Error> {
        let reserved = self.records().reserve(spec, place);
        if !matches!(reserved, Err(Error::Exhausted(_))) {
            return reserved;
        }
        // What was made ahead has addresses too.
        finish(self.remove_slots())?;
        self.filling.open();
        self.records().reserve(spec, place)
    }

    fn detach(&self, sandbox: &str) -> Result<(), Error> {
        names::sandbox(sandbox)?;
        let path = namespace::path(&self.config.state_dir, sandbox);
        let (link, mut failures) = (self.records().link(sandbox), Vec::new());
        note(&mut failures, kernel::with(|kernel| kernel.remove_link(&link)));
        failpoint::reach("unconnected");
        note(&mut failures, namespace::release(&path));
        failpoint::reach("released");
        let led = self.records().leads_ports(sandbox);
        if failures.is_empty() {
            note(&mut failures, self.records().release(sandbox));
        }
        if led {
            note(&mut failures, self.lead_ports());
        }
        finish(failures)
    }

    fn stop(&self) -> Result<(), Error> {
        let mut failures = self.remove_slots();
        let lost = self.records().lost();
        for link in lost {
            note(&mut failures, kernel::with(|kernel| kernel.remove_link(&link)));
        }
        let known: Vec<Attachment> = self.records().attachments();
        for attachment in known {
            note(&mut failures, self.detach(&attachment.sandbox_id));
        }
        let ranges = self.records().ranges();
        failures.extend(self.dismantle(ranges));
        note(&mut failures, namespace::release_all(&self.config.state_dir));
        if failures.is_empty() {
            note(&mut failures, self.records().forget());
        }
        finish(failures)
    }
}

impl Network for Bridge {
    fn start(&self, ranges: Ranges) -> BoxFuture<'_, Result<(), Error>> {
        self.run(move |inner| {
            inner.start(ranges)?;
            inner.filling.open();
            slots::fill(inner);
            Ok(())
        })
    }

    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>> {
        self.run(move |inner| {
            inner.filling.moved();
            let attached = inner.attach(&spec, None);
            inner.filling.moved();
            slots::fill(inner);
            attached
        })
    }

    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>> {
        ready(Ok(self.inner.records().attachments())).boxed()
    }

    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>> {
        let sandbox = sandbox_id.to_owned();
        self.run(move |inner| {
            inner.filling.moved();
            inner.detach(&sandbox)
        })
    }

    fn redirect(&self, service: SocketAddrV4, server: SocketAddrV4) -> BoxFuture<'_, Result<bool, Error>> {
        self.run(move |inner| inner.redirect(service, server))
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.run(|inner| inner.stop())
    }
}

impl Bridge {
    /// Runs `work` to its end on a thread of its own, even when the caller stops waiting.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Inner>) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let inner = Arc::clone(&self.inner);
        async move {
            let permit = Arc::clone(&inner.workers).acquire_owned().await;
            let (answer, answered) = oneshot::channel();
            let thread = std::thread::Builder::new().name("network".to_owned()).spawn(move || {
                let result = work(&inner);
                drop(permit);
                // The caller may have stopped waiting; what was done stands in the records.
                drop(answer.send(result));
            });
            thread.map_err(|source| Error::io("start a thread for", Path::new("the network"), source))?;
            answered.await.unwrap_or_else(|_| {
                Err(Error::Kernel {
                    doing: "work on the network",
                    cause: "the thread ended without an answer".to_owned(),
                })
            })
        }
        .boxed()
    }
}

pub(crate) fn note(failures: &mut Vec<String>, result: Result<(), Error>) {
    if let Err(failure) = result {
        let mut text = failure.to_string();
        let mut cause = std::error::Error::source(&failure);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        failures.push(text);
    }
}

pub(crate) fn finish(failures: Vec<String>) -> Result<(), Error> {
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Error::Incomplete(failures))
    }
}
