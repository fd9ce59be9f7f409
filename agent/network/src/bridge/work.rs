//! Blocking work on the kernel's network: each task has a short-lived thread of its own.

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit as Place, Semaphore, oneshot};

use super::{Bridge, Inner};
use crate::Error;

impl Bridge {
    /// Runs `work` to completion on its own thread, even if the caller is canceled.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Inner>) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.thread(&self.inner.workers, move |inner, answer, _place| {
            // The caller may have been canceled; the records hold the result.
            drop(answer.send(work(inner)));
        })
    }

    /// Like `run`, but completes the remaining part of `work`, if any, after the caller has its
    /// result.
    pub(super) fn run_on<T: Send + 'static, L: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        work: impl FnOnce(&Arc<Inner>) -> Result<(T, Option<L>), Error> + Send + 'static,
        rest: impl FnOnce(&Arc<Inner>, &L, Option<Place>) + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.thread(places, move |inner, answer, place| {
            let (result, left) = match work(inner) {
                Ok((result, left)) => (Ok(result), left),
                Err(error) => (Err(error), None),
            };
            drop(answer.send(result));
            if let Some(left) = left {
                rest(inner, &left, place);
            }
        })
    }

    fn thread<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        work: impl FnOnce(&Arc<Inner>, oneshot::Sender<Result<T, Error>>, Option<Place>) + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let (inner, places) = (Arc::clone(&self.inner), Arc::clone(places));
        async move {
            // The semaphore is never closed.
            let place = places.acquire_owned().await.ok();
            let (answer, answered) = oneshot::channel();
            let thread = std::thread::Builder::new().name("network".to_owned()).spawn(move || {
                work(&inner, answer, place);
            });
            thread.map_err(|source| Error::io("start a thread for", Path::new("the network"), source))?;
            answered.await.unwrap_or_else(|_| {
                Err(Error::Kernel {
                    doing: "work on the network",
                    cause: "the thread ended without an answer".to_owned(),
                })
            })
        }
        .boxed()
    }
}
