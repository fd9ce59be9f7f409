//! Tasks whose futures and closures are boxed.
//!
//! tokio's code for a task is compiled for each type of future and each of its two schedulers, with
//! the future in it.

use std::ops::{Deref, DerefMut};
use std::pin::Pin;

use tokio::task::{self, AbortHandle, JoinHandle};

/// [`task::JoinSet`] of boxed futures.
#[derive(Debug)]
pub struct JoinSet<T>(task::JoinSet<T>);

impl<T> JoinSet<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self(task::JoinSet::new())
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// Spawns a task.
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
        self.0.spawn(future)
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for JoinSet<T> {
    type Target = task::JoinSet<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for JoinSet<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Runs a closure on a thread for blocking work, as [`task::spawn_blocking`] does.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    task::spawn_blocking(work)
}
