//! Layers unpacked into directories, and the index of the images beside them.
//!
//! ```text
//! DIR/index.json    the images; replaced atomically
//! DIR/layers/HEX/   one directory per chain ID, complete or absent
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::syncfs;
use tempfile::TempDir;

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::unpack;
use crate::store::failure::StoreError;
use crate::store::index::{Record, read_index, sync_directory, write_index};
use crate::store::layer::{Blob, Have, LayerError, Staged, Wanted, blocking};
use crate::store::{OpenError, make_directory, staging};

/// Layers in the directory of a store.
#[derive(Clone)]
pub(crate) struct Own {
    directory: PathBuf,
    /// Reference counts of layers that may have no image yet, and so are not garbage.
    pinned: Arc<Pinned>,
}

type Pinned = Mutex<BTreeMap<String, usize>>;

/// Layers pinned by a pull, import or export, from before their existence is checked.
pub(crate) struct Pins {
    all: Arc<Pinned>,
    own: Mutex<Vec<String>>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for hex in self.own.get_mut().unwrap_or_else(PoisonError::into_inner) {
            if let Some(count) = all.get_mut(hex) {
                *count -= 1;
            }
        }
        all.retain(|_, count| *count > 0);
    }
}

impl Own {
    /// Opens a store whose staging directory exists. Images with missing layers are dropped.
    pub(crate) fn open(directory: &Path) -> Result<(Self, Vec<Record>), OpenError> {
        let failed = |source| OpenError::Io {
            directory: directory.to_owned(),
            source,
        };
        make_directory(&directory.join("layers")).map_err(failed)?;
        let own = Self {
            directory: directory.to_owned(),
            pinned: Arc::default(),
        };
        let mut records = read_index(directory)?;
        records.retain(|record| {
            let complete = record.layers.iter().all(|hex| own.path(hex).is_dir());
            let intact = Digest::of(record.config.as_bytes()).as_str() == record.id;
            if !(complete && intact) {
                tracing::warn!(image = %record.id, names = ?record.names, "dropped an incomplete image");
            }
            complete && intact
        });
        Ok((own, records))
    }

    pub(crate) fn path(&self, hex: &str) -> PathBuf {
        self.directory.join("layers").join(hex)
    }

    pub(crate) fn hold(&self) -> Pins {
        Pins {
            all: Arc::clone(&self.pinned),
            own: Mutex::default(),
        }
    }

    /// True if the layer exists. Pins it in any case, so that it is not removed.
    pub(crate) fn has(&self, pins: &Pins, hex: &str) -> bool {
        let mut all = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(hex.to_owned()).or_default() += 1;
        pins.own
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(hex.to_owned());
        self.path(hex).is_dir()
    }

    pub(crate) fn have(&self, pins: &Pins, wanted: &Wanted) -> Have {
        match wanted.chain() {
            Some(chain) if self.has(pins, chain.hex()) => Have::Layer,
            Some(_) | None => Have::Nothing,
        }
    }

    /// Unpacks and verifies a layer.
    pub(crate) async fn stage(&self, blob: Blob, wanted: Wanted, limits: &Limits) -> Result<Staged, LayerError> {
        let (staging, limits) = (self.directory.clone(), limits.clone());
        // The thread owns the directory, which therefore is not removed when the pull is canceled.
        blocking(move || stage(&staging, blob, wanted, &limits)).await?
    }

    /// Syncs a complete layer to disk and gives it its final name. Another pull may have been
    /// faster.
    pub(crate) async fn place(&self, staged: Staged) -> Result<(), LayerError> {
        let own = self.clone();
        let placed = blocking(move || match &staged.unpacked {
            Some((directory, implicit)) => own.place_now(&directory.path().join("layer"), implicit, &staged.wanted),
            None => Ok(()),
        });
        Ok(placed.await??)
    }

