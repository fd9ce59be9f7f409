//! Times of the steps of a pod's start.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;

use crate::context::Context;
use crate::pod::milestones::Times;

/// Query parameters.
#[derive(Deserialize)]
pub(super) struct Of {
    uid: String,
}

/// Returns the recorded steps with their times.
pub(super) async fn answer(State(context): State<Arc<Context>>, Query(of): Query<Of>) -> Json<Times> {
    Json(context.milestones.of(&of.uid))
}
