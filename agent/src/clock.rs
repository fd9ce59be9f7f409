//! The one place that reads the wall clock.

use std::sync::Arc;

use agent_plan::Timestamp;

use crate::context::Clock;

/// The machine's clock.
pub fn wall() -> Clock {
    Arc::new(Timestamp::now)
}
