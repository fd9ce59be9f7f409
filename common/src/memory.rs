//! Allocator settings, and the return of unused memory to the kernel.
//!
//! Both daemons run on small machines beside the workload and are idle most of the time: memory
//! used by a burst of work, and code pages used only at startup or during the burst, should not
//! stay resident.

mod code;
mod heap;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

pub use heap::share;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// Interval at which usage is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Number of samples in the sliding window: a process that works every second is not idle.
const SAMPLES: usize = 4;
/// Maximum processor time of an idle process within the window. The renewal of a lease takes less.
const IDLE: Duration = Duration::from_millis(10);

/// Returns unused memory to the kernel while it is polled: free heap whenever there is much of it,
/// and code pages when the process is idle. The renewal of a lease maps most of those pages again
/// (the kernel maps sixteen pages around each fault), with some hundred minor faults. `glibc` is
/// true if the program's allocator is glibc's; others return memory themselves.
pub async fn give_back(glibc: bool) -> Infallible {
    // Processor time of this function itself does not count.
    let mut own = Duration::ZERO;
    let mut rounds = VecDeque::with_capacity(SAMPLES + 1);
    let mut count = 0_usize;
    loop {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        let now = processor_time();
        rounds.push_back(now.saturating_sub(own));
        let rests = rounds.len() > SAMPLES && used(&rounds) < IDLE;
        if rounds.len() > SAMPLES {
            rounds.pop_front();
        }
        count = count.wrapping_add(1);
        // It takes milliseconds, during which allocations of other threads wait.
        if glibc && (rests || count.is_multiple_of(SAMPLES)) {
            let free = if rests { heap::FREE_AT_REST } else { heap::FREE };
            tokio::task::spawn_blocking(move || heap::trim(free)).await.ok();
        }
        if rests {
            tokio::task::spawn_blocking(code::release).await.ok();
        }
        own += processor_time().saturating_sub(now);
    }
}

/// Processor time between the first and the last of these samples.
fn used(rounds: &VecDeque<Duration>) -> Duration {
    let ends = rounds.back().zip(rounds.front());
    ends.map_or(Duration::ZERO, |(last, first)| last.saturating_sub(*first))
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
