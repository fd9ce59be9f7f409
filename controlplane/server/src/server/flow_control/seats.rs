//! Seats, and the queues of requests that wait for one
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset`).
//!
//! A level always has the seats that it does not lend, and borrows unused ones from other levels; a
//! level with fewer than its nominal seats goes first. Upstream moves them every ten seconds
//! instead. Flows are dealt a hand of the level's queues and wait in the shortest; the queue with
//! the fewest executing requests is served next. Where a schema distinguishes flows, a flow takes
//! at most half of its level's nominal seats: slow requests leave room for others.

mod dropped;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::numbers::{Limits, Rejection};
use dropped::Dropped;

/// Requests that wait, in all levels together.
const WAITING: usize = 4096;
/// Number of flow counters in each level. Flows with the same counter share its half.
const FLOWS: usize = 256;

/// A level as it should be.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) limits: Limits,
    /// Number of queues; 0 where requests without a seat are rejected at once.
    pub(super) queues: usize,
    pub(super) hand: usize,
    pub(super) longest: usize,
}

/// Use of a level.
#[derive(Debug)]
pub(super) struct Used {
    /// False once the level is deleted.
    pub(super) lives: bool,
    /// False where requests without a seat are rejected at once.
    pub(super) queued: bool,
    /// Index, waiting and executing requests of each queue in use.
    pub(super) queues: Vec<[u64; 3]>,
}

/// Outcome of a request for a seat.
#[derive(Debug)]
pub(super) enum Start {
    Seated(Seat),
    Waiting(Waiting),
    Refused(Rejection),
}

/// Priority levels with their seats.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Room>);

#[derive(Debug, Default)]
struct Room {
    /// Nominal seats of all levels.
    total: usize,
    /// Seats that are taken, or kept for a level that does not lend them.
    committed: usize,
    waiting: usize,
    tickets: u64,
    turn: usize,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    wanted: Wanted,
    /// False once the level is deleted.
    lives: bool,
    running: usize,
    waiting: usize,
    turn: usize,
    flows: Box<[u16; FLOWS]>,
    /// Queues with executing or waiting requests, by number: a level may have ten million queues.
    queues: BTreeMap<usize, Queue>,
    dropped: Dropped,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Waiter>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    flow: Option<u8>,
    given: oneshot::Sender<()>,
}

/// Level, queue and flow of a request.
#[derive(Debug, Clone, Copy)]
struct Place {
    level: usize,
    queue: usize,
    flow: Option<u8>,
}

/// A seat; dropping it gives it to the next.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    place: Place,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.room().release(self.place);
    }
}

/// Wait for a seat. When it is dropped after the seat was assigned, the seat is passed on.
#[derive(Debug)]
pub(super) struct Waiting {
    seats: Arc<Seats>,
    place: Place,
    ticket: u64,
    given: oneshot::Receiver<()>,
    is_over: bool,
}

impl Waiting {
    /// Waits for the seat; `None` when the level was removed meanwhile.
    pub(super) async fn seat(mut self) -> Option<Seat> {
        (&mut self.given).await.ok()?;
        self.is_over = true;
        Some(Seat {
            seats: Arc::clone(&self.seats),
            place: self.place,
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_over {
            self.seats.room().leave(self.place, self.ticket);
        }
    }
}

impl Seats {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides the seats again. Returns the indexes of the levels, in their order; removed levels
    /// are drained.
    pub(super) fn divide(&self, wanted: Vec<Wanted>) -> Vec<usize> {
        let mut room = self.room();
        room.total = wanted.iter().map(|level| level.limits.nominal).sum();
        let is_wanted = |level: &Level| wanted.iter().any(|wanted| wanted.name == level.wanted.name);
        room.levels.iter_mut().for_each(|level| level.lives = is_wanted(level));
        let places = wanted.into_iter().map(|wanted| room.place(wanted)).collect();
        for level in &mut room.levels {
            if !level.lives {
                level.wanted.limits.lower = 0;
            }
        }
        room.committed = room.levels.iter().map(Level::committed).sum();
        room.dispatch(None);
        places
    }

    /// Gives a request of a flow a seat, or a place in a queue.
    pub(super) fn start(self: &Arc<Self>, level: usize, hash: u64, shares: bool) -> Start {
        let mut room = self.room();
        let Some(own) = room.levels.get(level) else {
            return Start::Refused(Rejection::ConcurrencyLimit);
        };
        let [.., flow] = hash.to_le_bytes();
        let flow = shares.then_some(flow);
        let queue = own.deal(hash);
        let place = Place { level, queue, flow };
        let is_first = own.waiting == 0;
        if is_first && room.may_start(level, flow) {
            room.take(place);
            return Start::Seated(Seat {
                seats: Arc::clone(self),
                place,
            });
        }
        let refused = match room.levels.get(level) {
            Some(own) if own.wanted.queues == 0 => Some(Rejection::ConcurrencyLimit),
            Some(own) if room.waiting >= WAITING || own.is_full(queue) => Some(Rejection::QueueFull),
            Some(_) | None => None,
        };
        if let Some(refused) = refused {
            return Start::Refused(refused);
        }
        let (given, receiver) = oneshot::channel();
        let ticket = room.wait(place, given);
        if !is_first {
            // Requests queued earlier may be limited by their flow's half.
            room.dispatch(Some(level));
        }
        Start::Waiting(Waiting {
            seats: Arc::clone(self),
            place,
            ticket,
            given: receiver,
            is_over: false,
        })
    }

    /// Notes that a level has refused a request, and gives the seconds after which its client should try again.
    pub(super) fn refuse(&self, level: usize, second: i64) -> i32 {
        let mut room = self.room();
        let level = room.levels.get_mut(level);
        level.map_or(1, |level| level.dropped.note(second))
    }

    /// Use of each level; deleted levels are left out once they are drained.
    pub(super) fn used(&self) -> BTreeMap<String, Used> {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let room = self.room();
        let levels = room
            .levels
            .iter()
            .filter(|level| level.lives || !level.queues.is_empty());
        let used = levels.map(|level| {
            let queues = level.queues.iter();
            let queues = queues.map(|(index, queue)| [*index, queue.waiting.len(), queue.running].map(number));
            let used = Used {
                lives: level.lives,
                queued: level.wanted.queues > 0,
                queues: queues.collect(),
            };
            (level.wanted.name.clone(), used)
        });
        used.collect()
    }

    /// Number of queues that take memory.
    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        self.room().levels.iter().map(|level| level.queues.len()).sum()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let room = self.room();
        let idle =
            |level: &Level| level.running == 0 && level.queues.is_empty() && level.flows.iter().all(|flow| *flow == 0);
        room.waiting == 0 && room.levels.iter().all(idle)
    }
}

impl Room {
    /// Index of a level: its existing one, one that is no longer in use, or a new one.
    fn place(&mut self, wanted: Wanted) -> usize {
        let own = |level: &Level| level.wanted.name == wanted.name;
        let free = |level: &Level| !level.lives && level.running == 0 && level.waiting == 0;
        let known = self.levels.iter().position(own);
        let found = known.or_else(|| self.levels.iter().position(free));
        if let Some(found) = found
            && let Some(level) = self.levels.get_mut(found)
        {
            level.become_wanted(wanted);
            return found;
        }
        self.levels.push(Level::new(wanted));
        self.levels.len() - 1
    }

    fn may_start(&self, level: usize, flow: Option<u8>) -> bool {
        let Some(own) = self.levels.get(level) else {
            return false;
        };
        own.running < own.wanted.limits.upper
            && flow.is_none_or(|flow| own.of_flow(flow) < own.wanted.limits.nominal.div_ceil(2).max(1))
            && (own.running < own.wanted.limits.lower || self.committed < self.total)
    }

    fn take(&mut self, place: Place) {
        let Some(level) = self.levels.get_mut(place.level) else {
            return;
        };
        let before = level.committed();
        level.running += 1;
        self.committed = self.committed + level.committed() - before;
        level.count(place, true);
    }

    fn release(&mut self, place: Place) {
        let Some(level) = self.levels.get_mut(place.level) else {
            return;
        };
        let before = level.committed();
        level.running = level.running.saturating_sub(1);
        self.committed = (self.committed + level.committed()).saturating_sub(before);
        level.count(place, false);
        self.dispatch(Some(place.level));
    }

    fn wait(&mut self, place: Place, given: oneshot::Sender<()>) -> u64 {
        self.tickets += 1;
        let (ticket, flow) = (self.tickets, place.flow);
        if let Some(level) = self.levels.get_mut(place.level) {
            let queue = level.queues.entry(place.queue).or_default();
            queue.waiting.push_back(Waiter { ticket, flow, given });
            level.waiting += 1;
            self.waiting += 1;
        }
        ticket
    }

    /// Removes a waiting request whose client is gone, or that has timed out.
    fn leave(&mut self, place: Place, ticket: u64) {
        let level = self.levels.get_mut(place.level);
        let removed = level.is_some_and(|level| level.remove(place.queue, ticket));
        if !removed {
            return self.release(place);
        }
        self.waiting -= 1;
    }

    /// Assigns free seats to waiting requests: in one level first, then in those with fewer than
    /// their nominal seats.
    fn dispatch(&mut self, first: Option<usize>) {
        if self.waiting == 0 {
            return;
        }
        self.turn = self.turn.wrapping_add(1);
        let count = self.levels.len();
        let turn = self.turn;
        for below in [true, false] {
            let all = (0..count).map(|offset| (turn + offset) % count);
            for level in first.into_iter().chain(all) {
                while self.has_waiting(level, below) && self.give(level) {}
            }
        }
    }

    fn has_waiting(&self, level: usize, below: bool) -> bool {
        let level = self.levels.get(level);
        level.is_some_and(|level| level.waiting > 0 && (!below || level.running < level.wanted.limits.nominal))
    }

    /// Assigns a seat to the next request of a level; returns whether there was an eligible one.
    fn give(&mut self, level: usize) -> bool {
        let Some(own) = self.levels.get(level) else {
            return false;
        };
        let order = own.queues.range(own.turn..).chain(own.queues.range(..own.turn));
        let next = order.filter_map(|(index, queue)| {
            let at = queue
                .waiting
                .iter()
                .position(|waiter| self.may_start(level, waiter.flow))?;
            Some((queue.running, *index, at))
        });
        // Among queues with equally many executing requests, the first in order.
        let Some((_, queue, at)) = next.min_by_key(|(running, ..)| *running) else {
            return false;
        };
        let Some(own) = self.levels.get_mut(level) else {
            return false;
        };
        let waiter = own.queues.get_mut(&queue).and_then(|queue| queue.waiting.remove(at));
        let Some(waiter) = waiter else { return false };
        own.turn = queue + 1;
        own.waiting -= 1;
        self.waiting -= 1;
        self.take(Place {
            level,
            queue,
            flow: waiter.flow,
        });
        // A waiter that has been dropped meanwhile returns the seat as soon as it gets the lock.
        let _gone = waiter.given.send(());
        true
    }
}

impl Level {
    fn new(wanted: Wanted) -> Self {
        Self {
            lives: true,
            running: 0,
            waiting: 0,
            turn: 0,
            flows: Box::new([0; FLOWS]),
            queues: BTreeMap::new(),
            dropped: Dropped::default(),
            wanted,
        }
    }

    fn become_wanted(&mut self, wanted: Wanted) {
        self.lives = true;
        self.wanted = wanted;
    }

    /// Removes a waiting request; returns whether it was still waiting.
    fn remove(&mut self, number: usize, ticket: u64) -> bool {
        let Some(queue) = self.queues.get_mut(&number) else {
            return false;
        };
        let found = queue.waiting.iter().position(|waiter| waiter.ticket == ticket);
        if found.and_then(|at| queue.waiting.remove(at)).is_none() {
            return false;
        }
        self.waiting -= 1;
        if queue.is_empty() {
            self.queues.remove(&number);
        }
        true
    }

    /// Seats that the level does not lend.
    fn committed(&self) -> usize {
        self.running.max(self.wanted.limits.lower)
    }

    fn of_flow(&self, flow: u8) -> usize {
        self.flows.get(usize::from(flow)).map_or(0, |count| usize::from(*count))
    }

    fn is_full(&self, queue: usize) -> bool {
        let waiting = self.queues.get(&queue).map_or(0, |queue| queue.waiting.len());
        waiting >= self.wanted.longest
    }

    fn count(&mut self, place: Place, more: bool) {
        let queue = self.queues.entry(place.queue).or_default();
        queue.running = if more {
            queue.running + 1
        } else {
            queue.running.saturating_sub(1)
        };
        if queue.is_empty() {
            self.queues.remove(&place.queue);
        }
        let own = place.flow.and_then(|flow| self.flows.get_mut(usize::from(flow)));
        if let Some(own) = own {
            *own = if more {
                own.saturating_add(1)
            } else {
                own.saturating_sub(1)
            };
        }
    }

    /// Queue of a flow: the one in its hand with the fewest requests. The hand is dealt as in
    /// `staging/src/k8s.io/apiserver/pkg/util/shufflesharding/shufflesharding.go`.
    fn deal(&self, hash: u64) -> usize {
        let (deck, mut rest) = (self.wanted.queues, hash);
        let mut hand = [0; 16];
        let mut best = (usize::MAX, 0);
        for dealt in 0..self.wanted.hand.min(hand.len()).min(deck) {
            let left = u64::try_from(deck - dealt).unwrap_or(u64::MAX);
            let mut card = usize::try_from(rest % left).unwrap_or(0);
            rest /= left;
            let (before, after) = hand.split_at_mut(dealt);
            if let Some(slot) = after.first_mut() {
                *slot = card;
            }
            for earlier in before.iter().rev() {
                card += usize::from(card >= *earlier);
            }
            let queue = self.queues.get(&card);
            let length = queue.map_or(0, |queue| queue.running + queue.waiting.len());
            best = best.min((length, card));
        }
        best.1
    }
}
