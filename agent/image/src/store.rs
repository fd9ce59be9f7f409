//! The images and layers of a node on disk.
//!
//! ```text
//! DIR/lock          held while a process has the store open
//! DIR/index.json    the images; replaced atomically
//! DIR/layers/HEX/   one directory per chain ID, complete or absent
//! DIR/staging/      downloads and half-unpacked layers; emptied when the store is opened
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock, syncfs};
use tempfile::TempDir;

use crate::config::Config;
use crate::digest::Digest;
use crate::image::Image;
use crate::index::{Record, read_index, sync_directory, write_index};
use crate::reference::{self, Reference};
use crate::{manifest, pull, unpack};

/// The images of a node. Cheap to clone; one process at a time has a directory open.
#[derive(Clone)]
pub struct Images {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    directory: PathBuf,
    pub(crate) config: Config,
    images: Mutex<Vec<Record>>,
    /// Read by whoever adds an image, written by the collector: a layer without an image yet is not garbage.
    pub(crate) adding: tokio::sync::RwLock<()>,
    pub(crate) slots: tokio::sync::Semaphore,
    pub(crate) flights: pull::Flights,
    _lock: File,
}

/// The store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the image store {0:?} is in use by another process")]
    Locked(PathBuf),
    /// `index.json` cannot be read.
    #[error(
        "the index of the image store {directory:?} is damaged; remove the directory to have the images pulled again"
    )]
    Damaged {
        /// The store.
        directory: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// `index.json` was written by a later version.
    #[error("the index of the image store {directory:?} has the unknown version {version}")]
    Version {
        /// The store.
        directory: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file system refused.
    #[error("open the image store {directory:?}")]
    Io {
        /// The store.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The store could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name is invalid.
    #[error("parse the image name")]
    Reference(#[source] reference::Invalid),
    /// The file system refused.
    #[error("write to the image store")]
    Io(#[source] io::Error),
    /// A directory could not take over the attributes of the layers below.
    #[error("finish a layer")]
    Layer(#[source] unpack::UnpackError),
}

impl Images {
    /// Opens the store in `directory`, created with mode 0700 where it is missing.
    pub fn open(directory: &Path, config: Config) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io {
            directory: directory.to_owned(),
            source,
        };
        let create = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        create(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(OpenError::Locked(directory.to_owned()));
        }
        remove_if_present(&directory.join("staging")).map_err(failed)?;
        create(&directory.join("staging")).map_err(failed)?;
        create(&directory.join("layers")).map_err(failed)?;
        let images = read_index(directory)?;
        let slots = tokio::sync::Semaphore::new(config.limits.parallel_layers.max(1));
        let inner = Inner {
            directory: directory.to_owned(),
            config,
            images: Mutex::new(images),
            adding: tokio::sync::RwLock::new(()),
            slots,
            flights: pull::Flights::default(),
            _lock: lock,
        };
        inner.drop_incomplete();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The image that this name, name with digest, or id stands for, where it is complete on this node.
    pub fn resolve(&self, name: &str) -> Result<Option<Arc<Image>>, reference::Invalid> {
        if let Ok(id) = Digest::parse(name) {
            return Ok(self.inner.find(|record| record.id == id.as_str()));
        }
        let reference = Reference::parse(name)?;
        Ok(match (reference.name(), reference.digest()) {
            (Some(name), _) => self.inner.find(|record| record.names.contains(&name)),
            (None, Some(digest)) => {
                let wanted = format!("{}@{digest}", reference.repository());
                self.inner.find(|record| record.digests.contains(&wanted))
            }
            (None, None) => None,
        })
    }

    /// Every image, by id.
    pub fn list(&self) -> Vec<Arc<Image>> {
        let images = self.inner.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.iter().filter_map(|record| self.inner.image(record)).collect()
    }

    /// Takes a name from its image, or all names by id. Its layers stay until [`Images::discard`]. Returns whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let by_id = Digest::parse(name).ok();
        let reference = match &by_id {
            Some(_) => None,
            None => Some(Reference::parse(name).map_err(StoreError::Reference)?),
        };
        self.inner.change(|records| {
            let mut found = false;
            for record in records {
                if by_id.as_ref().is_some_and(|id| id.as_str() == record.id) {
                    found = true;
                    record.names.clear();
                    record.digests.clear();
                }
                if let Some(reference) = &reference {
                    let digest = reference
                        .digest()
                        .map(|digest| format!("{}@{digest}", reference.repository()));
                    let before = record.names.len() + record.digests.len();
                    record.names.retain(|name| Some(name) != reference.name().as_ref());
                    record.digests.retain(|name| Some(name) != digest.as_ref());
                    found |= record.names.len() + record.digests.len() < before;
                    if record.names.is_empty() && reference.name().is_some() && found {
                        record
                            .digests
                            .retain(|digest| !digest.starts_with(&format!("{}@", reference.repository())));
                    }
                }
            }
            found
        })
    }

    /// Removes an image by its id, with all its names, and the layers that no other image has. Answers the bytes that this
    /// freed: nothing while an image is being added, whose layers look like nobody's. The caller knows that no container
    /// needs it.
    pub fn discard(&self, id: &str) -> Result<u64, StoreError> {
        let Ok(_exclusive) = self.inner.adding.try_write() else {
            return Ok(0);
        };
        self.inner.change(|records| records.retain(|record| record.id != id))?;
        self.inner.remove_unreferenced_layers().map_err(StoreError::Io)
    }
}

impl Inner {
    /// A fresh directory for downloads and half-unpacked layers.
    pub(crate) fn staging(&self) -> io::Result<TempDir> {
        tempfile::Builder::new()
            .prefix("image-")
            .tempdir_in(self.directory.join("staging"))
    }

    pub(crate) fn layer_path(&self, chain: &Digest) -> PathBuf {
        self.directory.join("layers").join(chain.hex())
    }

    pub(crate) fn has_layer(&self, chain: &Digest) -> bool {
        self.layer_path(chain).is_dir()
    }

    /// Brings a complete layer to the disk and gives it its final name. Another pull may have been faster.
    pub(crate) fn place(&self, staged: &Path, implicit: &[PathBuf], chains: &[Digest]) -> Result<(), StoreError> {
        let Some((chain, lower)) = chains.split_last() else {
            return Ok(());
        };
        let target = self.layer_path(chain);
        if target.is_dir() {
            return Ok(());
        }
        let lower: Vec<PathBuf> = lower.iter().map(|chain| self.layer_path(chain)).collect();
        unpack::inherit(staged, implicit, &lower).map_err(StoreError::Layer)?;
        let opened = File::open(staged).map_err(StoreError::Io)?;
        syncfs(&opened).map_err(|error| StoreError::Io(error.into()))?;
        match fs::rename(staged, &target) {
            Ok(()) => sync_directory(&self.directory.join("layers")).map_err(StoreError::Io),
            Err(_) if target.is_dir() => Ok(()),
            Err(error) => Err(StoreError::Io(error)),
        }
    }

    /// Records an image whose layers are in place. Its names leave the images that had them.
    pub(crate) fn add(&self, new: Record) -> Result<Option<Arc<Image>>, StoreError> {
        let id = new.id.clone();
        self.change(|records| {
            for record in records.iter_mut().filter(|record| record.id != new.id) {
                record.names.retain(|name| !new.names.contains(name));
                if record.names.is_empty() {
                    // What is left are digests that the moved tag stood for; they do not keep the image.
                    let repositories: Vec<&str> = new
                        .names
                        .iter()
                        .filter_map(|name| name.rsplit_once(':'))
                        .map(|(repository, _)| repository)
                        .collect();
                    record.digests.retain(|digest| {
                        !repositories
                            .iter()
                            .any(|repository| digest.starts_with(&format!("{repository}@")))
                    });
                }
            }
            match records.iter_mut().find(|record| record.id == new.id) {
                Some(record) => {
                    merge(&mut record.names, new.names);
                    merge(&mut record.digests, new.digests);
                    record.pinned |= new.pinned;
                }
                None => records.push(new),
            }
            records.sort_by(|left, right| left.id.cmp(&right.id));
        })?;
        Ok(self.find(|record| record.id == id))
    }

    fn find(&self, matches: impl Fn(&Record) -> bool) -> Option<Arc<Image>> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images
            .iter()
            .find(|record| matches(record))
            .and_then(|record| self.image(record))
    }

    fn image(&self, record: &Record) -> Option<Arc<Image>> {
        let (config, _) = manifest::parse_config(record.config.as_bytes(), record.layers.len()).ok()?;
        let layers = record
            .layers
            .iter()
            .map(|hex| self.directory.join("layers").join(hex))
            .collect();
        let (id, names, digests) = (record.id.clone(), record.names.clone(), record.digests.clone());
        Some(Arc::new(Image {
            id,
            names,
            digests,
            size: record.size,
            config,
            layers,
            pinned: record.pinned && !record.names.is_empty(),
        }))
    }

    /// Changes the records and writes them; memory follows the disk.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Record>) -> T) -> Result<T, StoreError> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = images.clone();
        let result = change(&mut changed);
        write_index(&self.directory, &changed).map_err(StoreError::Io)?;
        *images = changed;
        Ok(result)
    }

    fn drop_incomplete(&self) {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|record| {
            let complete = record
                .layers
                .iter()
                .all(|hex| self.directory.join("layers").join(hex).is_dir());
            let intact = Digest::of(record.config.as_bytes()).as_str() == record.id;
            if !(complete && intact) {
                tracing::warn!(image = %record.id, names = ?record.names, "dropped an incomplete image");
            }
            complete && intact
        });
    }

    /// Answers the bytes that this freed.
    fn remove_unreferenced_layers(&self) -> io::Result<u64> {
        let referenced: BTreeSet<String> = {
            let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            images.iter().flat_map(|record| record.layers.iter().cloned()).collect()
        };
        let mut freed = 0_u64;
        for layer in fs::read_dir(self.directory.join("layers"))? {
            let layer = layer?;
            if layer.file_name().to_str().is_some_and(|name| referenced.contains(name)) {
                continue;
            }
            // Renamed first: a layer that is half removed must not look complete after a crash.
            let staging = self.staging()?;
            fs::rename(layer.path(), staging.path().join("layer"))?;
            freed = freed.saturating_add(occupied(staging.path())?);
            staging.close()?;
        }
        Ok(freed)
    }
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

fn merge(into: &mut Vec<String>, from: Vec<String>) {
    into.extend(from);
    into.sort();
    into.dedup();
}

fn remove_if_present(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
