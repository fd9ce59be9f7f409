//! An image with its layers in files.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::image::Image;
use crate::content::digest::Digest;
use crate::content::manifest::{self, Descriptor};
use crate::content::pack::pack;

/// Image with its layers in files.
pub(crate) struct Whole {
    pub(crate) config: Vec<u8>,
    /// Manifest as received; generated if the source had none.
    pub(crate) manifest: Option<Vec<u8>>,
    /// Lowest first.
    pub(crate) layers: Vec<(Descriptor, File)>,
}

/// Packs unpacked layers.
pub(crate) fn packed(image: &Image, config: &str, staging: &Path) -> io::Result<Whole> {
    let mut layers = Vec::new();
    for directory in &image.layers {
        let file = tempfile::tempfile_in(staging)?;
        let mut hashing = Hashing {
            inner: io::BufWriter::with_capacity(128 << 10, file),
            hasher: Sha256::new(),
            count: 0,
        };
        pack(directory, &mut hashing)?;
        let descriptor = Descriptor::new(
            manifest::PLAIN_LAYER,
            Digest::from_hasher(hashing.hasher),
            hashing.count,
        );
        layers.push((
            descriptor,
            hashing.inner.into_inner().map_err(io::IntoInnerError::into_error)?,
        ));
    }
    let mut config: Value = serde_json::from_str(config)?;
    let diff_ids: Vec<&str> = layers.iter().map(|(layer, _)| layer.digest.as_str()).collect();
    if let Some(rootfs) = config.get_mut("rootfs") {
        *rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    }
    Ok(Whole {
        config: serde_json::to_vec(&config)?,
        manifest: None,
        layers,
    })
}

struct Hashing<W> {
    inner: W,
    hasher: Sha256,
    count: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        self.count = self.count.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
