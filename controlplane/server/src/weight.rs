//! Work that takes its time, by the bytes that it is about: it is done beside the executor's threads, which other requests
//! need meanwhile.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// From so many bytes on, decoding, patching, checking or rendering can take longer than other requests should wait.
const HEAVY: usize = 256 * 1024;
/// How much of such work is done at a time: as much as there are cores on a small machine, so that the system gives light
/// requests half of them at least.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Does what a future does; where it is about many bytes, on a thread that serves nobody else until it ends.
pub(crate) async fn apart<F: Future>(bytes: usize, work: F) -> F::Output {
    let executor = Handle::current();
    // An executor of one thread has no other place.
    if bytes < HEAVY || executor.runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work.await;
    }
    let _turn = TURNS.acquire().await;
    tokio::task::block_in_place(|| executor.block_on(work))
}
