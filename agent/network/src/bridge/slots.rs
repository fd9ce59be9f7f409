//! Namespaces, links and addresses that are made before a pod wants them.
//!
//! A slot is whole but for whose it is. Nothing on disk tells of it, so a process that ends leaves a namespace that nobody knows,
//! and the next process removes it. A pod takes a slot by its record, and from then on the namespace is held under the pod's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Inner, names, namespace};
use crate::{Attachment, Error};

/// Nothing is made ahead before nobody has come or gone for this long: a burst of pods has the processors for itself.
const QUIET: Duration = Duration::from_millis(500);
/// So many addresses are left for pods that cannot take a slot.
const SPARE: usize = 16;

/// The slots that there are, by number.
#[derive(Default)]
pub(super) struct Slots {
    all: BTreeMap<u64, Slot>,
    next: u64,
}

struct Slot {
    attachment: Attachment,
    /// Whether a pod may take it.
    free: bool,
}

impl Slots {
    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.all.values().map(|slot| &slot.attachment)
    }

    /// Their ends on the machine.
    pub(super) fn links(&self, state: &Path) -> impl Iterator<Item = (String, Attachment)> {
        let all = self.all.iter();
        all.map(|(number, slot)| (link(state, *number), slot.attachment.clone()))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Goes on behind a number that somebody has.
    pub(super) fn skip(&mut self, number: u64) {
        self.next = self.next.max(number + 1);
    }

    /// Puts down what is about to be made.
    pub(super) fn plan(&mut self, state: &Path, make: impl FnOnce(String, PathBuf) -> Attachment) -> (u64, Attachment) {
        let number = self.next;
        self.skip(number);
        let attachment = make(name(number), path(state, number));
        let slot = Slot {
            attachment: attachment.clone(),
            free: false,
        };
        self.all.insert(number, slot);
        (number, attachment)
    }

    pub(super) fn offer(&mut self, number: u64) {
        if let Some(slot) = self.all.get_mut(&number) {
            slot.free = true;
        }
    }

    /// Reserves the one that has waited longest for who asks.
    pub(super) fn claim(&mut self) -> Option<u64> {
        let (number, slot) = self.all.iter_mut().find(|(_, slot)| slot.free)?;
        slot.free = false;
        Some(*number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Attachment> {
        self.all.get(&number).map(|slot| &slot.attachment)
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.all.remove(&number);
    }

    /// Those that nobody is about to take.
    pub(super) fn claim_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.claim()).collect()
    }
}

/// What a slot has instead of a sandbox's id: none begins like this.
fn name(number: u64) -> String {
    format!(".slot-{number}")
}

/// The machine's end of a slot's veth pair, whoever has it.
pub(super) fn link(state: &Path, number: u64) -> String {
    names::host_link(state, &name(number))
}

pub(super) fn path(state: &Path, number: u64) -> PathBuf {
    names::slots(state).join(number.to_string())
}

/// Numbers of slots whose namespace an earlier process left.
pub(super) fn left(state: &Path) -> Result<Vec<u64>, Error> {
    let names = namespace::files(&names::slots(state))?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Who makes slots, and when.
#[derive(Default)]
pub(super) struct Filling {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while one is made.
    making: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Whether a thread does it.
    busy: bool,
    /// No more are to be made.
    closed: bool,
    /// How often somebody came or went.
    moves: u64,
}

impl Filling {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody comes or goes.
    pub(super) fn moved(&self) {
        self.state().moves += 1;
    }

    pub(super) fn open(&self) {
        self.state().closed = false;
    }

    /// Ends it: none is being made any more, and none will be.
    pub(super) fn close(&self) -> MutexGuard<'_, ()> {
        self.state().closed = true;
        self.changed.notify_all();
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody has moved for a while, but not again for the same quiet. Nothing when no more are to be made.
    fn wait(&self, quiet: Option<u64>) -> Option<u64> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            let before = state.moves;
            if quiet == Some(before) {
                return quiet;
            }
            let waited = self.changed.wait_timeout(state, QUIET);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
            if state.moves == before && !state.closed {
                return Some(before);
            }
        }
    }
}

