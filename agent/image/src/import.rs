//! Import of OCI image layouts and docker-save archives.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::AsyncRead;

use crate::archive::Archive;
use crate::config::Limits;
use crate::content::ContentError;
use crate::digest::Digest;
use crate::image::Image;
use crate::index::Record;
use crate::layer::{Documents, Have, Hold, LayerError, Staged, Wanted};
use crate::manifest::{self, Descriptor, Document};
use crate::reference::{self, Reference};
use crate::store::{Images, Inner, StoreError};

/// An archive could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Neither an OCI image layout nor a docker-save archive.
    #[error("the archive has neither index.json nor manifest.json")]
    NoImage,
    /// The archive names no image.
    #[error("the archive names no image: it needs an annotation io.containerd.image.name, or RepoTags")]
    NoName,
    /// A name in the archive is invalid.
    #[error("image name {name:?}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        source: reference::Invalid,
    },
    /// What is in the archive.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The work was interrupted.
    #[error("the import was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

impl From<LayerError> for ImportError {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Content(error) => Self::Content(error),
            LayerError::Store(error) => Self::Store(error),
        }
    }
}

/// An image of an archive before its layers are unpacked.
struct Candidate {
    names: Vec<String>,
    digest: Option<Digest>,
    config: Vec<u8>,
    /// The outermost first; a docker-save archive has none.
    manifests: Vec<Vec<u8>>,
    layers: Vec<Layer>,
}

/// Where a layer is in the archive, and what its bytes must be where the archive says so.
struct Layer {
    member: String,
    expected: Option<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Images {
    /// Imports every image of an archive: an OCI image layout or the output of `docker save`, as tar, gzip or zstd.
    pub async fn import(&self, path: &Path) -> Result<Vec<Arc<Image>>, ImportError> {
        let hold = self.inner.hold().await?;
        let (inner, path) = (Arc::clone(&self.inner), path.to_owned());
        let read = tokio::task::spawn_blocking(move || read(&inner, &path)).await;
        let Read {
            _staging,
            archive,
            candidates,
        } = read.map_err(ImportError::Interrupted)??;
        let mut images = Vec::new();
        for candidate in candidates {
            images.extend(Box::pin(add_candidate(&self.inner, &hold, &archive, candidate)).await?);
        }
        Ok(images)
    }

    /// The same from a stream, of at most as many bytes as an image may have.
    pub async fn import_stream(&self, source: impl AsyncRead + Send + Unpin) -> Result<Vec<Arc<Image>>, ImportError> {
        use tokio::io::AsyncReadExt as _;
        let staging = self.inner.staging().map_err(ContentError::io("create a directory"))?;
        let path = staging.path().join("upload");
        let limit = self.inner.config.limits.blob_bytes;
        let mut file = tokio::fs::File::create_new(&path)
            .await
            .map_err(ContentError::io("write the archive"))?;
        let copied = tokio::io::copy(&mut source.take(limit + 1), &mut file).await;
        if copied.map_err(ContentError::io("receive the archive"))? > limit {
            return Err(ContentError::TooLarge { what: "archive", limit }.into());
        }
        tokio::io::AsyncWriteExt::flush(&mut file)
            .await
            .map_err(ContentError::io("write the archive"))?;
        self.import(&path).await
    }

    /// Imports every `*.tar`, `*.tar.gz`, `*.tgz` and `*.tar.zst` of a directory, in the order of their names. One that cannot be
    /// imported does not keep the others from it.
    pub async fn import_directory(&self, directory: &Path) -> Result<Vec<Arc<Image>>, ImportError> {
        let mut paths = Vec::new();
        let mut entries = tokio::fs::read_dir(directory)
            .await
            .map_err(ContentError::io("read the directory"))?;
        while let Some(entry) = entries
            .next_entry()
            .await
            .map_err(ContentError::io("read the directory"))?
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if [".tar", ".tar.gz", ".tgz", ".tar.zst"]
                .iter()
                .any(|suffix| name.ends_with(suffix))
            {
                paths.push(entry.path());
            }
        }
        paths.sort();
        let mut images = Vec::new();
        for path in paths {
            match self.import(&path).await {
                Ok(imported) => images.extend(imported),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error = crate::chain(&error), "an archive could not be imported");
                }
            }
        }
        Ok(images)
    }
}

/// An archive whose images are known.
struct Read {
    _staging: TempDir,
    archive: Archive,
    candidates: Vec<Candidate>,
}

fn read(inner: &Inner, path: &Path) -> Result<Read, ImportError> {
    let limits = &inner.config.limits;
    let staging = inner.staging().map_err(ContentError::io("create a directory"))?;
    let archive = Archive::open(path, staging.path(), limits)?;
    let candidates = if archive.contains("index.json") {
        layout_images(&archive, limits)?
    } else if archive.contains("manifest.json") {
        docker_images(&archive, limits)?
    } else {
        return Err(ImportError::NoImage);
    };
    Ok(Read {
        _staging: staging,
        archive,
        candidates,
    })
}

/// The named images of an OCI image layout.
fn layout_images(archive: &Archive, limits: &Limits) -> Result<Vec<Candidate>, ImportError> {
    let index = archive.read("index.json", "index", limits.manifest_bytes)?;
    let Document::Index(manifests) = Document::parse(&index, limits)? else {
        return Err(ImportError::NoImage);
    };
    let mut candidates: Vec<Candidate> = Vec::new();
    for descriptor in manifests {
        let Some(name) = descriptor.image_name() else { continue };
        let name = canonical(name)?;
        // The same image under several names is one descriptor each.
        let known = candidates
            .iter_mut()
            .find(|candidate| candidate.digest.as_ref() == Some(&descriptor.digest));
        match known {
            Some(candidate) => candidate.names.push(name),
            None => candidates.push(layout_image(archive, &descriptor, name, limits)?),
        }
    }
    if candidates.is_empty() {
        Err(ImportError::NoName)
    } else {
        Ok(candidates)
    }
}

