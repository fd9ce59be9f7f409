//! Cache of verified tokens, by their digest. The tokens themselves are not kept.

use std::collections::HashMap;
use std::sync::Arc;

use super::Verified;

/// Size of a generation. Two-generation LRU of verified tokens.
const GENERATION: usize = 2048;

/// Two generations: when the younger one is full, the older one is dropped.
#[derive(Debug, Default)]
pub(super) struct Cache {
    young: HashMap<[u8; 32], Arc<Verified>>,
    old: HashMap<[u8; 32], Arc<Verified>>,
}

impl Cache {
    pub(super) fn get(&mut self, digest: &[u8; 32]) -> Option<Arc<Verified>> {
        if let Some(known) = self.young.get(digest) {
            return Some(Arc::clone(known));
        }
        let known = self.old.remove(digest)?;
        self.put(*digest, Arc::clone(&known));
        Some(known)
    }

    pub(super) fn put(&mut self, digest: [u8; 32], verified: Arc<Verified>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, verified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::identity::User;

    fn digest(number: usize) -> [u8; 32] {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        digest
    }

    #[test]
    fn what_is_used_stays_and_there_is_an_end_to_it() {
        let verified = Arc::new(Verified {
            user: User::anonymous(),
            audiences: None,
            begins: 0,
            ends: 0,
            lives: None,
            promised_until: None,
            bonds: Vec::new(),
        });
        let mut cache = Cache::default();
        for number in 0..10 * GENERATION {
            cache.put(digest(number), Arc::clone(&verified));
            assert!(cache.get(&digest(0)).is_some(), "{number}");
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION);
        assert!(cache.get(&digest(1)).is_none());
    }
}
