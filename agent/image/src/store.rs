//! Images of a node, with their layers in directories or in a containerd.
//!
//! ```text
//! DIR/lock          held while a process has the store open
//! DIR/staging/      downloads and half-unpacked layers; emptied when the store is opened
//! ```
//!
//! * [`own`], [`containerd`]: the two places of layers
//! * [`layer`]: a layer that is being added
//! * [`index`], [`image`], [`names`]: records of the images, images in use, and their names

mod changes;
pub(crate) mod containerd;
pub(crate) mod failure;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod layer;
pub(crate) mod names;
pub(crate) mod own;
pub(crate) mod whole;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::config::Config;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest;
use crate::pull::flights::Flights;
use crate::reference::{self, Reference};
use crate::registry::slots::Slots;
use containerd::{Daemon, Lease};
use failure::StoreError;
use image::{Held, Image};
use index::Record;
use layer::{Blob, Documents, Have, LayerError, Staged, Wanted, blocking};
use own::{Own, Pins};
use whole::Whole;

/// Images of a node. Cheap to clone; one process at a time has a directory open.
#[derive(Clone)]
pub struct Images {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    directory: PathBuf,
    pub(crate) config: Config,
    images: Arc<Mutex<Vec<Record>>>,
    held: Held,
    /// Lock held while the images are changed.
    changing: Arc<tokio::sync::Mutex<()>>,
    kept: Kept,
    pub(crate) slots: Slots,
    pub(crate) flights: Flights,
    _lock: File,
}

/// Backend that keeps the layers.
enum Kept {
    Own(Own),
    Containerd(Arc<Daemon>),
}

/// Protects new content from garbage collection until an image refers to it.
pub(crate) enum Hold {
    /// Pins of the directory store.
    Own(Pins),
    /// Lease of containerd.
    Lease(Lease),
}

