//! Changes of the images' records.

use std::io;
use std::sync::{Arc, PoisonError};

use super::failure::StoreError;
use super::{Inner, Kept};
use crate::store::index::Record;

impl Inner {
    /// Changes the records, on disk or in containerd first and then in memory. Returns the bytes
    /// that this freed, if known.
    pub(super) async fn change<T>(&self, change: impl FnOnce(&mut Vec<Record>) -> T) -> Result<(T, u64), StoreError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        let before = self.records();
        let mut after = before.clone();
        let result = change(&mut after);
        match &self.kept {
            Kept::Own(own) => {
                let (own, images) = (own.clone(), Arc::clone(&self.images));
                // Runs to its end even if the caller is canceled, so that file and memory stay
                // consistent.
                let written = tokio::task::spawn_blocking(move || {
                    let _changing = changing;
                    own.write(&after)?;
                    *images.lock().unwrap_or_else(PoisonError::into_inner) = after;
                    Ok::<_, StoreError>(())
                });
                written
                    .await
                    .map_err(|error| StoreError::Io(io::Error::other(error)))??;
                Ok((result, 0))
            }
            Kept::Containerd(daemon) => {
                let freed = daemon.forget(&before, &after).await?;
                *self.images.lock().unwrap_or_else(PoisonError::into_inner) = after;
                Ok((result, freed))
            }
        }
    }

    /// Reads the images from containerd again, since other clients may have changed them.
    pub(super) async fn refresh(&self) -> Result<(), agent_containerd::Error> {
        if let Kept::Containerd(daemon) = &self.kept {
            let _changing = self.changing.lock().await;
            let read = daemon.read().await?;
            *self.images.lock().unwrap_or_else(PoisonError::into_inner) = read;
        }
        Ok(())
    }
}
