//! A thing of which there is so much in all, and of which one user may hold half.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct Shares {
    all: Arc<Semaphore>,
    /// The most that one user may hold.
    most: usize,
    /// Who holds some of it or waits for it.
    users: Mutex<BTreeMap<Arc<str>, Own>>,
}

#[derive(Debug)]
struct Own {
    free: Arc<Semaphore>,
    shares: usize,
}

/// Some of it; dropping it gives it back.
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

impl Shares {
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Arc::new(Semaphore::new(all)),
            most: all.div_ceil(2),
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

    /// A share without anything in it, and what the user may still hold.
    fn empty(self: &Arc<Self>, user: &str) -> (Share, Arc<Semaphore>) {
        let user: Arc<str> = user.into();
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

    /// Waits for so much of it: for the user's own half first, so that nobody else waits behind him.
    pub(super) async fn take(self: &Arc<Self>, user: &str, much: u32) -> Option<Share> {
        let (mut share, own) = self.empty(user);
        share.own = Some(own.acquire_many_owned(much).await.ok()?);
        share.all = Some(Arc::clone(&self.all).acquire_many_owned(much).await.ok()?);
        Some(share)
    }

    /// One of it, if it is there.
    pub(super) fn take_now(self: &Arc<Self>, user: &str) -> Option<Share> {
        let (mut share, own) = self.empty(user);
        share.own = Some(own.try_acquire_owned().ok()?);
        share.all = Some(Arc::clone(&self.all).try_acquire_owned().ok()?);
        Some(share)
    }
}
