//! Requests in flight: how many at a time, whose turn it is, and how long a body may take.
//!
//! A request that finds no place waits in its user's queue; places that come free go round the users who wait, and one user
//! holds at most half of them, of the room for bodies, and of the requests that last. So a client that asks for more than there is waits for itself, and never for long holds up
//! others, not even with requests that take their time. Full queues and long waits answer 429. Requests from inside the
//! process are never held up: they are bounded where they are made.

mod held;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::body;
use crate::failure::Failure;
use crate::request::RequestInfo;
use held::Held;
use shares::Shares;
pub(crate) use shares::{Room, Share, Taken};

/// Reads at a time: they are work for the processor alone.
const READS: usize = 64;
/// Writes at a time: they wait for the disk together.
const WRITES: usize = 256;
/// Requests that last: watches, logs that are followed, sessions.
const LASTING: usize = 32_768;
/// Requests that wait, in all and of one user.
const QUEUED: usize = 4096;
const QUEUED_OF_ONE: usize = 1024;
/// The longest wait for a place.
const WAIT: Duration = Duration::from_secs(15);
/// The longest time for a body to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);
/// Bodies are counted in pieces of this size …
const PIECE: usize = 16 << 10;
/// … of which there may be so many at a time: 256 MiB.
const PIECES: usize = 16 << 10;

/// Bytes that watches hold for clients who do not read them, in all; one user's at most half.
const UNREAD: usize = 128 << 20;

/// All limits of a server.
pub(crate) struct Gates {
    reads: Arc<Gate>,
    writes: Arc<Gate>,
    lasting: Arc<Shares>,
    bodies: Arc<Shares>,
    unread: Arc<Shares>,
    ending: CancellationToken,
}

/// What a request holds while it is answered.
#[derive(Debug)]
pub(crate) struct Pass {
    _place: Option<Place>,
    _lasting: Option<Share>,
}

impl Pass {
    /// The body of an answer, which holds the pass until its end, or until `ending`.
    pub(crate) fn hold(self, body: Body, ending: CancellationToken) -> Held {
        Held::new(body, ending, self)
    }
}

impl Gates {
    pub(crate) fn new() -> Self {
        Self {
            reads: Gate::new(READS),
            writes: Gate::new(WRITES),
            lasting: Shares::new(LASTING),
            bodies: Shares::new(PIECES),
            unread: Shares::of_bytes(UNREAD),
            ending: CancellationToken::new(),
        }
    }

    /// When requests that last come to their end.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }

    /// The room for what a watch of a user has made and its client has not read.
    pub(crate) fn unread(&self, user: &str) -> Room {
        self.unread.room(user)
    }

    /// Waits for a place for a request.
    ///
    /// # Errors
    /// 429
    pub(crate) async fn enter(&self, info: &RequestInfo, lasts: bool, user: &str) -> Result<Pass, Failure> {
        if lasts {
            let Some(lasting) = self.lasting.take_now(user) else {
                return Err(Failure::Overloaded);
            };
            return Ok(Pass {
                _place: None,
                _lasting: Some(lasting),
            });
        }
        let gate = if is_read(info) { &self.reads } else { &self.writes };
        let Ok(place) = tokio::time::timeout(WAIT, gate.enter(user)).await else {
            return Err(Failure::Overloaded);
        };
        Ok(Pass {
            _place: Some(place?),
            _lasting: None,
        })
    }

