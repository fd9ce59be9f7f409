//! Records of a pod's failures, for pods that exist and pods that are gone.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use crate::context::Context;

/// Query parameters.
#[derive(Deserialize)]
pub(super) struct Of {
    namespace: String,
    pod: String,
}

/// Returns the failed containers of pods with this name.
pub(super) async fn answer(State(context): State<Arc<Context>>, Query(of): Query<Of>) -> Response {
    let read = common::task::spawn_blocking(move || context.crashes.of(&of.namespace, &of.pod)).await;
    match read {
        Ok(Ok(stories)) => Json(json!({"items": stories})).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
