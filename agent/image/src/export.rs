//! Exports an image as an OCI image layout that `docker load` understands, too.

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;

use serde_json::{Value, json};
use tar::{Builder, Header};

use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::{self, Descriptor};
use crate::content::pack::mark;
use crate::reference::{self, Reference};
use crate::store::Images;
use crate::store::failure::StoreError;
use crate::store::layer::{LayerError, blocking};
use crate::store::whole::Whole;

/// An image could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The name is invalid.
    #[error("parse the image name")]
    Reference(#[source] reference::Invalid),
    /// The image does not exist on this node.
    #[error("image {0:?} not found")]
    NotFound(String),
    /// Content that was read or written is invalid.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<LayerError> for ExportError {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Content(error) => Self::Content(error),
            LayerError::Store(error) => Self::Store(error),
        }
    }
}

impl Images {
    /// Writes an image to an unnamed temporary file, positioned at its start. The image is given by
    /// name, or by id, which exports all of its names.
    ///
    /// An image in containerd keeps its id, since containerd has the original layers. Layers in
    /// directories are packed again: the exported image has the same files and another id.
    pub async fn export(&self, name: &str) -> Result<File, ExportError> {
        let image = self.resolve(name).map_err(ExportError::Reference)?;
        let image = image.ok_or_else(|| ExportError::NotFound(name.to_owned()))?;
        let staging = self.inner.staging().map_err(ContentError::io("create a directory"))?;
        let whole = self.inner.whole(&image, staging.path()).await?;
        let whole = whole.ok_or_else(|| ExportError::NotFound(name.to_owned()))?;
        let asked = Reference::parse(name).ok().and_then(|reference| reference.name());
        let asked = asked.filter(|asked| image.names.contains(asked));
        let names = asked.map_or_else(|| image.names.clone(), |asked| vec![asked]);
        // The thread owns the directory, which therefore is not removed while it runs.
        let written = blocking(move || write(&whole, &names, staging.path())).await?;
        Ok(written.map_err(ContentError::io("write the archive"))?)
    }
}

fn write(whole: &Whole, names: &[String], staging: &Path) -> io::Result<File> {
    let target = tempfile::tempfile_in(staging)?;
    let mut archive = Builder::new(target);
    let layers: Vec<&Descriptor> = whole.layers.iter().map(|(layer, _)| layer).collect();
    let made = || manifest::synthesized(&whole.config, layers.iter().copied());
    let own = whole.manifest.clone().unwrap_or_else(made);
    let described = Descriptor::of_document(&own);
    let mut written = Vec::new();
    for (layer, file) in &whole.layers {
        // An image may hold the same layer twice; the archive holds it once.
        if written.contains(&&layer.digest) {
            continue;
        }
        written.push(&layer.digest);
        let mut file = file;
        file.rewind()?;
        add(&mut archive, &blob(&layer.digest), layer.size, file)?;
    }
    let config = Digest::of(&whole.config);
    let top = |name: Option<&String>| {
        let mut top = json!({
            "mediaType": described.media_type, "digest": described.digest.as_str(), "size": described.size,
        });
        if let (Some(name), Some(top)) = (name, top.as_object_mut()) {
            let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            let annotations = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
            top.insert("annotations".to_owned(), annotations);
        }
        top
    };
    let tops: Vec<Value> = if names.is_empty() {
        vec![top(None)]
    } else {
        names.iter().map(|name| top(Some(name))).collect()
    };
    let index = json!({"schemaVersion": 2, "mediaType": manifest::INDEX, "manifests": tops});
    let docker = json!([{
        "Config": blob(&config), "RepoTags": names,
        "Layers": layers.iter().map(|layer| blob(&layer.digest)).collect::<Vec<_>>(),
    }]);
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    for (name, bytes) in [
        (blob(&config), whole.config.clone()),
        (blob(&described.digest), own),
        ("index.json".to_owned(), index.to_string().into_bytes()),
        ("manifest.json".to_owned(), docker.to_string().into_bytes()),
        ("oci-layout".to_owned(), layout.to_string().into_bytes()),
    ] {
        add(&mut archive, &name, bytes.len() as u64, bytes.as_slice())?;
    }
    let mut target = archive.into_inner()?;
    target.rewind()?;
    Ok(target)
}

fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn add(archive: &mut Builder<File>, name: &str, size: u64, data: impl io::Read) -> io::Result<()> {
    let mut header = mark(Header::new_ustar());
    header.set_size(size);
    archive.append_data(&mut header, name, data)
}