    /// How many requests are being answered, by what they do.
    pub(crate) fn in_flight(&self) -> [(&'static str, usize); 3] {
        [
            ("readOnly", READS - self.reads.state().free),
            ("mutating", WRITES - self.writes.state().free),
            ("lasting", LASTING.saturating_sub(self.lasting.free())),
        ]
    }

    /// Reads a whole body of a user within its time; what it holds counts until the share is dropped.
    ///
    /// # Errors
    /// 413 over the limit, 400 when it does not arrive, 429 when too much is on its way already.
    pub(crate) async fn read(&self, user: &str, body: Body) -> Result<(Bytes, Share), Failure> {
        let hint = body.size_hint();
        let announced = hint.upper().and_then(|bytes| usize::try_from(bytes).ok());
        let pieces = announced.unwrap_or(body::LIMIT).min(body::LIMIT).div_ceil(PIECE);
        let room = self.bodies.take(user, u32::try_from(pieces).unwrap_or(u32::MAX));
        let Ok(Some(room)) = tokio::time::timeout(WAIT, room).await else {
            return Err(Failure::Overloaded);
        };
        match tokio::time::timeout(ARRIVAL, body::read(body)).await {
            Ok(read) => Ok((read?, room)),
            Err(_) => Err(Failure::bad_request(
                "unable to read the request body: it did not arrive in time",
            )),
        }
    }
}

fn is_read(info: &RequestInfo) -> bool {
    matches!(info.verb, "get" | "list" | "watch")
}

/// Places, and the queues of those who wait for one.
#[derive(Debug)]
struct Gate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    /// The most that one user may hold.
    share: usize,
    waiting: usize,
    /// Who holds a place or waits for one.
    users: BTreeMap<Arc<str>, User>,
    /// Users with a queue, in the order of their turns.
    turns: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct User {
    held: usize,
    queue: VecDeque<oneshot::Sender<()>>,
}

/// A place; dropping it gives it to the next.
#[derive(Debug)]
struct Place {
    gate: Arc<Gate>,
    user: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.state().release(&self.user);
    }
}

/// A wait for a place. When it is given up after the place was given, the place goes on.
struct Waiting {
    gate: Arc<Gate>,
    user: Arc<str>,
    given: oneshot::Receiver<()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.given.close();
        if self.given.try_recv().is_ok() {
            self.gate.state().release(&self.user);
        }
    }
}

impl Gate {
    fn new(places: usize) -> Arc<Self> {
        let state = State {
            free: places,
            share: places.div_ceil(2),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn enter(self: &Arc<Self>, user: &str) -> Result<Place, Failure> {
        let user: Arc<str> = user.into();
        let given = self.state().place_or_queue(&user)?;
        let gate = Arc::clone(self);
        let Some(given) = given else {
            return Ok(Place { gate, user });
        };
        let mut waiting = Waiting { gate, user, given };
        // The sender stays in the queue until it is used.
        match (&mut waiting.given).await {
            Ok(()) => Ok(Place {
                gate: Arc::clone(self),
                user: Arc::clone(&waiting.user),
            }),
            Err(_) => Err(Failure::Overloaded),
        }
    }
}

impl State {
    /// Nothing when there is a place; else what tells that one has come free.
    fn place_or_queue(&mut self, user: &Arc<str>) -> Result<Option<oneshot::Receiver<()>>, Failure> {
        let own = self.users.entry(Arc::clone(user)).or_default();
        if self.free > 0 && own.held < self.share {
            self.free -= 1;
            own.held += 1;
            return Ok(None);
        }
        if self.waiting >= QUEUED || own.queue.len() >= QUEUED_OF_ONE {
            self.forget(user);
            return Err(Failure::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        if own.queue.is_empty() {
            self.turns.push_back(Arc::clone(user));
        }
        own.queue.push_back(sender);
        self.waiting += 1;
        Ok(Some(receiver))
    }

    fn release(&mut self, user: &Arc<str>) {
        self.free += 1;
        if let Some(own) = self.users.get_mut(user) {
            own.held = own.held.saturating_sub(1);
        }
        self.forget(user);
        while self.free > 0 && self.give() {}
    }

    /// Gives a place to the oldest request of the next user who has not his share; says whether there was one.
    fn give(&mut self) -> bool {
        let share = self.share;
        let may = |user: &Arc<str>| self.users.get(user).is_none_or(|own| own.held < share);
        let Some(user) = self.turns.iter().position(may).and_then(|turn| self.turns.remove(turn)) else {
            return false;
        };
        if let Some(own) = self.users.get_mut(&user)
            && let Some(next) = own.queue.pop_front()
        {
            self.waiting -= 1;
            // Who waited may have gone away.
            if next.send(()).is_ok() {
                own.held += 1;
                self.free -= 1;
            }
            if !own.queue.is_empty() {
                self.turns.push_back(Arc::clone(&user));
            }
        }
        self.forget(&user);
        true
    }

    fn forget(&mut self, user: &Arc<str>) {
        if self
            .users
            .get(user)
            .is_some_and(|own| own.held == 0 && own.queue.is_empty())
        {
            self.users.remove(user);
        }
    }
}
