//! Directories of local persistent volumes, for the provisioning controller. It connects through
//! the API server, which authorizes it (`nodes/proxy`).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tracing::{info, warn};
use volume::LocalPathError;

use crate::context::Context;

/// Creates the directory of a volume and returns its path.
pub(super) async fn make(State(context): State<Arc<Context>>, Path(name): Path<String>) -> Response {
    let volumes = context.local_path.clone();
    match common::task::spawn_blocking(move || volumes.make(&name)).await {
        Ok(Ok(path)) => {
            info!(path = %path.display(), "directory of a volume made");
            Json(json!({"path": path})).into_response()
        }
        Ok(Err(error)) => refuse(&error),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Removes the directory of a volume.
pub(super) async fn remove(State(context): State<Arc<Context>>, Path(name): Path<String>) -> Response {
    let volumes = context.local_path.clone();
    let removed = common::task::spawn_blocking(move || volumes.remove(&name).map(|there| (there, name)));
    match removed.await {
        Ok(Ok((true, volume))) => {
            info!(volume, "directory of a volume removed");
            Json(json!({})).into_response()
        }
        Ok(Ok((false, _))) => Json(json!({})).into_response(),
        Ok(Err(error)) => refuse(&error),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The text appears in events.
fn refuse(error: &LocalPathError) -> Response {
    let message = image::chain(error);
    warn!(error = message, "a volume's directory");
    let (code, reason) = match error {
        LocalPathError::Name(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
        LocalPathError::Used(_) => (StatusCode::CONFLICT, "Conflict"),
        LocalPathError::Io { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, Json(status)).into_response()
}
