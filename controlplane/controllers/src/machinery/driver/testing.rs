//! A context for tests of controllers, whose requests a function answers.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request, Response, Uri};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::Clock;
use crate::machinery::events::Recorder;
use crate::machinery::kinds::Caches;

/// Context on a server that `answer` makes of a request: method, URI and body to a status code and
/// JSON.
pub(crate) fn context_on(
    caches: Caches,
    answer: impl FnMut(&Method, &Uri, &[u8]) -> (u16, Value) + Send + 'static,
) -> Context {
    let answer = Arc::new(Mutex::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            let (code, value) = answer(&head.method, &head.uri, &body);
            let response = Response::builder().status(code);
            Ok::<_, Infallible>(response.body(Body::from(value.to_string().into_bytes())).unwrap())
        }
    });
    context(kube::Client::new(service, "default"), caches)
}

/// Context with a client, at a fixed time.
pub(super) fn context(client: kube::Client, caches: Caches) -> Context {
    let clock: Clock = Arc::new(|| Timestamp::from_second(1_800_000_000).unwrap());
    Context {
        client,
        caches: Arc::new(caches),
        recorder: Recorder::new(clock.clone(), "m".into(), CancellationToken::new()).0,
        clock,
    }
}