    fn place_now(&self, staged: &Path, implicit: &[PathBuf], wanted: &Wanted) -> Result<(), StoreError> {
        let Some((chain, lower)) = wanted.chains.split_last() else {
            return Ok(());
        };
        let target = self.path(chain.hex());
        if target.is_dir() {
            return Ok(());
        }
        let lower: Vec<PathBuf> = lower.iter().map(|chain| self.path(chain.hex())).collect();
        unpack::inherit(staged, implicit, &lower).map_err(StoreError::Layer)?;
        let opened = File::open(staged).map_err(StoreError::Io)?;
        syncfs(&opened).map_err(|error| StoreError::Io(error.into()))?;
        match fs::rename(staged, &target) {
            Ok(()) => sync_directory(&self.directory.join("layers")).map_err(StoreError::Io),
            Err(_) if target.is_dir() => Ok(()),
            Err(error) => Err(StoreError::Io(error)),
        }
    }

    pub(crate) fn write(&self, records: &[Record]) -> Result<(), StoreError> {
        write_index(&self.directory, records).map_err(StoreError::Io)
    }

    /// Removes layers that no image refers to and that are not pinned. Returns the bytes that this
    /// freed.
    pub(crate) async fn sweep(&self, has_image: impl Fn(&str) -> bool + Send + 'static) -> Result<u64, StoreError> {
        let own = self.clone();
        let swept = tokio::task::spawn_blocking(move || own.sweep_now(has_image)).await;
        swept
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(StoreError::Io)
    }

    fn sweep_now(&self, has_image: impl Fn(&str) -> bool) -> io::Result<u64> {
        let mut freed = 0_u64;
        for layer in fs::read_dir(self.directory.join("layers"))? {
            let layer = layer?;
            let name = layer.file_name();
            let removed = {
                let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
                // A former user of the layer has recorded its image before it dropped its pin; a
                // later one finds the layer missing.
                let needed = |hex: &str| pinned.contains_key(hex) || has_image(hex);
                if name.to_str().is_some_and(needed) {
                    continue;
                }
                // Renamed first: a partly removed layer must not look complete after a crash.
                let removed = staging(&self.directory)?;
                fs::rename(layer.path(), removed.path().join("layer"))?;
                removed
            };
            freed = freed.saturating_add(occupied(removed.path())?);
            removed.close()?;
        }
        Ok(freed)
    }
}

fn stage(directory: &Path, blob: Blob, wanted: Wanted, limits: &Limits) -> Result<Staged, LayerError> {
    let directory: TempDir = staging(directory).map_err(ContentError::io("create a directory"))?;
    let target = directory.path().join("layer");
    fs::create_dir(&target).map_err(ContentError::io("create a directory"))?;
    let unpacked = unpack::unpack(blob, &target, limits).map_err(|source| ContentError::Unpack {
        layer: wanted.name.clone(),
        source,
    })?;
    wanted.check(&unpacked)?;
    let descriptor = wanted.described(&unpacked);
    Ok(Staged {
        wanted,
        descriptor,
        unpacked: Some((directory, unpacked.implicit)),
    })
}

/// Disk usage of a directory tree, counting each inode once.
fn occupied(directory: &Path) -> io::Result<u64> {
    let (mut bytes, mut linked) = (0_u64, BTreeSet::new());
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            let found = entry.metadata()?;
            if found.is_dir() {
                left.push(entry.path());
            } else if found.nlink() > 1 && !linked.insert(found.ino()) {
                continue;
            }
            bytes = bytes.saturating_add(found.blocks().saturating_mul(512));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_somebody_needs_is_no_garbage() {
        let home = tempfile::tempdir().unwrap();
        make_directory(&home.path().join("staging")).unwrap();
        let (own, _) = Own::open(home.path()).unwrap();
        let make = |hex: &str| fs::create_dir(own.path(hex)).unwrap();
        let left = || {
            let mut names: Vec<String> = fs::read_dir(home.path().join("layers"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names.join(" ")
        };
        ["found", "image", "nobody"].into_iter().for_each(make);
        let (first, second) = (own.hold(), own.hold());
        assert!(own.has(&first, "found"));
        assert!(!own.has(&first, "made") && !own.has(&second, "made"));
        make("made");
        let images = |hex: &str| hex == "image";
        own.sweep(images).await.unwrap();
        assert_eq!(left(), "found image made");
        drop(first);
        own.sweep(images).await.unwrap();
        assert_eq!(left(), "image made");
        drop(second);
        own.sweep(images).await.unwrap();
        assert_eq!(left(), "image");
        assert!(own.pinned.lock().unwrap().is_empty());
    }
}
