//! Slots that clients share, each client up to its limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of slots, and the number held by each client.
#[derive(Debug)]
pub struct Shares {
    all: usize,
    each: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by: HashMap<IpAddr, usize>,
}

impl Shares {
    /// Creates this many slots in all, with this many for each client.
    pub fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            each,
            held: Mutex::default(),
        })
    }

    /// Takes a slot until the returned guard is dropped; `None` if all slots, or the client's, are
    /// taken.
    pub fn take(self: &Arc<Self>, client: IpAddr) -> Option<Share> {
        // IPv4-mapped IPv6 addresses count as the same client.
        let client = client.to_canonical();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.by.get(&client).copied().unwrap_or(0);
        if held.all >= self.all || own >= self.each {
            return None;
        }
        held.all += 1;
        held.by.insert(client, own + 1);
        Some(Share {
            of: Arc::clone(self),
            client,
        })
    }
}

/// Guard of a slot.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    client: IpAddr,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= 1;
        match held.by.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(held.by.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::Shares;

    #[test]
    fn no_client_takes_the_places_of_others() {
        let shares = Shares::new(3, 2);
        let [one, two]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let held = [shares.take(one), shares.take(one)];
        assert!(held.iter().all(Option::is_some));
        assert!(shares.take(one).is_none(), "its part is taken");
        let other = shares.take(two);
        assert!(other.is_some());
        assert!(shares.take(two).is_none(), "all are taken");
        drop(held);
        assert!(shares.take(one).is_some());
    }
}
