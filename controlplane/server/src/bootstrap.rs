//! What every cluster has from its first moment. It is made through the router, like everything else.

use axum::Router;
use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use thiserror::Error;
use tower::{Service, ServiceExt};

use crate::identity::{MASTERS, User, assume};

/// Namespaces that are always there.
pub(crate) const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Priority classes of the cluster's own parts: name, value, description.
const PRIORITY_CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// Why the first objects could not be made.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// The server refused.
    #[error("create {kind} {name}: the answer was {code}")]
    Refused {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: &'static str,
        /// HTTP status.
        code: StatusCode,
    },
    /// The request could not be put together.
    #[error("create {kind} {name}")]
    Request {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: &'static str,
        /// Why.
        #[source]
        source: http::Error,
    },
}

/// An object that every cluster has.
struct First {
    path: &'static str,
    kind: &'static str,
    name: &'static str,
    body: Value,
}

fn firsts() -> impl Iterator<Item = First> {
    let namespaces = NAMESPACES.into_iter().map(|name| First {
        path: "/api/v1/namespaces",
        kind: "Namespace",
        name,
        body: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
    });
    let classes = PRIORITY_CLASSES.into_iter().map(|(name, value, description)| First {
        path: "/apis/scheduling.k8s.io/v1/priorityclasses",
        kind: "PriorityClass",
        name,
        body: json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        }),
    });
    namespaces.chain(classes)
}

/// Creates what is missing.
pub(crate) async fn run(router: Router) -> Result<(), BootstrapError> {
    let user = User::new("system:apiserver", [MASTERS]);
    let mut client = assume(user, concat!("skiff-controlplane/v", env!("CARGO_PKG_VERSION")), router);
    for First { path, kind, name, body } in firsts() {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .map_err(|source| BootstrapError::Request { kind, name, source })?;
        let code = match ServiceExt::<Request<Body>>::ready(&mut client).await {
            Ok(client) => match client.call(request).await {
                Ok(response) => response.status(),
                Err(never) => match never {},
            },
            Err(never) => match never {},
        };
        if !matches!(code, StatusCode::CREATED | StatusCode::CONFLICT) {
            return Err(BootstrapError::Refused { kind, name, code });
        }
    }
    Ok(())
}