/// The store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open.
    #[error("the image store {0:?} is in use by another process")]
    Locked(PathBuf),
    /// `index.json` is invalid.
    #[error(
        "index.json of the image store {directory:?} is damaged; remove that file alone, and restart the node's \
         pods: they use the layers, which go with the next image that is removed; images are pulled again, imported \
         ones have to be imported again"
    )]
    Damaged {
        /// Path of the store.
        directory: PathBuf,
        /// Parse error.
        source: serde_json::Error,
    },
    /// `index.json` was written by a later version.
    #[error("the index of the image store {directory:?} has the unknown version {version}")]
    Version {
        /// Path of the store.
        directory: PathBuf,
        /// Version in the file.
        version: u32,
    },
    /// containerd returned an error or did not answer.
    #[error("open the images in containerd")]
    Containerd(#[from] containerd::OpenError),
    /// A file operation failed.
    #[error("open the image store {directory:?}")]
    Io {
        /// Path of the store.
        directory: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Images {
    /// Opens the store in `directory`, which is created with mode 0700 if missing.
    pub fn open(directory: &Path, config: Config) -> Result<Self, OpenError> {
        let lock = prepare(directory)?;
        let (own, records) = Own::open(directory)?;
        Ok(Self::assembled(directory, config, Kept::Own(own), records, lock))
    }

    /// Opens the images of a containerd. `directory` holds only downloads. Must be called inside a
    /// tokio runtime.
    pub async fn open_containerd(
        directory: &Path,
        config: Config,
        place: containerd::Config,
    ) -> Result<Self, OpenError> {
        let lock = prepare(directory)?;
        let daemon = Arc::new(Daemon::open(directory, place, &config.limits).await?);
        let records = daemon.read().await.map_err(containerd::OpenError::Call)?;
        let images = Self::assembled(directory, config, Kept::Containerd(Arc::clone(&daemon)), records, lock);
        let inner = Arc::downgrade(&images.inner);
        daemon.listen(move || {
            let inner = inner.clone();
            Box::pin(async move {
                match inner.upgrade() {
                    Some(inner) => inner.refresh().await.map(|()| true),
                    None => Ok(false),
                }
            })
        });
        Ok(images)
    }

    fn assembled(directory: &Path, config: Config, kept: Kept, records: Vec<Record>, lock: File) -> Self {
        let slots = Slots::new(config.limits.parallel_layers);
        let inner = Inner {
            directory: directory.to_owned(),
            config,
            images: Arc::new(Mutex::new(records)),
            held: Held::default(),
            changing: Arc::default(),
            kept,
            slots,
            flights: Flights::default(),
            _lock: lock,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Directory on the file system that holds the layers.
    pub fn directory(&self) -> &Path {
        match &self.inner.kept {
            Kept::Own(_) => &self.inner.directory,
            Kept::Containerd(daemon) => daemon.root().unwrap_or(&self.inner.directory),
        }
    }

    /// Complete image with this name, name with digest, or id.
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
        let shared = |record| self.inner.held.share(record, || self.inner.image(record));
        images.iter().filter_map(shared).collect()
    }

    /// Removes a name from its image, or all names by id. Its layers stay until
    /// [`Images::discard`]. Returns whether it existed.
    pub async fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let removing = self.inner.change(|records| names::remove(records, name));
        removing.await?.0.map_err(StoreError::Reference)
    }

    /// Removes an image by its id, with all its names and the layers that are neither used by
    /// another image nor pinned. Returns the bytes that this freed. The caller makes sure that no
    /// container uses it.
    pub async fn discard(&self, id: &str) -> Result<u64, StoreError> {
        let removing = self.inner.change(|records| records.retain(|record| record.id != id));
        let ((), freed) = removing.await?;
        match &self.inner.kept {
            Kept::Own(own) => {
                let inner = Arc::clone(&self.inner);
                own.sweep(move |hex| inner.has_image_of(hex)).await
            }
            Kept::Containerd(_) => Ok(freed),
        }
    }

    /// Removes everything that this store created in a containerd. The directory stays.
    pub async fn purge(&self) -> Result<(), StoreError> {
        let Kept::Containerd(daemon) = &self.inner.kept else {
            return Ok(());
        };
        let _changing = self.inner.changing.lock().await;
        Ok(daemon.purge().await?)
    }
}

impl Inner {
    /// New directory for downloads and partly unpacked layers.
    pub(crate) fn staging(&self) -> io::Result<TempDir> {
        staging(&self.directory)
    }

    fn records(&self) -> Vec<Record> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if an image has this layer.
    fn has_image_of(&self, hex: &str) -> bool {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.iter().any(|record| record.layers.iter().any(|own| own == hex))
    }

    /// Protects layers that were found or added from garbage collection until it is dropped.
    pub(crate) async fn hold(&self) -> Result<Hold, LayerError> {
        match &self.kept {
            Kept::Own(own) => Ok(Hold::Own(own.hold())),
            Kept::Containerd(daemon) => {
                let unique = self.staging().map_err(ContentError::io("create a directory"))?;
                let lease = daemon.lease(unique.path()).await.map_err(StoreError::from)?;
                Ok(Hold::Lease(lease))
            }
        }
    }

    /// State of a layer in the store.
    pub(crate) async fn have(&self, hold: &Hold, wanted: &Wanted) -> Result<Have, LayerError> {
        match (&self.kept, hold) {
            (Kept::Containerd(daemon), Hold::Lease(lease)) => {
                Ok(daemon.have(lease, wanted).await.map_err(StoreError::from)?)
            }
            (Kept::Own(own), Hold::Own(pins)) => Ok(own.have(pins, wanted)),
            (Kept::Own(_) | Kept::Containerd(_), _) => Ok(Have::Nothing),
        }
    }

    /// Verifies a layer and prepares it as far as possible without its parents.
    pub(crate) async fn stage(&self, hold: &Hold, blob: Blob, wanted: Wanted) -> Result<Staged, LayerError> {
        match (&self.kept, hold) {
            (Kept::Containerd(daemon), Hold::Lease(lease)) => {
                daemon.stage(lease, blob, wanted, &self.config.limits).await
            }
            (Kept::Containerd(_), Hold::Own(_)) => Err(ContentError::Missing("a lease".to_owned()).into()),
            (Kept::Own(own), _) => own.stage(blob, wanted, &self.config.limits).await,
        }
    }

    /// Puts a layer into its place; its parents must be there.
    pub(crate) async fn place(&self, hold: &Hold, staged: Staged) -> Result<(), LayerError> {
        match (&self.kept, hold) {
            (Kept::Containerd(daemon), Hold::Lease(lease)) => daemon.place(lease, &staged, &self.config.limits).await,
            (Kept::Containerd(_), Hold::Own(_)) => Err(ContentError::Missing("a lease".to_owned()).into()),
            (Kept::Own(own), _) => own.place(staged).await,
        }
    }

    /// Image with its layers in files; `None` if it was removed.
    pub(crate) async fn whole(&self, image: &Arc<Image>, staging: &Path) -> Result<Option<Whole>, LayerError> {
        let found = self.records().into_iter().find(|record| record.id == image.id);
        let Some(record) = found else { return Ok(None) };
        match &self.kept {
            Kept::Own(own) => {
                // The layers are pinned meanwhile, unless they were removed before.
                let hold = own.hold();
                if !record.layers.iter().all(|hex| own.has(&hold, hex)) {
                    return Ok(None);
                }
                let (image, staging) = (Arc::clone(image), staging.to_owned());
                let packing = blocking(move || {
                    let packed = whole::packed(&image, &record.config, &staging);
                    drop(hold);
                    packed
                });
                Ok(Some(packing.await?.map_err(ContentError::io("pack a layer"))?))
            }
            Kept::Containerd(daemon) => daemon.whole(&record, staging).await,
        }
    }

    /// Records an image whose layers are in place. Its names are removed from the images that had
    /// them.
    pub(crate) async fn add(
        &self,
        hold: &Hold,
        mut new: Record,
        documents: Documents,
    ) -> Result<Option<Arc<Image>>, StoreError> {
        let id = new.id.clone();
        if let (Kept::Containerd(daemon), Hold::Lease(lease)) = (&self.kept, hold) {
            daemon.add(lease, &mut new, documents).await?;
        }
        self.change(|records| names::add(records, new)).await?;
        Ok(self.find(|record| record.id == id))
    }

    fn find(&self, matches: impl Fn(&Record) -> bool) -> Option<Arc<Image>> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images
            .iter()
            .find(|record| matches(record))
            .and_then(|record| self.held.share(record, || self.image(record)))
    }

    fn image(&self, record: &Record) -> Option<Image> {
        let (config, _) = manifest::parse_config(record.config.as_bytes(), record.layers.len()).ok()?;
        let (layers, snapshot) = match &self.kept {
            Kept::Own(own) => (record.layers.iter().map(|hex| own.path(hex)).collect(), None),
            Kept::Containerd(_) => (Vec::new(), record.layers.last().map(|hex| format!("sha256:{hex}"))),
        };
        Some(Image {
            id: record.id.clone(),
            names: record.names.clone(),
            digests: record.digests.clone(),
            size: record.size,
            config,
            layers,
            snapshot,
            pinned: record.pins(),
        })
    }
}

/// Creates the files of a store and locks it for this process.
fn prepare(directory: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Io {
        directory: directory.to_owned(),
        source,
    };
    make_directory(directory).map_err(failed)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    let lock = File::create(directory.join("lock")).map_err(failed)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(OpenError::Locked(directory.to_owned()));
    }
    remove_if_present(&directory.join("staging")).map_err(failed)?;
    make_directory(&directory.join("staging")).map_err(failed)?;
    Ok(lock)
}

/// New directory in the store's staging directory.
pub(crate) fn staging(directory: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("image-")
        .tempdir_in(directory.join("staging"))
}

pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn remove_if_present(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
