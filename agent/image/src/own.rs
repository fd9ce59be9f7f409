//! Layers as directories of our own, and the index of the images beside them.
//!
//! ```text
//! DIR/index.json    the images; replaced atomically
//! DIR/layers/HEX/   one directory per chain ID, complete or absent
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::syncfs;
use tempfile::TempDir;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use crate::config::Limits;
use crate::content::ContentError;
use crate::digest::Digest;
use crate::index::{Record, read_index, sync_directory, write_index};
use crate::layer::{Blob, Hold, LayerError, Staged, Wanted, blocking};
use crate::manifest::Descriptor;
use crate::store::{OpenError, StoreError, make_directory, staging};
use crate::unpack;

/// The layers of a store's directory.
#[derive(Clone)]
pub(crate) struct Own {
    directory: PathBuf,
    /// Read by whoever adds an image, written by the collector: a layer without an image yet is not garbage.
    adding: Arc<RwLock<()>>,
}

impl Own {
    /// Opens a store whose staging directory is there. Images that lack something are dropped.
    pub(crate) fn open(directory: &Path) -> Result<(Self, Vec<Record>), OpenError> {
        let failed = |source| OpenError::Io {
            directory: directory.to_owned(),
            source,
        };
        make_directory(&directory.join("layers")).map_err(failed)?;
        let own = Self {
            directory: directory.to_owned(),
            adding: Arc::default(),
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

    pub(crate) fn has(&self, chain: &Digest) -> bool {
        self.path(chain.hex()).is_dir()
    }

    pub(crate) async fn hold(&self) -> Hold {
        Hold::Own {
            _adding: Arc::clone(&self.adding).read_owned().await,
        }
    }

    /// Nobody adds anything for as long as this is held; nothing while somebody does.
    pub(crate) fn alone(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        Arc::clone(&self.adding).try_write_owned().ok()
    }

    /// Unpacks a layer and checks it.
    pub(crate) async fn stage(&self, blob: Blob, wanted: Wanted, limits: &Limits) -> Result<Staged, LayerError> {
        let (staging, limits) = (self.directory.clone(), limits.clone());
        // The thread owns the directory: it is not removed under its hands when the pull is given up.
        blocking(move || stage(&staging, blob, wanted, &limits)).await?
    }

    /// Brings a complete layer to the disk and gives it its final name. Another pull may have been faster.
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

    /// Removes the layers that no image has; answers the bytes that this freed.
    pub(crate) fn sweep(&self, records: &[Record]) -> Result<u64, StoreError> {
        self.sweep_now(records).map_err(StoreError::Io)
    }

    fn sweep_now(&self, records: &[Record]) -> io::Result<u64> {
        let referenced: BTreeSet<&str> = records
            .iter()
            .flat_map(|record| record.layers.iter().map(String::as_str))
            .collect();
        let mut freed = 0_u64;
        for layer in fs::read_dir(self.directory.join("layers"))? {
            let layer = layer?;
            if layer.file_name().to_str().is_some_and(|name| referenced.contains(name)) {
                continue;
            }
            // Renamed first: a layer that is half removed must not look complete after a crash.
            let staging = staging(&self.directory)?;
            fs::rename(layer.path(), staging.path().join("layer"))?;
            freed = freed.saturating_add(occupied(staging.path())?);
            staging.close()?;
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
    let descriptor = Descriptor::of_layer(&wanted, &unpacked);
    Ok(Staged {
        wanted,
        descriptor,
        unpacked: Some((directory, unpacked.implicit)),
    })
}

/// Bytes that a directory with all below it takes, each file once.
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
