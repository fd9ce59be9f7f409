//! Retries while containerd is temporarily unavailable, as at the machine's start or during a
//! restart of containerd.

use std::time::Duration;

use tokio::time::Instant;

use crate::command::Arguments;

/// Longest time to retry.
const LIMIT: Duration = Duration::from_mins(1);
/// First and longest time between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Opens a part of the node; retries failures if containerd has served this node before.
pub(crate) async fn open<T>(arguments: &Arguments, opening: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // Without containerd the address may be wrong, which is worth an immediate error.
    let limit = if arguments.knows_containerd() {
        LIMIT
    } else {
        Duration::ZERO
    };
    let (begun, mut pause) = (Instant::now(), PAUSE.0);
    loop {
        match opening().await {
            Err(error) if begun.elapsed() < limit => {
                tracing::warn!(error = format!("{error:#}"), "containerd is waited for");
            }
            outcome => return outcome,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}
