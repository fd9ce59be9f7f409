//! How a daemon keeps memory, and gives it back to the machine.
//!
//! Both daemons run on small machines beside what the machine is for, and are idle most of the time: memory that a burst of
//! work needed, and code that only the start or that burst ran, need not stay.

mod code;
mod heap;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

pub use heap::share;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// How often it is looked whether memory can go back.
const ROUND: Duration = Duration::from_millis(500);
/// As many rounds are looked at together: who works every second does not rest between.
const ROUNDS: usize = 4;
/// Who uses the processor for longer in them is busy. The renewal of a lease takes less.
const IDLE: Duration = Duration::from_millis(10);

/// Gives back what is not needed, for as long as it is polled: free heap whenever there is much of it, and pages of code when
/// the process rests. A lease that is renewed brings back most of it (the kernel maps sixteen pages around each that is run), by
/// some hundred faults that read nothing.
pub async fn give_back() -> Infallible {
    // What this itself takes is no work.
    let mut own = Duration::ZERO;
    let mut rounds = VecDeque::with_capacity(ROUNDS + 1);
    let mut count = 0_usize;
    loop {
        tokio::time::sleep(ROUND).await;
        let now = processor_time();
        rounds.push_back(now.saturating_sub(own));
        let rests = rounds.len() > ROUNDS && used(&rounds) < IDLE;
        if rounds.len() > ROUNDS {
            rounds.pop_front();
        }
        count = count.wrapping_add(1);
        // It takes milliseconds, in which whoever wants memory waits.
        if rests {
            tokio::task::spawn_blocking(|| heap::trim(heap::FREE_AT_REST))
                .await
                .ok();
            tokio::task::spawn_blocking(code::release).await.ok();
        } else if count.is_multiple_of(ROUNDS) {
            tokio::task::spawn_blocking(|| heap::trim(heap::FREE)).await.ok();
        }
        own += processor_time().saturating_sub(now);
    }
}

/// What was used between the first and the last of these.
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
