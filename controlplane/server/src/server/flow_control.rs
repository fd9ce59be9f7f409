//! API priority and fairness: requests are sorted by `FlowSchemas` into `PriorityLevelConfigurations`, which divide the
//! server's seats (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol`).
//!
//! ```text
//! request ─► schemas by precedence (`matching`) ─► level ─► exempt: at once
//!                                                        └► seats (`seats`): at once, in a queue of its flow, or 429
//! objects written ─► `Config::read` (`config`) when the next request comes ─► seats divided anew
//!                 └► `upkeep`: the condition Dangling; the objects that every cluster has (`defaults`)
//! ```
//!
//! Each request takes one seat until it is answered, a watch until it has started. Other
//! long-running requests (logs, sessions, proxies) take none, nor do requests from inside the
//! process: they are limited by their senders.

mod config;
mod defaults;
mod dump;
mod matching;
mod numbers;
mod seats;
#[cfg(test)]
mod tests;
pub(crate) mod upkeep;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use store::{Prefix, Store};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::authn::identity::User;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use config::{Config, Distinguisher, Schema};
use numbers::{Rejection, Running};
use seats::{Seat, Seats, Start};

pub(crate) use defaults::changes;
pub(crate) use numbers::Numbers;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";

/// Seats of the server: upstream's `--max-requests-inflight` and `--max-mutating-requests-inflight` together.
const SEATS: usize = 600;
/// The longest wait for a seat: a quarter of the time that a request has (`getRequestWaitContext` in
/// `staging/src/k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`).
const WAIT: Duration = Duration::from_secs(15);
const PART: u32 = 4;

/// Sorts requests and gives them seats.
pub(crate) struct FlowControl {
    store: Store,
    state: RwLock<State>,
    seats: Arc<Seats>,
    numbers: Arc<Numbers>,
    /// Seed of the hash, so that clients cannot choose names that share queues with other flows.
    seed: RandomState,
}

struct State {
    changed: [watch::Receiver<u64>; 2],
    config: Config,
}

/// The flow that a request belongs to.
#[derive(Debug)]
pub(crate) struct Flow {
    schema: Arc<Schema>,
    hash: u64,
}

/// Resources that a request holds while it is answered.
#[derive(Debug)]
pub(crate) struct Admitted {
    _running: Running,
    _seat: Option<Seat>,
    /// Time in a queue; zero for a request that did not wait.
    pub(crate) waited: Duration,
}

impl FlowControl {
    pub(crate) fn new(store: Store, numbers: Arc<Numbers>) -> Self {
        let changed = [SCHEMAS, LEVELS].map(|plural| store.last_change(&Prefix::resource(GROUP, plural)));
        let seats = Arc::new(Seats::default());
        let config = Config::read(&store, &seats, &numbers);
        let state = RwLock::new(State { changed, config });
        Self {
            store,
            state,
            seats,
            numbers,
            seed: RandomState::new(),
        }
    }

    /// Sorts a request; `path` is that of one which names no resource.
    pub(crate) fn classify(&self, user: &User, info: &RequestInfo, path: &str) -> Flow {
        let schema = self.ask(|config| Arc::clone(config.find(user, info, path)));
        let hash = match schema.distinguisher {
            None => self.seed.hash_one(&*schema.numbers.schema),
            Some(Distinguisher::User) => self.seed.hash_one((&*schema.numbers.schema, user.name.as_str())),
            Some(Distinguisher::Namespace) => self.seed.hash_one((&*schema.numbers.schema, info.namespace.as_str())),
        };
        Flow { schema, hash }
    }

    /// Waits for a seat; `limit` is the time limit of the whole request, `second` the clock's
    /// reading.
    ///
    /// # Errors
    /// 429
    pub(crate) async fn enter(
        &self,
        flow: &Flow,
        (reads, limit): (bool, Option<Duration>),
        second: i64,
    ) -> Result<Admitted, Failure> {
        let numbers = &flow.schema.numbers;
        let running = || self.numbers.run(numbers, reads);
        let Some(level) = flow.schema.level else {
            return Ok(Admitted {
                _running: running(),
                _seat: None,
                waited: Duration::ZERO,
            });
        };
        let shares = flow.schema.distinguisher.is_some();
        let refused = match self.seats.start(level, flow.hash, shares) {
            Start::Seated(seat) => {
                numbers.waited(true, Duration::ZERO);
                return Ok(Admitted {
                    _running: running(),
                    _seat: Some(seat),
                    waited: Duration::ZERO,
                });
            }
            Start::Refused(refused) => refused,
            Start::Waiting(waiting) => {
                let _queued = numbers.queue();
                let began = Instant::now();
                let limit = limit.map_or(WAIT, |limit| WAIT.min(limit / PART));
                let seat = tokio::time::timeout(limit, waiting.seat()).await.ok().flatten();
                let waited = began.elapsed();
                numbers.waited(seat.is_some(), waited);
                match seat {
                    Some(seat) => {
                        return Ok(Admitted {
                            _running: running(),
                            _seat: Some(seat),
                            waited,
                        });
                    }
                    None => Rejection::TimeOut,
                }
            }
        };
        numbers.reject(refused);
        let retry_after = self.seats.refuse(level, second);
        Err(Failure::Overloaded { retry_after })
    }

    /// Queries the configuration. Costs an uncontended lock and two loads while the configuration
    /// does not change.
    fn ask<T>(&self, question: impl FnOnce(&Config) -> T) -> T {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        // The store takes the senders along when it is closed: then nothing changes any more.
        let is_stale = |state: &State| {
            state
                .changed
                .iter()
                .any(|changed| changed.has_changed().unwrap_or(false))
        };
        if !is_stale(&state) {
            return question(&state.config);
        }
        drop(state);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if is_stale(&state) {
            // Marked as seen before reading: changes in between are read again.
            state.changed.iter_mut().for_each(watch::Receiver::mark_unchanged);
            state.config = Config::read(&self.store, &self.seats, &self.numbers);
        }
        question(&state.config)
    }

    /// Updates the metrics to the stored configuration before they are collected.
    pub(crate) fn refresh(&self) {
        self.ask(|_config| ());
    }

    /// Number of requests of external clients that are executing: reads and writes.
    pub(crate) fn in_flight(&self) -> [(&'static str, usize); 2] {
        let [reads, writes] = self.numbers.in_flight();
        [("readOnly", reads), ("mutating", writes)]
    }
}

impl Flow {
    /// Names the schema and the level of the request by their UIDs, as not everybody shall know the operators' names.
    pub(crate) fn note(&self, headers: &mut HeaderMap) {
        let [schema, level] = &self.schema.uids;
        headers.insert("x-kubernetes-pf-prioritylevel-uid", HeaderValue::clone(level));
        headers.insert("x-kubernetes-pf-flowschema-uid", HeaderValue::clone(schema));
    }
}
