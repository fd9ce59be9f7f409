//! Heavy work, by number of bytes: it runs apart from the executor's threads, so that other
//! requests are not blocked.

use std::cell::Cell;
use std::future::{self, poll_fn};
use std::panic;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

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
    // Nested work needs no permit of its own.
    if bytes < HEAVY || is_alone() || IN_TURN.get() {
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

/// Computes on a thread that serves no requests. A task of its own waits for the permit, which the
/// work drops: an answer whose client stops reading is not polled any more, and would keep it.
pub(crate) async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if is_alone() {
        return work();
    }
    let mut task = JoinSet::new();
    task.spawn(async move {
        let turn = TURNS.acquire().await;
        let done = tokio::task::spawn_blocking(move || {
            let _in_turn = InTurn::begin();
            let output = work();
            drop(turn);
            output
        });
        done.await
    });
    match task.join_next().await.map(Result::flatten) {
        Some(Ok(output)) => output,
        Some(Err(failed)) if failed.is_panic() => panic::resume_unwind(failed.into_panic()),
        // The runtime ends, and with it this task.
        Some(Err(_)) | None => future::pending().await,
    }
}

/// True on a single-threaded executor: it has no other thread, and its order of events, which
/// tests rely on, is not left to one.
fn is_alone() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::timeout;

    use super::{apart, compute};

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_that_are_not_polled_keep_no_turn() {
        let gate = Arc::new(Mutex::new(()));
        let answer = |number: usize| {
            let gate = Arc::clone(&gate);
            Box::pin(compute(move || {
                drop(gate.lock());
                number
            }))
        };
        let mut stalled: Vec<_> = (0..5).map(answer).collect();
        {
            let _shut = gate.lock().unwrap();
            for answer in &mut stalled {
                assert_eq!(answer.as_mut().now_or_never(), None);
            }
        }
        for number in 5..8 {
            let next = timeout(Duration::from_secs(20), compute(move || number)).await;
            assert_eq!(next, Ok(number));
        }
        for (number, answer) in stalled.into_iter().enumerate() {
            assert_eq!(answer.await, number);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn heavy_work_waits_for_what_it_has_computed() {
        let both = || apart(usize::MAX, async { tokio::join!(compute(|| 1), compute(|| 2)) });
        let all = timeout(Duration::from_secs(20), async { tokio::join!(both(), both(), both()) });
        assert_eq!(all.await, Ok(((1, 2), (1, 2), (1, 2))));
    }
}
