//! Built-in network: a bridge, a veth pair for each sandbox, addresses from the node's pod CIDRs,
//! all by rtnetlink.
//!
//! Each operation runs on a short-lived thread with its own netlink socket, so that an idle network
//! uses no resources. A new namespace is entered by a dedicated thread, which ends in it: no other
//! work, in particular the cleanup after a failed attachment, ever runs in the wrong namespace.
//!
//! * [`kernel`], [`firewall`]: links, addresses and routes; rules of the packet filter
//! * [`sandbox`]: namespaces of the sandboxes and records of their addresses
//! * [`nodes`], [`mending`]: routes to other nodes; repairs of what others change

mod firewall;
pub(crate) mod kernel;
mod mending;
pub(crate) mod names;
mod nodes;
mod once;
pub(crate) mod sandbox;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use agent_plan::network::node_routes::Mode;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tokio::sync::{Semaphore, mpsc};

use crate::{AttachSpec, Attachment, Cidr, Error, Lost, Network, Ranges, Served};
pub(crate) use firewall::forwarding::shuts_node;
use firewall::{forwarding, guard, masquerade, ports};
use kernel::settings;
pub use nodes::{Nodes, RouteNews};
use sandbox::records::{Records, Reservation};
use sandbox::{namespace, slots};

/// Maximum number of threads that change the kernel's network at once; the kernel itself serializes
/// them (RTNL).
const WORKERS: usize = 4;

/// Name of this network and directory of its records. Several networks with different names may
/// share a machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory for records and mounted namespaces.
    pub state_dir: PathBuf,
    /// Name of the bridge: at most 15 bytes, unique in this network namespace.
    pub bridge: String,
    /// Destinations to which pods keep their own source address; everything else outside the pods'
    /// range is masqueraded.
    pub direct: Vec<Cidr>,
    /// Number of pod networks that are created ahead of time.
    pub slots: usize,
    /// Mode of the routes to other nodes' pods; `None` for no routes.
    pub routes: Option<Mode>,
    /// True if pods may send from their own addresses only.
    pub guarded: bool,
}

/// Namespace that another program created.
pub(crate) struct Place {
    /// Path at which it is mounted.
    pub(crate) netns: PathBuf,
    /// Name of the interface in it.
    pub(crate) interface: String,
}

/// Built-in network. Clones share one.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<Inner>,
    _end: Arc<End>,
}

/// Dropped with the last clone, after which no more slots are created: another process may take
/// over.
struct End(Arc<slots::Filling>);

