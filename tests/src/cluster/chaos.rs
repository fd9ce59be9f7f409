//! A network that loses things: requests before they arrive, answers after they took effect, and watches midway.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::Body;
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either},
};
use http::{Request, Response};
use tower::Service;

/// What goes wrong, in 1000 requests.
const LOST_BEFORE: u64 = 40;
const LOST_AFTER: u64 = 40;
/// A watch ends after so many frames at most.
const WATCH_FRAMES: u64 = 40;

/// The faults of one cluster's network.
#[derive(Debug, Clone)]
pub struct Chaos {
    seed: Option<u64>,
    drawn: Arc<AtomicU64>,
    calm: Arc<AtomicBool>,
    asked: Arc<Mutex<BTreeMap<(String, String), usize>>>,
}

/// The wire broke.
#[derive(Debug, thiserror::Error)]
#[error("the connection was lost")]
struct Lost;

impl Chaos {
    /// Faults drawn from `seed`; none without one.
    #[must_use]
    pub fn new(seed: Option<u64>) -> Self {
        Self {
            seed,
            drawn: Arc::default(),
            calm: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// No more faults from now on.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// How often something was asked for by this path, by agents and controllers.
    pub fn asked(&self, method: &str, path: &str) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get(&(method.to_owned(), path.to_owned())).copied().unwrap_or(0)
    }

    fn count(&self, request: &Request<kube::client::Body>) {
        let key = (request.method().to_string(), request.uri().path().to_owned());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        *asked.entry(key).or_default() += 1;
    }

    /// A number below 1000, the same for the same seed and the same order of requests.
    fn draw(&self) -> Option<u64> {
        let seed = self.seed.filter(|_| !self.calm.load(Ordering::Relaxed))?;
        // splitmix64
        let step = self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut mixed = seed.wrapping_add(step.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some((mixed ^ (mixed >> 31)) % 1000)
    }

    /// Puts the faults between a client and `inner`.
    pub fn around<S>(&self, inner: S) -> Lossy<S> {
        Lossy {
            chaos: self.clone(),
            inner,
        }
    }
}

/// A service behind a network that loses things.
#[derive(Debug, Clone)]
pub struct Lossy<S> {
    chaos: Chaos,
    inner: S,
}

impl<S> Service<Request<kube::client::Body>> for Lossy<S>
where
    S: Service<Request<kube::client::Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = tower::BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|never| match never {})
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        self.chaos.count(&request);
        let fate = self.chaos.draw();
        if fate.is_some_and(|fate| fate < LOST_BEFORE) {
            return async { Err(Lost.into()) }.boxed();
        }
        let answer = self.inner.call(request);
        let chaos = self.chaos.clone();
        async move {
            let response = match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            if fate.is_some_and(|fate| (LOST_BEFORE..LOST_BEFORE + LOST_AFTER).contains(&fate)) {
                return Err(Lost.into());
            }
            Ok(if watch { cut(response, &chaos) } else { response })
        }
        .boxed()
    }
}

/// Ends a watch after some frames.
fn cut(response: Response<Body>, chaos: &Chaos) -> Response<Body> {
    let Some(fate) = chaos.draw() else { return response };
    let frames = usize::try_from(fate % WATCH_FRAMES).unwrap_or(0).saturating_add(1);
    response.map(|body| {
        let stream = body.into_data_stream();
        let broken = stream.map(Either::Left).take(frames);
        let end = futures::stream::once(async { Either::Right(()) });
        Body::from_stream(broken.chain(end).map(|frame| match frame {
            Either::Left(frame) => frame.map_err(tower::BoxError::from),
            Either::Right(()) => Err(Lost.into()),
        }))
    })
}