/// Sees to it that slots are made once it is quiet.
pub(super) fn fill(inner: &Arc<Inner>) {
    if inner.config.slots == 0 {
        return;
    }
    {
        let mut state = inner.filling.state();
        if state.busy || state.closed {
            return;
        }
        state.busy = true;
    }
    let (filling, weak) = (Arc::clone(&inner.filling), Arc::downgrade(inner));
    let thread = std::thread::Builder::new().name("slots".to_owned()).spawn(move || {
        let mut quiet = None;
        loop {
            quiet = filling.wait(quiet);
            let _making = filling.making.lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = filling.state();
            let inner = weak.upgrade().filter(|inner| !state.closed && inner.wants_slot());
            let (Some(inner), Some(_)) = (inner, quiet) else {
                state.busy = false;
                return;
            };
            drop(state);
            if let Err(error) = inner.make_slot() {
                tracing::warn!(%error, "a network could not be made ahead");
                filling.state().busy = false;
                return;
            }
        }
    });
    if let Err(error) = thread {
        tracing::warn!(%error, "a network could not be made ahead");
        inner.filling.state().busy = false;
    }
}

impl Inner {
    /// Whether there are fewer than there may be, and addresses for more.
    fn wants_slot(&self) -> bool {
        let records = self.records();
        let room = records.ranges().is_some_and(|ranges| {
            let spare = u128::try_from(records.taken() + SPARE).unwrap_or(u128::MAX);
            ranges.size() > spare
        });
        room && records.slots.len() < self.config.slots
    }

    fn make_slot(&self) -> Result<(), Error> {
        let (number, attachment) = self.records().plan_slot()?;
        let link = link(&self.config.state_dir, number);
        let made = self
            .admit(&link, &attachment)
            .and_then(|()| super::kernel::with(|kernel| kernel.attach(&self.config.bridge, &link, &attachment, None)));
        match made {
            Ok(()) => self.records().slots.offer(number),
            Err(_) => self.remove_slot(number)?,
        }
        made
    }

    /// A slot for who asks, if there is one that still hangs on the bridge.
    pub(super) fn claim_slot(&self) -> Option<u64> {
        let number = self.records().slots.claim()?;
        let link = link(&self.config.state_dir, number);
        let whole = super::kernel::with(|kernel| kernel.is_port(&self.config.bridge, &link));
        if whole.is_ok_and(|whole| whole) {
            return Some(number);
        }
        if let Err(error) = self.remove_slot(number) {
            tracing::warn!(%error, "remove a network that was made ahead");
        }
        None
    }

    /// Removes what nobody is about to take; no more come after it until they are asked for again.
    pub(super) fn remove_slots(&self) -> Vec<String> {
        let _making = self.filling.close();
        let mut failures = Vec::new();
        let all = self.records().slots.claim_all();
        for number in all {
            super::note(&mut failures, self.remove_slot(number));
        }
        failures
    }

    /// Lets go of the namespace of a slot that a pod has taken, which holds it under its own name.
    pub(super) fn let_slot_go(&self, number: u64) {
        if let Err(error) = namespace::release(&path(&self.config.state_dir, number)) {
            tracing::warn!(%error, "a network that was made ahead stays held where it was made");
        }
    }

    fn remove_slot(&self, number: u64) -> Result<(), Error> {
        let mut failures = Vec::new();
        let link = link(&self.config.state_dir, number);
        super::note(&mut failures, self.unlink(&link));
        super::note(&mut failures, namespace::release(&path(&self.config.state_dir, number)));
        let attachment = self.records().slots.get(number).cloned();
        if let Some(attachment) = attachment {
            self.dismiss(&link, &attachment);
        }
        self.records().slots.remove(number);
        super::finish(failures)
    }
}
