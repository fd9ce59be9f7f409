//! The server: its shared state, its router, and what keeps its objects as they have to be.

pub(crate) mod blocking;
pub(crate) mod bootstrap;
pub(crate) mod dispatch;
pub(crate) mod flow_control;
pub mod fuzzing;
pub(crate) mod limits;
pub(crate) mod shared;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use http::Request;
use store::Store;

use crate::extensions::aggregation;
use crate::extensions::definitions;
use crate::ops::ui;
use crate::server::bootstrap::BootstrapError;
use crate::server::shared::Shared;
use crate::write::admission::policies;

pub use shared::{Clock, Options};

/// The API server over a store. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// A server over a store that was opened with [`crate::storage::index`] and [`crate::storage::class`].
    pub fn new(store: Store, options: Options) -> Self {
        Self {
            shared: Arc::new(Shared::new(store, options)),
        }
    }

    /// The router. A [`crate::authn::identity::User`] in a request's extensions is believed; a request without one shows a
    /// bearer token or is anonymous.
    pub fn router(&self) -> Router {
        let shared = Arc::clone(&self.shared);
        Router::new().fallback(move |request: Request<Body>| dispatch::handle(Arc::clone(&shared), request))
    }

    /// Creates the objects of every cluster (its first namespaces, roles, bindings and its own
    /// Service) and reports ready on `/readyz`.
    ///
    /// # Errors
    /// When an object cannot be stored.
    pub async fn bootstrap(&self) -> Result<(), BootstrapError> {
        crate::storage::allocation::repair(&self.shared.store, (self.shared.options.clock)()).await;
        let made = bootstrap::run(self.router(), &self.shared.store, &self.shared.options).await?;
        self.shared.whole.store(made, Ordering::Relaxed);
        self.shared.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Creates the objects that [`Self::bootstrap`] could not, and recreates deleted ones that a
    /// cluster needs; maintains the definitions of kinds, the `APIServices`, the status of
    /// policies and what Services hold, for as long as it is polled.
    pub async fn heal(&self) -> Infallible {
        let shared = &self.shared;
        let upkeep = definitions::upkeep::run(Arc::clone(shared), self.router());
        let healed = bootstrap::heal(self.router(), &shared.store, &shared.options, &shared.whole);
        let router = self.router();
        tokio::select! {
            never = upkeep => never,
            never = aggregation::local::run(shared, &router) => never,
            never = aggregation::availability::run(shared, &router) => never,
            never = aggregation::described::run(shared) => never,
            never = flow_control::upkeep::run(Arc::clone(shared), self.router()) => never,
            never = policies::run(Arc::clone(shared), self.router()) => never,
            never = healed => never,
            never = shared.tokens.run() => never,
            never = ui::measures::run(Arc::clone(shared), self.router()) => never,
            never = bootstrap::follow(self.router(), &shared.store, &shared.options) => never,
            never = crate::storage::allocation::keep(&shared.store, || (shared.options.clock)()) => never,
        }
    }

    /// Reports not ready from now on, so that clients go elsewhere.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Ends long-running requests, as if each watch had timed out; other requests go on.
    pub fn drain(&self) {
        self.shared.limits.ending().cancel();
    }
}
