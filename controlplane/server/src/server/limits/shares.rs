//! Semaphore of which one user may hold at most a part.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of room are counted in pieces of this size.
const UNIT: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Shares {
    all: Arc<Semaphore>,
    /// Maximum number of permits that one user may hold.
    most: usize,
    /// Users that hold permits or wait for them.
    users: Mutex<BTreeMap<Arc<str>, Own>>,
}

#[derive(Debug)]
struct Own {
    free: Arc<Semaphore>,
    shares: usize,
}

/// Permits of a user; dropping returns them.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    user: Arc<str>,
    own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all = None;
        self.own = None;
        let mut users = self.of.locked();
        if let Some(own) = users.get_mut(&self.user) {
            own.shares = own.shares.saturating_sub(1);
            if own.shares == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// Handle with which a request takes permits repeatedly.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    /// Empty share, which keeps the user's part registered.
    share: Arc<Share>,
    own: Arc<Semaphore>,
}

/// Permits that were taken; dropping returns them.
#[derive(Debug)]
pub(crate) struct Taken {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _share: Arc<Share>,
}

/// Bytes that count until they are sent, or will never be.
struct Counted {
    bytes: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Taken {
    /// Is given back with the last of the bytes.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _taken: self })
    }
}

impl Room {
    /// Waits for permits for a number of bytes; for the user's maximum if that is less.
    pub(crate) async fn take(&self, bytes: usize) -> Option<Taken> {
        let much = self.much(bytes);
        Some(Taken {
            _own: Arc::clone(&self.own).acquire_many_owned(much).await.ok()?,
            _all: Arc::clone(&self.share.of.all).acquire_many_owned(much).await.ok()?,
            _share: Arc::clone(&self.share),
        })
    }

    /// Takes permits for a number of bytes if they are available.
    pub(crate) fn take_now(&self, bytes: usize) -> Option<Taken> {
        let much = self.much(bytes);
        Some(Taken {
            _own: Arc::clone(&self.own).try_acquire_many_owned(much).ok()?,
            _all: Arc::clone(&self.share.of.all).try_acquire_many_owned(much).ok()?,
            _share: Arc::clone(&self.share),
        })
    }

    fn much(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT).min(self.share.of.most)).unwrap_or(u32::MAX)
    }
}

impl Shares {
    /// Creates a semaphore for a number of bytes.
    pub(super) fn of_bytes(all: usize) -> Arc<Self> {
        Self::new(all / UNIT, all / UNIT / 2)
    }

    /// Handle for a user's request.
    pub(super) fn room(self: &Arc<Self>, user: &str) -> Room {
        let (share, own) = self.empty(user);
        Room {
            share: Arc::new(share),
            own,
        }
    }

    /// Semaphore of `all` permits, of which one user may hold `most`.
    pub(super) fn new(all: usize, most: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Arc::new(Semaphore::new(all)),
            most,
            users: Mutex::default(),
        })
    }

    pub(super) fn free(&self) -> usize {
        self.all.available_permits()
    }

    #[cfg(test)]
    pub(super) fn users(&self) -> usize {
        self.locked().len()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Own>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empty share and the user's own semaphore.
    fn empty(self: &Arc<Self>, user: &str) -> (Share, Arc<Semaphore>) {
        // Whoever may make one service account of a namespace may make any number of them.
        let account = user.strip_prefix("system:serviceaccount:");
        let account = account.and_then(|account| account.split_once(':'));
        let user: Arc<str> = account.map_or_else(
            || user.into(),
            |(namespace, _)| format!("system:serviceaccounts:{namespace}").into(),
        );
        let mut users = self.locked();
        let own = users.entry(Arc::clone(&user)).or_insert_with(|| Own {
            free: Arc::new(Semaphore::new(self.most)),
            shares: 0,
        });
        own.shares += 1;
        let share = Share {
            of: Arc::clone(self),
            user,
            own: None,
            all: None,
        };
        (share, Arc::clone(&own.free))
    }

    /// Waits for that many permits, first within the user's own part, so that other users do not
    /// queue behind this one.
    pub(super) async fn take(self: &Arc<Self>, user: &str, much: u32) -> Option<Share> {
        let (mut share, own) = self.empty(user);
        share.own = Some(own.acquire_many_owned(much).await.ok()?);
        share.all = Some(Arc::clone(&self.all).acquire_many_owned(much).await.ok()?);
        Some(share)
    }

    /// Takes one permit if it is available.
    pub(super) fn take_now(self: &Arc<Self>, user: &str) -> Option<Share> {
        let (mut share, own) = self.empty(user);
        share.own = Some(own.try_acquire_owned().ok()?);
        share.all = Some(Arc::clone(&self.all).try_acquire_owned().ok()?);
        Some(share)
    }
}
