//! When a pod took each step of its start.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;

use crate::context::Context;
use crate::milestones::Times;

/// Whose.
#[derive(Deserialize)]
pub(super) struct Of {
    uid: String,
}

/// The steps that are known, each with its time.
pub(super) async fn answer(State(context): State<Arc<Context>>, Query(of): Query<Of>) -> Json<Times> {
    Json(context.milestones.of(&of.uid))
}
