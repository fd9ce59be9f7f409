//! Rate limit of logins by client address: they come before flow control, which goes by users.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;

/// Milliseconds after which an address may try once more.
const INTERVAL: i64 = 1000;
/// Attempts in a row.
const BURST: i64 = 20;
/// Number of counters. Addresses share them by a keyed hash, so that nobody chooses with whom.
const COUNTERS: usize = 1024;

/// Recent login attempts.
#[derive(Debug)]
pub(crate) struct Attempts {
    hasher: RandomState,
    /// Times in milliseconds at which all attempts so far are forgotten.
    counters: Mutex<Vec<i64>>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            counters: Mutex::new(vec![0; COUNTERS]),
        }
    }
}

impl Attempts {
    /// Counts an attempt; false if it is one too many.
    pub(super) fn allow(&self, source: Option<IpAddr>, now: Timestamp) -> bool {
        let now = now.as_millisecond();
        let place = self.hasher.hash_one(source.map(network)) % COUNTERS as u64;
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counter) = usize::try_from(place).ok().and_then(|place| counters.get_mut(place)) else {
            return false;
        };
        // The clock may have been set back.
        let until = (*counter).clamp(now, now.saturating_add(INTERVAL * BURST));
        let next = until.saturating_add(INTERVAL);
        let allowed = next <= now.saturating_add(INTERVAL * BURST);
        *counter = if allowed { next } else { until };
        allowed
    }
}

/// Network of a client: one has 2^64 addresses of version 6.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_a_flood_of_logins_stops_its_own_address_alone() {
        let attempts = Attempts::default();
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        let from = |text: &str| Some(text.parse().unwrap());
        let allowed = |source, now| (0..1000).filter(|_| attempts.allow(source, at(now))).count();
        assert_eq!(allowed(from("2001:db8::1"), 5_000_000), 20);
        assert!(
            !attempts.allow(from("2001:db8::ffff:2"), at(5_000_000)),
            "the same network"
        );
        assert_eq!(allowed(from("2001:db8::3"), 5_002_000), 2, "two seconds later");
        let others = (0..100).filter(|number| attempts.allow(from(&format!("10.0.0.{number}")), at(5_002_000)));
        assert!(others.count() >= 98);
        assert_eq!(allowed(from("2001:db8::1"), 1_000), 0, "the clock has been set back");
        assert_eq!(allowed(from("2001:db8::1"), 21_000), 20);
    }
}
