//! Records of the store's images on disk: `index.json`, replaced atomically.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::content::manifest::Descriptor;
use crate::store::OpenError;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// Configuration as received: `id` is its digest.
    pub(crate) config: String,
    pub(crate) names: Vec<String>,
    pub(crate) digests: Vec<String>,
    pub(crate) size: u64,
    /// Chain IDs, lowest first.
    pub(crate) layers: Vec<String>,
    /// True for an imported image, which no registry may have.
    #[serde(default)]
    pub(crate) pinned: bool,
    /// Target of the image in containerd.
    #[serde(skip)]
    pub(crate) target: Option<Target>,
}

impl Record {
    /// True if the image is kept while unused. An image that lost its names is not.
    pub(crate) fn pins(&self) -> bool {
        self.pinned && !self.names.is_empty()
    }
}

/// An image in containerd.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Descriptor of its index or manifest.
    pub(crate) descriptor: Descriptor,
    /// Sizes of the compressed layers, lowest first.
    pub(crate) sizes: Vec<u64>,
    /// containerd image names that are not image references; they are deleted with the image.
    pub(crate) others: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    images: Vec<Record>,
}

pub(crate) fn read_index(directory: &Path) -> Result<Vec<Record>, OpenError> {
    let text = match fs::read(directory.join("index.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(OpenError::Io {
                directory: directory.to_owned(),
                source,
            });
        }
    };
    let index: Index = serde_json::from_slice(&text).map_err(|source| OpenError::Damaged {
        directory: directory.to_owned(),
        source,
    })?;
    if index.version == 1 {
        Ok(index.images)
    } else {
        Err(OpenError::Version {
            directory: directory.to_owned(),
            version: index.version,
        })
    }
}

pub(crate) fn write_index(directory: &Path, images: &[Record]) -> io::Result<()> {
    let index = Index {
        version: 1,
        images: images.to_vec(),
    };
    let mut file = tempfile::NamedTempFile::new_in(directory.join("staging"))?;
    file.write_all(&serde_json::to_vec_pretty(&index)?)?;
    file.as_file().sync_all()?;
    file.persist(directory.join("index.json"))?;
    sync_directory(directory)
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
