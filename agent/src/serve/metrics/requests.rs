//! State that requests share: files are counted once a minute at most, for any number of requests,
//! and file systems that may block are queried by one at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_plan::node::storage::Parts;
use nix::sys::statvfs::{Statvfs, statvfs};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::pod::instances::Place;

/// Time for which a result is cached.
const FRESH: Duration = Duration::from_mins(1);
/// Longest time to wait for the file systems of volumes: one of them may block.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Counted = Option<(Instant, Arc<Parts>)>;

/// Latest measurements, by the pods' UIDs.
#[derive(Default)]
pub(crate) struct Looks(Mutex<BTreeMap<String, Look>>);

struct Look {
    /// Instances that ran at the time.
    places: Vec<Option<Place>>,
    counted: watch::Receiver<Counted>,
}

impl Look {
    /// True if it is in progress or recent.
    fn is_good(&self, places: &[Option<Place>]) -> bool {
        let counted = self.counted.borrow().clone();
        match counted {
            _ if self.places != places => false,
            Some((at, _)) => at.elapsed() < FRESH,
            // Without a result, the task has panicked.
            None => self.counted.has_changed().is_ok(),
        }
    }
}

impl Looks {
    /// Returns the current measurement of a pod, or a sender for a new one. Those of pods that are
    /// not known any more are dropped.
    pub(super) fn join(
        &self,
        uid: &str,
        places: &[Option<Place>],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<watch::Receiver<Counted>, watch::Sender<Counted>> {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = looks.get(uid).filter(|look| look.is_good(places)) {
            return Ok(look.counted.clone());
        }
        looks.retain(|uid, _| is_known(uid));
        let counts = watch::Sender::new(None);
        let look = Look {
            places: places.to_vec(),
            counted: counts.subscribe(),
        };
        looks.insert(uid.to_owned(), look);
        Err(counts)
    }
}

/// Queries of the volumes' file systems: one at a time, so that a file system that blocks holds one
/// thread only.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Set while a query has blocked for too long.
    stuck: AtomicBool,
}

impl Asking {
    /// Queries file systems for their usage: empty while one of them blocks.
    pub(super) async fn ask<Whose: Send + 'static>(&self, all: Vec<(Whose, PathBuf)>) -> Vec<(Whose, Statvfs)> {
        if all.is_empty() {
            return Vec::new();
        }
        let turn = Arc::clone(&self.turn);
        let turn = if self.stuck.load(Ordering::Relaxed) {
            turn.try_lock_owned().ok()
        } else {
            tokio::time::timeout(TIMEOUT, turn.lock_owned()).await.ok()
        };
        let Some(turn) = turn else {
            return Vec::new();
        };
        self.stuck.store(false, Ordering::Relaxed);
        let looking = common::task::spawn_blocking(move || {
            let _turn = turn;
            let stat = |(whose, path): (Whose, PathBuf)| Some((whose, statvfs(&path).ok()?));
            all.into_iter().filter_map(stat).collect::<Vec<_>>()
        });
        if let Ok(found) = tokio::time::timeout(TIMEOUT, looking).await {
            found.unwrap_or_default()
        } else {
            self.stuck.store(true, Ordering::Relaxed);
            Vec::new()
        }
    }
}
