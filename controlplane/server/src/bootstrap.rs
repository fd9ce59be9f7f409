//! What every cluster has from its first moment. It is made through the router, like everything else.

use axum::Router;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use serde_json::json;
use thiserror::Error;
use tower::{Service, ServiceExt};

use crate::identity::{MASTERS, User, assume};

/// Namespaces that are always there.
pub(crate) const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Why the first objects could not be made.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// The server refused.
    #[error("create namespace {namespace}: the answer was {code}")]
    Refused {
        /// Its name.
        namespace: &'static str,
        /// HTTP status.
        code: StatusCode,
    },
    /// The request could not be put together.
    #[error("create namespace {namespace}")]
    Request {
        /// Its name.
        namespace: &'static str,
        /// Why.
        #[source]
        source: http::Error,
    },
}

/// Creates what is missing.
pub(crate) async fn run(router: Router) -> Result<(), BootstrapError> {
    let user = User::new("system:apiserver", [MASTERS]);
    let mut client = assume(user, concat!("skiff-controlplane/v", env!("CARGO_PKG_VERSION")), router);
    for namespace in NAMESPACES {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}).to_string();
        let request = Request::builder()
            .method(Method::POST)
            .uri("/api/v1/namespaces")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|source| BootstrapError::Request { namespace, source })?;
        let code = match ServiceExt::<Request<Body>>::ready(&mut client).await {
            Ok(client) => match client.call(request).await {
                Ok(response) => response.status(),
                Err(never) => match never {},
            },
            Err(never) => match never {},
        };
        if !matches!(code, StatusCode::CREATED | StatusCode::CONFLICT) {
            return Err(BootstrapError::Refused { namespace, code });
        }
    }
    Ok(())
}
