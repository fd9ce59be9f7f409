//! Pulls in progress.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::{BoxFuture, FutureExt as _, Shared, WeakShared};

use crate::failure::PullError;
use crate::registry::credentials::Credentials;
use crate::store::image::Image;

/// Result of a pull.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The image.
    pub image: Arc<Image>,
    /// Credentials that the registry accepted; `None` for anonymous access.
    pub opened_by: Option<Credentials>,
}

pub(crate) type Outcome = Result<Pulled, Arc<PullError>>;
type Flight = Shared<BoxFuture<'static, Outcome>>;
type Key = (String, Vec<Credentials>);

/// Pulls in progress: pods that want the same image with the same credentials share one. A pull is
/// canceled when its last waiter is gone.
#[derive(Default)]
pub(crate) struct Flights(Mutex<Vec<(Key, WeakShared<BoxFuture<'static, Outcome>>)>>);

impl Flights {
    pub(super) fn join(&self, key: Key, begin: impl FnOnce() -> BoxFuture<'static, Outcome>) -> Flight {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|(_, flight)| flight.upgrade().is_some_and(|flight| flight.peek().is_none()));
        let known = flights
            .iter()
            .find(|(known, _)| *known == key)
            .and_then(|(_, flight)| flight.upgrade());
        known.unwrap_or_else(|| {
            let flight = begin().shared();
            flights.extend(flight.downgrade().map(|weak| (key, weak)));
            flight
        })
    }
}
