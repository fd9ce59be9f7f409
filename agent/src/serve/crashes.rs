//! What is remembered of a pod's failures, whether the pod is still there or not.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use crate::context::Context;

/// Whose failures.
#[derive(Deserialize)]
pub(super) struct Of {
    namespace: String,
    pod: String,
}

/// The containers of pods of this name that failed, and how.
pub(super) async fn answer(State(context): State<Arc<Context>>, Query(of): Query<Of>) -> Response {
    let read = tokio::task::spawn_blocking(move || context.crashes.of(&of.namespace, &of.pod)).await;
    match read {
        Ok(Ok(stories)) => Json(json!({"items": stories})).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
