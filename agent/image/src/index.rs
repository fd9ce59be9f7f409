//! The record of the store's images on disk: `index.json`, replaced atomically.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::manifest::Descriptor;
use crate::store::OpenError;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// The configuration as it was transferred: `id` is its digest.
    pub(crate) config: String,
    pub(crate) names: Vec<String>,
    pub(crate) digests: Vec<String>,
    pub(crate) size: u64,
    /// Chain IDs, lowest first.
    pub(crate) layers: Vec<String>,
    /// It was brought to the node: no registry need have it.
    #[serde(default)]
    pub(crate) pinned: bool,
    /// What containerd knows it by.
    #[serde(skip)]
    pub(crate) target: Option<Target>,
}

impl Record {
    /// Whether the image stays while nobody uses it: one that lost its names does not.
    pub(crate) fn pins(&self) -> bool {
        self.pinned && !self.names.is_empty()
    }
}

/// An image in containerd.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its index or manifest.
    pub(crate) descriptor: Descriptor,
    /// Bytes of the layers as they were transferred, lowest first.
    pub(crate) sizes: Vec<u64>,
    /// Names that are none of an image: they go with it.
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
