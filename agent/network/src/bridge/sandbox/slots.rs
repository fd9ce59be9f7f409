//! Slots: namespaces, links and addresses that are created before a pod needs them.
//!
//! A slot is complete except for its owner. It has no record on disk, so a process that exits
//! leaves an unknown namespace, which the next process removes. A pod takes a slot by writing its
//! record, and from then on the namespace is mounted under the pod's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::namespace;
use crate::bridge::{Inner, finish, kernel, names, note};
use crate::{Attachment, Error};

/// Slots are created only after this time without attachments and detachments: a burst of pods has
/// the processors for itself.
const QUIET: Duration = Duration::from_millis(500);
/// Number of addresses reserved for pods that cannot take a slot.
const SPARE: usize = 16;

/// Slots by number.
#[derive(Default)]
pub(in crate::bridge) struct Slots {
    all: BTreeMap<u64, Slot>,
    next: u64,
}

struct Slot {
    attachment: Attachment,
    /// True if a pod may take it.
    free: bool,
}

impl Slots {
    pub(in crate::bridge) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.all.values().map(|slot| &slot.attachment)
    }

    /// Host ends of the slots.
    pub(in crate::bridge) fn links(&self, state: &Path) -> impl Iterator<Item = (String, Attachment)> {
        let all = self.all.iter();
        all.map(|(number, slot)| (link(state, *number), slot.attachment.clone()))
    }

    pub(in crate::bridge) fn len(&self) -> usize {
        self.all.len()
    }

    /// Continues behind a number that is in use.
    pub(in crate::bridge) fn skip(&mut self, number: u64) {
        self.next = self.next.max(number + 1);
    }

    /// Records a slot that is about to be created.
    pub(in crate::bridge) fn plan(
        &mut self,
        state: &Path,
        make: impl FnOnce(String, PathBuf) -> Attachment,
    ) -> (u64, Attachment) {
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

    pub(in crate::bridge) fn offer(&mut self, number: u64) {
        if let Some(slot) = self.all.get_mut(&number) {
            slot.free = true;
        }
    }

    /// Reserves the oldest free slot for the caller.
    pub(in crate::bridge) fn claim(&mut self) -> Option<u64> {
        let (number, slot) = self.all.iter_mut().find(|(_, slot)| slot.free)?;
        slot.free = false;
        Some(*number)
    }

    pub(in crate::bridge) fn get(&self, number: u64) -> Option<&Attachment> {
        self.all.get(&number).map(|slot| &slot.attachment)
    }

    pub(in crate::bridge) fn remove(&mut self, number: u64) {
        self.all.remove(&number);
    }

    /// Takes all free slots.
    pub(in crate::bridge) fn claim_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.claim()).collect()
    }
}

/// Name of a slot in place of a sandbox id, with a prefix that no sandbox id has.
fn name(number: u64) -> String {
    format!(".slot-{number}")
}

/// Host end of a slot's veth pair, also after a pod has taken it.
pub(in crate::bridge) fn link(state: &Path, number: u64) -> String {
    names::host_link(state, &name(number))
}

pub(in crate::bridge) fn path(state: &Path, number: u64) -> PathBuf {
    names::slots(state).join(number.to_string())
}

/// Numbers of slots whose namespaces an earlier process left.
pub(in crate::bridge) fn left(state: &Path) -> Result<Vec<u64>, Error> {
    let names = namespace::files(&names::slots(state))?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// State of the thread that creates slots.
#[derive(Default)]
pub(in crate::bridge) struct Filling {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a slot is created.
    making: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// True while a thread runs.
    busy: bool,
    /// True if no more slots are to be created.
    closed: bool,
    /// Number of attachments and detachments so far.
    moves: u64,
}

impl Filling {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an attachment or detachment.
    pub(in crate::bridge) fn moved(&self) {
        self.state().moves += 1;
    }

    pub(in crate::bridge) fn open(&self) {
        self.state().closed = false;
    }

    /// Stops the creation of slots and waits for one in progress.
    pub(in crate::bridge) fn close(&self) -> MutexGuard<'_, ()> {
        self.state().closed = true;
        self.changed.notify_all();
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a quiet period, but not for the same one again. `None` if no more slots are to be
    /// created.
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

/// Starts the creation of slots after the next quiet period.
pub(in crate::bridge) fn fill(inner: &Arc<Inner>) {
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
    /// True if slots are missing and there are addresses for more.
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
            .and_then(|()| kernel::with(|kernel| kernel.attach(&self.config.bridge, &link, &attachment, None)));
        match made {
            Ok(()) => self.records().slots.offer(number),
            Err(_) => self.remove_slot(number)?,
        }
        made
    }

    /// Takes a slot, if there is one that is still a port of the bridge.
    pub(in crate::bridge) fn claim_slot(&self) -> Option<u64> {
        let number = self.records().slots.claim()?;
        let link = link(&self.config.state_dir, number);
        let whole = kernel::with(|kernel| kernel.is_port(&self.config.bridge, &link));
        if whole.is_ok_and(|whole| whole) {
            return Some(number);
        }
        if let Err(error) = self.remove_slot(number) {
            tracing::warn!(%error, "remove a network that was made ahead");
        }
        None
    }

    /// Removes all free slots; no more are created until they are requested again.
    pub(in crate::bridge) fn remove_slots(&self) -> Vec<String> {
        let _making = self.filling.close();
        let mut failures = Vec::new();
        let all = self.records().slots.claim_all();
        for number in all {
            note(&mut failures, self.remove_slot(number));
        }
        failures
    }

    /// Unmounts the namespace of a slot that a pod has taken and mounted under its own name.
    pub(in crate::bridge) fn let_slot_go(&self, number: u64) {
        if let Err(error) = namespace::release(&path(&self.config.state_dir, number)) {
            tracing::warn!(%error, "a network that was made ahead stays held where it was made");
        }
    }

    fn remove_slot(&self, number: u64) -> Result<(), Error> {
        let mut failures = Vec::new();
        let link = link(&self.config.state_dir, number);
        note(&mut failures, self.unlink(&link));
        note(&mut failures, namespace::release(&path(&self.config.state_dir, number)));
        let attachment = self.records().slots.get(number).cloned();
        if let Some(attachment) = attachment {
            self.dismiss(&link, &attachment);
        }
        self.records().slots.remove(number);
        finish(failures)
    }
}
