//! Requests in flight: how many at a time, whose turn it is, and how long a body may take.
//!
//! A request that finds no place waits in its user's queue; places that come free go round the users who wait, and one user
//! holds at most half of them. So a client that asks for more than there is waits for itself, and never for long holds up
//! others, not even with requests that take their time. Full queues and long waits answer 429. Requests from inside the
//! process are never held up: they are bounded where they are made.

mod held;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::body;
use crate::failure::Failure;
use crate::request::RequestInfo;
use held::Held;

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

/// All limits of a server.
pub(crate) struct Gates {
    reads: Arc<Gate>,
    writes: Arc<Gate>,
    lasting: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    ending: CancellationToken,
}

/// What a request holds while it is answered.
#[derive(Debug)]
pub(crate) struct Pass {
    _place: Option<Place>,
    _lasting: Option<OwnedSemaphorePermit>,
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
            lasting: Arc::new(Semaphore::new(LASTING)),
            bodies: Arc::new(Semaphore::new(PIECES)),
            ending: CancellationToken::new(),
        }
    }

    /// When requests that last come to their end.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }

    /// Waits for a place for a request.
    ///
    /// # Errors
    /// 429
    pub(crate) async fn enter(&self, info: &RequestInfo, lasts: bool, user: &str) -> Result<Pass, Failure> {
        if lasts {
            let Ok(lasting) = Arc::clone(&self.lasting).try_acquire_owned() else {
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
        let lasting = LASTING - self.lasting.available_permits();
        [
            ("readOnly", READS - self.reads.state().free),
            ("mutating", WRITES - self.writes.state().free),
            ("lasting", lasting),
        ]
    }

    /// Reads a whole body within its time; what it holds counts until the permit is dropped.
    ///
    /// # Errors
    /// 413 over the limit, 400 when it does not arrive, 429 when too much is on its way already.
    pub(crate) async fn read(&self, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), Failure> {
        let hint = body.size_hint();
        let announced = hint.upper().and_then(|bytes| usize::try_from(bytes).ok());
        let pieces = announced.unwrap_or(body::LIMIT).min(body::LIMIT).div_ceil(PIECE);
        let room = Arc::clone(&self.bodies).acquire_many_owned(u32::try_from(pieces).unwrap_or(u32::MAX));
        let Ok(Ok(room)) = tokio::time::timeout(WAIT, room).await else {
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

#[cfg(test)]
mod tests {
    use super::*;

    impl State {
        fn idle(&self) -> (usize, usize) {
            assert!(self.users.is_empty() && self.turns.is_empty(), "{self:?}");
            (self.free, self.waiting)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_go_round_the_users() {
        let gate = Gate::new(1);
        let first = gate.enter("noisy").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for user in ["noisy", "noisy", "noisy", "good"] {
            let (gate, order) = (Arc::clone(&gate), Arc::clone(&order));
            tasks.spawn(async move {
                let place = gate.enter(user).await.unwrap();
                order.lock().unwrap().push(user);
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        while tasks.join_next().await.is_some() {}
        assert_eq!(*order.lock().unwrap(), ["noisy", "good", "noisy", "noisy"]);
        assert_eq!(gate.state().idle(), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_away_leaves_no_place_behind() {
        let gate = Gate::new(1);
        let first = gate.enter("a").await.unwrap();
        let mut gone = Box::pin(gate.enter("b"));
        let late = tokio::time::timeout(Duration::from_secs(1), gone.as_mut()).await;
        assert!(late.is_err());
        // It is given the place, and goes before it has seen that.
        drop(first);
        drop(gone);
        assert_eq!(gate.state().idle(), (1, 0));
        let first = gate.enter("a").await.unwrap();
        drop(gate.enter("b"));
        drop(first);
        assert_eq!(gate.state().idle(), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_holds_more_than_half() {
        let gate = Gate::new(4);
        let (first, second) = (gate.enter("slow").await.unwrap(), gate.enter("slow").await.unwrap());
        let mut third = std::pin::pin!(gate.enter("slow"));
        assert!(futures::FutureExt::now_or_never(third.as_mut()).is_none());
        // Others find places all the while.
        let good = [gate.enter("good").await.unwrap(), gate.enter("good").await.unwrap()];
        drop(first);
        let third = third.await.unwrap();
        drop((second, third, good));
        assert_eq!(gate.state().idle(), (4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn full_queues_refuse() {
        let gate = Gate::new(0);
        let mut waiting = Vec::new();
        for _ in 0..QUEUED_OF_ONE {
            waiting.push(gate.state().place_or_queue(&"noisy".into()).unwrap());
        }
        assert!(gate.state().place_or_queue(&"noisy".into()).is_err());
        assert!(gate.state().place_or_queue(&"good".into()).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_given_up() {
        let gates = Gates::new();
        let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(gates.read(body).await.unwrap_err().code(), 400);
        assert_eq!(gates.bodies.available_permits(), PIECES);
        let (bytes, room) = gates.read(Body::from("abc")).await.unwrap();
        assert_eq!(
            (bytes.as_ref(), gates.bodies.available_permits()),
            (&b"abc"[..], PIECES - 1)
        );
        drop(room);
        assert_eq!(gates.bodies.available_permits(), PIECES);
    }
}
