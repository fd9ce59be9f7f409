//! Connections that switch protocols with 101.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tracing::debug;

/// Connection that switched protocols.
pub(in crate::serve) type Io = TokioIo<Upgraded>;

/// Task that takes over a connection after its last response; the response carries it.
#[derive(Clone)]
pub(in crate::serve) struct After(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl After {
    /// Empty, until it is set.
    pub(in crate::serve) fn nothing() -> Self {
        Self(Arc::default())
    }

    fn new(work: BoxFuture<'static, ()>) -> Self {
        Self(Arc::new(Mutex::new(Some(work))))
    }

    pub(in crate::serve) fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes over the task that a response carries.
    pub(in crate::serve) fn fill(&self, response: &mut Response) {
        if let Some(After(other)) = response.extensions_mut().remove::<Self>() {
            let work = Self(other).take();
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = work;
        }
    }
}

/// Returns the `Upgrade` header in lower case.
pub(in crate::serve) fn wanted(request: &Request) -> String {
    let value = request.headers().get(header::UPGRADE);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_ascii_lowercase()
}

/// Responds with 101 and then runs `work` with the connection.
pub(super) fn switch<Work, Done>(
    mut request: Request,
    protocol: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    work: Work,
) -> Response
where
    Work: FnOnce(Io) -> Done + Send + 'static,
    Done: Future<Output = ()> + Send + 'static,
{
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        let mut response = Response::new(Body::from("the connection cannot be upgraded\n"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let after = async move {
        match upgrade.await {
            Ok(upgraded) => work(TokioIo::new(upgraded)).await,
            Err(error) => debug!(%error, "a connection was not upgraded"),
        }
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let own = response.headers_mut();
    own.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    own.insert(header::UPGRADE, HeaderValue::from_static(protocol));
    own.extend(headers);
    response.extensions_mut().insert(After::new(after.boxed()));
    response
}