impl Drop for End {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

struct Inner {
    config: Config,
    records: Mutex<Records>,
    /// Held while host ports are set, so that the rules match the latest records.
    ports: Mutex<()>,
    /// Notified when a sandbox's link was deleted, or could not be.
    settled: Condvar,
    workers: Arc<Semaphore>,
    /// Permits for detachments, separate from attachments: their waits delay no others.
    leavers: Arc<Semaphore>,
    filling: Arc<slots::Filling>,
    /// Pod CIDRs of other nodes that have routes.
    routed: Mutex<Vec<Cidr>>,
    /// True if all pods have the bridge's MTU.
    fitted: AtomicBool,
    /// True if the anti-spoofing table is active.
    is_guarded: AtomicBool,
    /// True unless a repair of the bridge was left unfinished.
    is_repaired: AtomicBool,
}

impl Bridge {
    /// Reads the records of an earlier process; those whose namespace is gone (after a reboot) are
    /// removed.
    pub fn open(config: Config) -> Result<Self, Error> {
        names::bridge(&config.bridge)?;
        let state_dir = real(&config.state_dir)?;
        let config = Config { state_dir, ..config };
        let records = Records::open(&config.state_dir)?;
        let filling = Arc::new(slots::Filling::default());
        Ok(Self {
            _end: Arc::new(End(Arc::clone(&filling))),
            inner: Arc::new(Inner {
                config,
                records: Mutex::new(records),
                ports: Mutex::new(()),
                settled: Condvar::new(),
                workers: Arc::new(Semaphore::new(WORKERS)),
                leavers: Arc::new(Semaphore::new(WORKERS)),
                filling,
                routed: Mutex::default(),
                fitted: AtomicBool::new(false),
                is_guarded: AtomicBool::new(false),
                is_repaired: AtomicBool::new(true),
            }),
        })
    }
}

impl Inner {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, ranges: Ranges) -> Result<(), Error> {
        // Network address, gateway, one pod and broadcast address.
        if let Some(small) = ranges.iter().find(|range| range.host_bits() < 2) {
            return Err(Error::RangeTooSmall(small));
        }
        self.settled(|_any| true).allows(ranges)?;
        let before = self.records().ranges();
        kernel::with(|kernel| kernel.refuse_others(&self.config.bridge, &self.owner(), before.is_some(), ranges))?;
        let lost = self.records().lost();
        lost.iter().try_for_each(|link| self.unlink(link))?;
        if before.is_some_and(|before| before != ranges) {
            // No pod has an address of the earlier ranges.
            finish(self.remove_slots())?;
            finish(self.dismantle(before))?;
        }
        self.records().serve(ranges)?;
        settings::forward(ranges)?;
        kernel::with(|kernel| {
            kernel.prepare(&self.config.bridge, &self.mark(), ranges)?;
            kernel.add_neighbors(&self.config.bridge, &self.held())
        })?;
        // Continues the detachments of an earlier process.
        let mark = self.mark();
        if self.config.routes.is_some() {
            self.note_routed(&kernel::with(|kernel| kernel.routed(mark.metric))?);
        } else {
            kernel::with(|kernel| kernel.unlead(&mark))?;
        }
        masquerade::replace(&self.config.bridge, ranges, &self.near())?;
        self.lead_ports(&[])?;
        self.guard();
        if let Err(error) = self.pass() {
            tracing::warn!(
                error = chain(&error),
                "the machine's firewall may drop what pods send and get"
            );
        }
        Ok(())
    }

    /// Owner's mark of the bridge.
    fn owner(&self) -> String {
        names::owner(&self.config.state_dir)
    }

    /// Deletes a link of this network.
    fn unlink(&self, link: &str) -> Result<(), Error> {
        kernel::with(|kernel| kernel.remove_link(&self.config.bridge, link))
    }

    /// Removes everything that was created for all pods of the ranges, and returns the errors.
    /// Keeps the rest if the bridge belongs to another network.
    fn dismantle(&self, ranges: Option<Ranges>) -> Vec<String> {
        let (bridge, mut failures) = (&self.config.bridge, Vec::new());
        note(&mut failures, kernel::with(|kernel| kernel.unlead(&self.mark())));
        self.note_routed(&[]);
        match kernel::with(|kernel| kernel.dismantle(bridge, &self.owner(), ranges)) {
            Err(Error::BridgeTaken { .. }) => return failures,
            done => note(&mut failures, done),
        }
        note(&mut failures, masquerade::remove(bridge, ranges));
        note(&mut failures, ports::remove(bridge, ranges));
        note(&mut failures, forwarding::remove(bridge, ranges));
        if self.config.guarded {
            note(&mut failures, guard::remove(bridge));
        }
        failures
    }

