//! How a daemon keeps memory, and gives it back to the machine.
//!
//! Both daemons run on small machines beside what the machine is for, and are idle most of the time: memory that a burst of
//! work needed, and code that only the start or that burst ran, need not stay.

mod code;
mod heap;

use std::convert::Infallible;
use std::time::Duration;

pub use heap::share;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// How often it is looked whether memory can go back: long enough that one who works every second does not rest between.
const ROUND: Duration = Duration::from_secs(2);
/// The same for one who rests, so that what a single renewal of a lease brought back soon goes again.
const ROUND_AT_REST: Duration = Duration::from_millis(500);
/// Who uses the processor for more than this part of a round is busy.
const BUSY: u32 = 200;

/// Gives back what is not needed, for as long as it is polled: free heap whenever there is much of it, and pages of code when
/// the process rests. A lease that is renewed brings back most of it (the kernel maps sixteen pages around each that is run), by
/// some hundred faults that read nothing.
pub async fn give_back() -> Infallible {
    let mut before = processor_time();
    let mut round = ROUND;
    loop {
        tokio::time::sleep(round).await;
        let now = processor_time();
        let rests = now.saturating_sub(before) < round / BUSY;
        round = if rests { ROUND_AT_REST } else { ROUND };
        let allowed = if rests { heap::FREE_AT_REST } else { heap::FREE };
        // It takes milliseconds, in which whoever wants memory waits.
        tokio::task::spawn_blocking(move || heap::trim(allowed)).await.ok();
        if rests {
            tokio::task::spawn_blocking(code::release).await.ok();
        }
        // What this took is no work.
        before = processor_time();
    }
}

fn processor_time() -> Duration {
    let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    [used.user_time(), used.system_time()]
        .into_iter()
        .map(|time| Duration::from_micros(time.num_microseconds().try_into().unwrap_or_default()))
        .sum()
}
