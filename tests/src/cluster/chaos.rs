//! A lossy network: it drops requests before they arrive and responses after they took effect, and
//! breaks watches midway.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use futures::future::{BoxFuture, Either};
use futures::{FutureExt, StreamExt};
use http::{Request, Response};
use serde_json::{Value, json};
use tower::Service;

/// Faults in 1000 requests.
const LOST_BEFORE: u64 = 40;
const LOST_AFTER: u64 = 40;
/// The path of the resource metrics API for pods.
const MEASURES: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/";
/// A watch ends after so many frames at most.
const WATCH_FRAMES: u64 = 40;

/// The faults of one cluster's network.
#[derive(Debug, Clone)]
pub struct Chaos {
    seed: Option<u64>,
    drawn: Arc<AtomicU64>,
    calm: Arc<AtomicBool>,
    asked: Arc<Mutex<BTreeMap<(String, String), usize>>>,
    load: Arc<Mutex<Option<Load>>>,
}

/// Work that the running pods share.
#[derive(Clone)]
struct Load {
    /// Thousandths of a processor that all of it needs.
    milli: u64,
    clock: server::Clock,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}m", self.milli)
    }
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
            load: Arc::default(),
        }
    }

    /// Sets the load that the resource metrics API reports for the pods in total: simulated agents
    /// have no metrics.
    pub(super) fn set_load(&self, milli: u64, clock: server::Clock) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = Some(Load { milli, clock });
    }

    /// The load that a request asks for.
    fn load_of(&self, request: &Request<kube::client::Body>) -> Option<Load> {
        let asks = request.uri().path().starts_with(MEASURES);
        asks.then(|| self.load.lock().unwrap_or_else(PoisonError::into_inner).clone())?
    }

    /// No more faults from now on.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Number of requests of agents and controllers by this path.
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

/// A service behind a lossy network.
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
        let load = self.chaos.load_of(&request);
        let answer = match load {
            Some(load) => measured(self.inner.call(of_pods(request)), load).boxed(),
            None => self.inner.call(request).boxed(),
        };
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

/// Asks for the pods instead of their measures.
fn of_pods(mut request: Request<kube::client::Body>) -> Request<kube::client::Body> {
    let uri = request.uri().to_string().replace(MEASURES, "/api/v1/namespaces/");
    *request.uri_mut() = uri.parse().expect("a path");
    request
}

/// Metrics of the ready pods of a list: the nodes of the others may not answer.
async fn measured(
    list: impl Future<Output = Result<Response<Body>, Infallible>>,
    load: Load,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = list.await?.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
    let mut list: Value = serde_json::from_slice(&bytes).expect("a list");
    let pods = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let is_ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let running: Vec<Value> = pods.into_iter().filter(is_ready).collect();
    let each = load.milli / u64::try_from(running.len()).unwrap_or(u64::MAX).max(1);
    let measure = |pod: &Value| {
        json!({
            "metadata": pod["metadata"], "timestamp": (load.clock)().to_string(), "window": "15s",
            "containers": [{ "name": "main", "usage": { "cpu": format!("{each}m"), "memory": "1Mi" } }],
        })
    };
    list["items"] = running.iter().map(measure).collect();
    Ok(Response::from_parts(parts, Body::from(list.to_string())))
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