    /// Attaches a sandbox with a new namespace, or with the existing one given by `place`. If it
    /// returns a slot, the caller must release it.
    fn attach(&self, spec: &AttachSpec, place: Option<&Place>) -> Result<(Attachment, Option<u64>), Error> {
        let sandbox = spec.sandbox_id.as_str();
        names::sandbox(sandbox)?;
        if let Some(known) = self.settled(|leaving| leaving == sandbox).known(sandbox) {
            return Ok((known, None));
        }
        // The namespaces of slots are owned by the host's user namespace.
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
            Reservation::Known(attachment) => return Ok((attachment, None)),
            Reservation::New(attachment) => attachment,
        };
        let admit = |link: &str| self.admit(link, &attachment);
        let connected = match (slot, place) {
            (Some(slot), _) => namespace::hold_too(&slots::path(&self.config.state_dir, slot), &attachment.netns),
            (None, None) => {
                let link = self.records().link(sandbox);
                admit(&link).and_then(|()| {
                    kernel::with(|kernel| kernel.attach(&self.config.bridge, &link, &attachment, spec.user_ids))
                })
            }
            (None, Some(_)) => {
                let link = self.records().link(sandbox);
                admit(&link).and_then(|()| kernel::with(|kernel| kernel.join(&self.config.bridge, &link, &attachment)))
            }
        };
        let led = connected.and_then(|()| {
            if attachment.ports.is_empty() {
                Ok(())
            } else {
                self.lead_ports(&attachment.ports)
            }
        });
        match led {
            Ok(()) => Ok((attachment, slot)),
            Err(failure) => {
                // Undo the partial attachment; the first error is returned.
                if let Some(slot) = slot {
                    self.let_slot_go(slot);
                }
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
        // Slots hold addresses, too.
        finish(self.remove_slots())?;
        self.filling.open();
        // So do sandboxes that are being detached.
        self.settled(|_any| true).reserve(spec, place)
    }

    fn stop(&self) -> Result<(), Error> {
        let mut failures = self.remove_slots();
        let lost = self.records().lost();
        for link in lost {
            note(&mut failures, self.unlink(&link));
        }
        let known: Vec<Attachment> = {
            let mut records = self.settled(|_any| true);
            records.leaving.clear();
            records.attachments()
        };
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
        let work = move |inner: &Arc<Inner>| {
            inner.filling.moved();
            let attached = inner.attach(&spec, None);
            inner.filling.moved();
            if attached.is_err() {
                slots::fill(inner);
            }
            attached.map(|(attachment, slot)| (attachment, Some(slot)))
        };
        // Unmounting waits for an RCU grace period, for which the pod need not wait.
        self.run_on(&self.inner.workers, work, |inner, slot, _place| {
            if let Some(slot) = slot {
                inner.let_slot_go(*slot);
            }
            slots::fill(inner);
        })
    }

    fn netns(&self, sandbox_id: &str) -> PathBuf {
        namespace::path(&self.inner.config.state_dir, sandbox_id)
    }

    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>> {
        ready(Ok(self.inner.records().attachments())).boxed()
    }

    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>> {
        let (sandbox, left) = (sandbox_id.to_owned(), sandbox_id.to_owned());
        self.run_on(
            &self.inner.leavers,
            move |inner| {
                inner.filling.moved();
                inner.let_go(&sandbox).map(|link| ((), link))
            },
            move |inner, link, place| inner.take_away_at_last(&left, link, place),
        )
    }

    fn served(&self) -> Option<Served> {
        let ranges = self.inner.records().ranges()?;
        let interface = self.inner.config.bridge.clone();
        Some(Served { ranges, interface })
    }

    fn mend(&self, told: mpsc::Sender<Lost>) -> BoxFuture<'_, Result<(), Error>> {
        mending::run(self, told).boxed()
    }

    fn pass(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        self.run(|inner| inner.pass())
    }

    fn hear_routes(&self) -> Result<Option<RouteNews>, Error> {
        if self.inner.config.routes.is_none() {
            return Ok(None);
        }
        let path = Path::new("/proc/thread-self/ns/net");
        let news = RouteNews::open().map_err(|source| Error::io("listen to the kernel in", path, source))?;
        Ok(Some(news))
    }

    fn route(&self, nodes: Nodes) -> BoxFuture<'_, Result<BTreeMap<String, String>, Error>> {
        self.run(move |inner| {
            let led = inner.route(&nodes);
            slots::fill(inner);
            led
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.run(|inner| inner.stop())
    }
}

/// Canonical path of a state folder, created if missing.
fn real(folder: &Path) -> Result<PathBuf, Error> {
    let made = std::fs::create_dir_all(folder).and_then(|()| std::fs::canonicalize(folder));
    made.map_err(|source| Error::io("create", folder, source))
}

pub(crate) fn note(failures: &mut Vec<String>, result: Result<(), Error>) {
    failures.extend(result.err().map(|failure| chain(&failure)));
}

/// An error with its causes.
fn chain(failure: &Error) -> String {
    let mut text = failure.to_string();
    let mut cause = std::error::Error::source(failure);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

pub(crate) fn finish(failures: Vec<String>) -> Result<(), Error> {
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Error::Incomplete(failures))
    }
}
