//! The built-in network: a bridge, a veth pair for each sandbox, addresses of the node's own range, all by rtnetlink.
//!
//! Each operation runs on a short-lived thread with a netlink socket of its own, so that nothing is held while nothing
//! happens. A new namespace is entered by a thread that does nothing else and ends in it: no other work, least of all the
//! removal of what a failed attachment left, is ever done in the wrong one.

pub(crate) mod flows;
pub(crate) mod kernel;
mod leaving;
mod masquerade;
pub(crate) mod names;
pub(crate) mod namespace;
mod once;
mod ports;
mod records;
mod routes;
pub(crate) mod settings;
mod slots;
mod users;
mod work;

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{AttachSpec, Attachment, Cidr, Error, Network, Ranges, Served};
use records::{Records, Reservation};

/// Threads that may work on the kernel's tables at once; the kernel itself lets in one at a time.
const WORKERS: usize = 4;

/// Between two tries to take a link away: at first, and at most.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_mins(1);

/// Who must know that nobody leaves waits so long.
const SETTLED: Duration = Duration::from_secs(10);

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
    /// Told when a sandbox's link was taken away, or could not be.
    settled: Condvar,
    workers: Arc<Semaphore>,
    /// The same for those who detach: what they wait for holds up nobody else.
    leavers: Arc<Semaphore>,
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
                settled: Condvar::new(),
                workers: Arc::new(Semaphore::new(WORKERS)),
                leavers: Arc::new(Semaphore::new(WORKERS)),
                filling,
            }),
        })
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
        self.settled(|_any| true).allows(ranges)?;
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
        self.lead_ports(&[])
    }

    /// Takes away what is there for all pods of the ranges; what failed.
    fn dismantle(&self, ranges: Option<Ranges>) -> Vec<String> {
        let (bridge, mut failures) = (&self.config.bridge, Vec::new());
        note(&mut failures, kernel::with(|kernel| kernel.dismantle(bridge, ranges)));
        note(&mut failures, masquerade::remove(bridge, ranges));
        note(&mut failures, ports::remove(bridge, ranges));
        failures
    }

    /// Attaches a namespace of our own, or the one at the given place. A slot that was taken for it is to be let go of then.
    fn attach(&self, spec: &AttachSpec, place: Option<&Place>) -> Result<(Attachment, Option<u64>), Error> {
        let sandbox = spec.sandbox_id.as_str();
        names::sandbox(sandbox)?;
        if let Some(known) = self.settled(|leaving| leaving == sandbox).known(sandbox) {
            return Ok((known, None));
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
            Reservation::Known(attachment) => return Ok((attachment, None)),
            Reservation::New(attachment) => attachment,
        };
        let connected = match (slot, place) {
            (Some(slot), _) => namespace::hold_too(&slots::path(&self.config.state_dir, slot), &attachment.netns),
            (None, None) => kernel::with(|kernel| kernel.attach(&self.config.bridge, &attachment, spec.user_ids)),
            (None, Some(_)) => kernel::with(|kernel| kernel.join(&self.config.bridge, &attachment)),
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
                // What was made of it goes again; the failure that counts is the first.
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
        // What was made ahead has addresses too.
        finish(self.remove_slots())?;
        self.filling.open();
        // So has who is about to go.
        self.settled(|_any| true).reserve(spec, place)
    }

    fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let link = self.let_go(sandbox)?;
        let Some(link) = link else { return Ok(()) };
        let taken = self.take_away(sandbox, &link);
        if taken.is_err() {
            self.stay(sandbox);
        }
        taken
    }

    /// Nobody is about to take the sandbox's link away any more.
    fn stay(&self, sandbox: &str) {
        self.records().leaving.stay(sandbox);
        self.settled.notify_all();
    }

    /// Lets go of a sandbox's namespace and frees its ports. Answers which link is to be taken away then: none where somebody
    /// does that already.
    fn let_go(&self, sandbox: &str) -> Result<Option<String>, Error> {
        names::sandbox(sandbox)?;
        let (link, led) = {
            let mut records = self.records();
            if !records.leaving.begin(sandbox) {
                return Ok(None);
            }
            (records.link(sandbox), records.ports(sandbox))
        };
        let mut failures = Vec::new();
        let path = namespace::path(&self.config.state_dir, sandbox);
        note(&mut failures, namespace::release(&path));
        failpoint::reach("released");
        if !led.is_empty() {
            note(&mut failures, self.lead_ports(&led));
        }
        if !failures.is_empty() {
            self.stay(sandbox);
        }
        finish(failures).map(|()| Some(link))
    }

    /// Takes a sandbox's link away, and frees its address when that is gone: the kernel lets some time pass first, so that
    /// nobody who only waits for the sandbox's end waits for this.
    fn take_away(&self, sandbox: &str, link: &str) -> Result<(), Error> {
        let gone = kernel::with(|kernel| kernel.remove_link(link));
        failpoint::reach("unconnected");
        gone.and_then(|()| self.records().release(sandbox))?;
        self.settled.notify_all();
        Ok(())
    }

    /// The same, until it is done. When it cannot be, the sandbox keeps its address until the next agent looks at what there is.
    fn take_away_at_last(&self, sandbox: &str, link: &str, mut place: Option<OwnedSemaphorePermit>) {
        let mut pause = AGAIN;
        while let Err(error) = self.take_away(sandbox, link) {
            tracing::warn!(sandbox, link, %error, "a link could not be taken away");
            // Others go on meanwhile.
            place.take();
            if pause > AGAIN_AT_MOST {
                self.records().leaving.give_up(sandbox);
                self.settled.notify_all();
                break;
            }
            std::thread::park_timeout(pause);
            pause *= 2;
        }
    }

    /// The records when nobody is about to take the link of one of these sandboxes away any more, or has tried for long.
    fn settled(&self, which: impl Fn(&str) -> bool) -> MutexGuard<'_, Records> {
        let leaving = |records: &mut Records| records.leaving.is_going(&which);
        let waited = self.settled.wait_timeout_while(self.records(), SETTLED, leaving);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn stop(&self) -> Result<(), Error> {
        let mut failures = self.remove_slots();
        let lost = self.records().lost();
        for link in lost {
            note(&mut failures, kernel::with(|kernel| kernel.remove_link(&link)));
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
        // The kernel waits for all processors when a mount goes, and the pod need not.
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

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.run(|inner| inner.stop())
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
