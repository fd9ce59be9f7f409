//! Heavy work, by number of bytes: it runs apart from the executor's threads, so that other
//! requests are not blocked.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Size from which on decoding, patching, checking or rendering can take longer than other requests
/// should wait.
const HEAVY: usize = 256 * 1024;
/// Number of heavy requests that are processed concurrently: as many as a small machine has cores,
/// so that light requests get at least half of the CPU time.
static TURNS: Semaphore = Semaphore::const_new(2);

thread_local! {
    /// True while this thread does heavy work and holds its permit.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Sets [`IN_TURN`] for as long as it lives.
struct InTurn;

impl InTurn {
    fn begin() -> Self {
        IN_TURN.set(true);
        Self
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        IN_TURN.set(false);
    }
}

/// Polls a future; where it handles many bytes, on a thread that serves no other requests while it
/// computes. It holds a permit while it computes, and none while it waits.
pub(crate) async fn apart<F: Future>(bytes: usize, work: F) -> F::Output {
    // A single-threaded executor has no other thread, and nested work needs no permit of its own.
    let alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    if bytes < HEAVY || alone || IN_TURN.get() {
        return work.await;
    }
    let mut work = pin!(work);
    loop {
        let turn = TURNS.acquire().await;
        let step = poll_fn(|context| {
            Poll::Ready(tokio::task::block_in_place(|| {
                let _in_turn = InTurn::begin();
                work.as_mut().poll(context)
            }))
        });
        let step = step.await;
        drop(turn);
        if let Poll::Ready(output) = step {
            return output;
        }
        woken().await;
    }
}

/// Waits until the task is woken for any reason.
async fn woken() {
    let mut asked = false;
    poll_fn(|_| {
        if std::mem::replace(&mut asked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