fn layout_image(archive: &Archive, top: &Descriptor, name: String, limits: &Limits) -> Result<Candidate, ContentError> {
    let mut current = top.clone();
    let mut manifests = Vec::new();
    for _ in 0..manifest::NESTING {
        let json = blob(archive, &current, "manifest", limits.manifest_bytes)?;
        let document = Document::parse(&json, limits)?;
        manifests.push(json);
        match document {
            Document::Index(manifests) => current = manifest::for_this_platform(&manifests)?.clone(),
            Document::Manifest { config, layers } => {
                let config = blob(archive, &config, "configuration", limits.config_bytes)?;
                let layers = layers.into_iter().map(|layer| Layer {
                    member: member_of(&layer),
                    expected: Some(layer),
                });
                return Ok(Candidate {
                    names: vec![name],
                    digest: Some(top.digest.clone()),
                    config,
                    manifests,
                    layers: layers.collect(),
                });
            }
        }
    }
    Err(ContentError::Nesting(manifest::NESTING))
}

fn member_of(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest.hex())
}

fn blob(archive: &Archive, descriptor: &Descriptor, what: &'static str, limit: u64) -> Result<Vec<u8>, ContentError> {
    let bytes = archive.read(&member_of(descriptor), what, limit)?;
    descriptor.verify(what, &bytes)?;
    Ok(bytes)
}

/// The tagged images of a docker-save archive. It carries no digests but the layers' own, in the configuration.
fn docker_images(archive: &Archive, limits: &Limits) -> Result<Vec<Candidate>, ImportError> {
    let json = archive.read("manifest.json", "manifest", limits.manifest_bytes)?;
    let images: Vec<DockerImage> = serde_json::from_slice(&json).map_err(|source| ContentError::Parse {
        what: "manifest",
        source,
    })?;
    let mut candidates = Vec::new();
    for image in images {
        let names = image.repo_tags.unwrap_or_default();
        if names.is_empty() {
            continue;
        }
        if image.layers.len() > limits.layers {
            return Err(ContentError::TooManyLayers {
                actual: image.layers.len(),
                limit: limits.layers,
            }
            .into());
        }
        let names = names.iter().map(|name| canonical(name)).collect::<Result<_, _>>()?;
        let config = archive.read(&image.config, "configuration", limits.config_bytes)?;
        let layers = image
            .layers
            .into_iter()
            .map(|member| Layer { member, expected: None })
            .collect();
        candidates.push(Candidate {
            names,
            digest: None,
            config,
            manifests: Vec::new(),
            layers,
        });
    }
    if candidates.is_empty() {
        Err(ImportError::NoName)
    } else {
        Ok(candidates)
    }
}

/// A name as images carry it: with a registry, with a tag, without a digest.
fn canonical(name: &str) -> Result<String, ImportError> {
    let invalid = |source| ImportError::Name {
        name: name.chars().take(300).collect(),
        source,
    };
    let reference = Reference::parse(name).map_err(invalid)?;
    reference.name().ok_or_else(|| invalid(reference::Invalid::Format))
}

async fn add_candidate(
    inner: &Inner,
    hold: &Hold,
    archive: &Archive,
    candidate: Candidate,
) -> Result<Option<Arc<Image>>, ImportError> {
    let (_, diff_ids) = manifest::parse_config(&candidate.config, candidate.layers.len())?;
    let chains = manifest::chain_ids(&diff_ids);
    let mut size = candidate.config.len() as u64;
    let mut descriptors = Vec::new();
    for (position, (layer, diff_id)) in candidate.layers.into_iter().zip(&diff_ids).enumerate() {
        let (blob, bytes) = archive.member(&layer.member)?;
        size += bytes;
        let wanted = Wanted {
            name: layer.member,
            descriptor: layer.expected,
            diff_id: diff_id.clone(),
            chains: chains.get(..=position).unwrap_or_default().to_vec(),
        };
        let staged = match (inner.have(hold, &wanted).await?, &wanted.descriptor) {
            (Have::Layer, descriptor) => {
                descriptors.extend(descriptor.clone());
                continue;
            }
            (Have::Blob, Some(descriptor)) => Staged {
                descriptor: descriptor.clone(),
                wanted,
                unpacked: None,
            },
            (Have::Blob | Have::Nothing, _) => inner.stage(hold, blob, wanted).await?,
        };
        descriptors.push(staged.descriptor.clone());
        inner.place(hold, staged).await?;
    }
    let digests = candidate.digest.iter().flat_map(|digest| {
        candidate
            .names
            .iter()
            .filter_map(move |name| Some(format!("{}@{digest}", name.rsplit_once(':')?.0)))
    });
    let digests: Vec<String> = digests.collect();
    let record = Record {
        id: Digest::of(&candidate.config).to_string(),
        config: String::from_utf8_lossy(&candidate.config).into_owned(),
        names: candidate.names,
        digests,
        size,
        layers: chains.iter().map(|chain| chain.hex().to_owned()).collect(),
        pinned: true,
        target: None,
    };
    let documents = Documents {
        manifests: candidate.manifests,
        layers: descriptors,
    };
    Ok(inner.add(hold, record, documents).await?)
}
