//! Notes that a token which lives in a Secret was used: for the client, the audit log and the metrics, and once a day on
//! the Secret.

use std::sync::Arc;

use axum::body::Body;
use futures::future::BoxFuture;
use http::Request;
use http::header::{CONTENT_TYPE, USER_AGENT};
use serde_json::json;

use super::handle;
use crate::authn::identity::{MASTERS, User};
use crate::authn::tokens::{LAST_USED, Used};
use crate::ops::audit::recording::Outcome;
use crate::server::shared::Shared;
use crate::transport::respond::Response;

/// Notes a use. The Secret is changed like by any client; if that fails, the next use tries again.
pub(super) async fn note(shared: &Arc<Shared>, used: &Used, outcome: &mut Outcome) {
    let (name, text) = used.annotation();
    outcome.annotations.push((name.into(), text));
    outcome.warnings.extend(used.warning());
    shared.metrics.uses.token(used.origin);
    let Some(day) = &used.day else { return };
    let Used {
        namespace, secret, uid, ..
    } = used;
    let labels = json!({ LAST_USED: day });
    let patch = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": secret, "namespace": namespace, "uid": uid, "labels": labels},
    });
    let request = Request::patch(format!("/api/v1/namespaces/{namespace}/secrets/{secret}"))
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .header(USER_AGENT, concat!("kube-apiserver/v", env!("CARGO_PKG_VERSION")))
        .extension(User::new("system:apiserver", [MASTERS]))
        .body(Body::from(patch.to_string()));
    let Ok(request) = request else { return };
    let code = ask(Arc::clone(shared), request).await.status();
    if !code.is_success() {
        tracing::warn!(namespace, secret, %code, "the last use of a token is not written on its Secret");
    }
}

/// Answers a request inside of another.
fn ask(shared: Arc<Shared>, request: Request<Body>) -> BoxFuture<'static, Response> {
    Box::pin(handle(shared, request))
}
