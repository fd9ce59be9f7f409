//! A containerd that is away for a moment, as at the machine's start or over its own restart, is waited for.

use std::time::Duration;

use tokio::time::Instant;

use crate::command::Arguments;

/// For so long.
const LIMIT: Duration = Duration::from_mins(1);
/// Between two tries: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Opens something of the node's, again while that fails where containerd has served this node before.
pub(crate) async fn open<T>(arguments: &Arguments, opening: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // Otherwise its address may be wrong, which somebody wants to know at once.
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
