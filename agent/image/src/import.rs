//! Import of OCI image layouts and docker-save archives.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::AsyncRead;

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::archive::Archive;
use crate::content::digest::Digest;
use crate::content::manifest::{self, Descriptor, Document};
use crate::reference::{self, Reference};
use crate::store::failure::StoreError;
use crate::store::image::Image;
use crate::store::index::Record;
use crate::store::layer::{Documents, Have, LayerError, Staged, Wanted};
use crate::store::{Hold, Images, Inner};

/// An archive could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The archive is neither an OCI image layout nor a docker-save archive.
    #[error("the archive has neither index.json nor manifest.json")]
    NoImage,
    /// The archive does not contain the image's full name.
    #[error("the archive does not name its image in full{}: say its name by --name", told(.0))]
    NoName(Vec<String>),
    /// A name was given, but the archive does not hold exactly one image.
    #[error("a name is for one image, and the archive has {0}")]
    Several(usize),
    /// A name in the archive is invalid.
    #[error("image name {name:?}")]
    Name {
        /// Name in the archive.
        name: String,
        /// Reason why the name is invalid.
        source: reference::Invalid,
    },
    /// The content of the archive is invalid.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The import was interrupted.
    #[error("the import was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

fn told(tags: &[String]) -> String {
    if tags.is_empty() {
        return String::new();
    }
    format!(", only as {}", tags.join(", "))
}

impl From<LayerError> for ImportError {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Content(error) => Self::Content(error),
            LayerError::Store(error) => Self::Store(error),
        }
    }
}

/// Result of an import.
#[derive(Debug)]
pub struct Imported {
    /// The images that were imported.
    pub images: Vec<Arc<Image>>,
    /// Tags or digests of the archive's other images, which have no full name.
    pub left_out: Vec<String>,
}

/// Image of an archive before its layers are unpacked.
struct Candidate {
    names: Vec<String>,
    /// Repositories that the archive names with the digest.
    repositories: Vec<String>,
    digest: Option<Digest>,
    config: Vec<u8>,
    /// Outermost document first; a docker-save archive has none.
    manifests: Vec<Vec<u8>>,
    layers: Vec<Layer>,
}

/// Position of a layer in the archive, and its expected size and digest if the archive has them.
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
    /// Imports every image of an archive: an OCI image layout or the output of `docker save`, as
    /// tar, gzip or zstd, or as a directory.
    pub async fn import(&self, path: &Path) -> Result<Vec<Arc<Image>>, ImportError> {
        let Imported { images, left_out } = self.import_as(path, None).await?;
        if !left_out.is_empty() {
            let (path, images) = (path.display(), left_out.join(", "));
            tracing::warn!(%path, images, "images of an archive have no full name and are not imported");
        }
        Ok(images)
    }

    /// Imports an archive's only image under the given name instead of the archive's own.
    pub async fn import_as(&self, path: &Path, name: Option<&str>) -> Result<Imported, ImportError> {
        let name = name.map(canonical).transpose()?;
        let hold = self.inner.hold().await?;
        let (inner, path) = (Arc::clone(&self.inner), path.to_owned());
        let read = tokio::task::spawn_blocking(move || read(&inner, &path, name)).await;
        let Read {
            _staging,
            archive,
            candidates,
            left_out,
        } = read.map_err(ImportError::Interrupted)??;
        let mut images = Vec::new();
        for candidate in candidates {
            images.extend(Box::pin(add_candidate(&self.inner, &hold, &archive, candidate)).await?);
        }
        Ok(Imported { images, left_out })
    }

    /// Imports from a stream, of at most as many bytes as an image may have.
    pub async fn import_stream(
        &self,
        source: impl AsyncRead + Send + Unpin,
        name: Option<&str>,
    ) -> Result<Imported, ImportError> {
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
        self.import_as(&path, name).await
    }

    /// Imports every `*.tar`, `*.tar.gz`, `*.tgz` and `*.tar.zst` of a directory, in the order of
    /// their names. An archive that cannot be imported does not stop the others.
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

/// Archive whose images have been parsed.
struct Read {
    _staging: TempDir,
    archive: Archive,
    candidates: Vec<Candidate>,
    left_out: Vec<String>,
}

fn read(inner: &Inner, path: &Path, name: Option<String>) -> Result<Read, ImportError> {
    let limits = &inner.config.limits;
    let staging = inner.staging().map_err(ContentError::io("create a directory"))?;
    let archive = Archive::open(path, staging.path(), limits)?;
    let unnamed = name.is_some();
    let (mut candidates, left_out) = if archive.contains("index.json") {
        layout_images(&archive, unnamed, limits)?
    } else if archive.contains("manifest.json") {
        docker_images(&archive, unnamed, limits)?
    } else {
        return Err(ImportError::NoImage);
    };
    match (name, candidates.as_mut_slice()) {
        (Some(name), [only]) => {
            only.names = vec![name];
            only.repositories.clear();
        }
        (None, []) => {
            let tags = left_out.into_iter().filter(|shown| !shown.contains(':'));
            return Err(ImportError::NoName(tags.collect()));
        }
        (None, _) => {}
        (Some(_), all) => return Err(ImportError::Several(all.len())),
    }
    Ok(Read {
        _staging: staging,
        archive,
        candidates,
        left_out,
    })
}

/// Parses the named images of an OCI image layout, or all of them, and the tags, or else digests,
/// of the others.
fn layout_images(
    archive: &Archive,
    unnamed: bool,
    limits: &Limits,
) -> Result<(Vec<Candidate>, Vec<String>), ImportError> {
    let index = archive.read("index.json", "index", limits.manifest_bytes)?;
    let Document::Index(manifests) = Document::parse(&index, limits)? else {
        return Err(ImportError::NoImage);
    };
    let (mut candidates, mut others): (Vec<Candidate>, _) = (Vec::new(), Vec::new());
    for descriptor in manifests {
        let (name, repository) = names_of(&descriptor)?;
        if name.is_none() && repository.is_none() && !unnamed {
            others.push(descriptor);
            continue;
        }
        // An image with several names has one descriptor for each.
        let mut known = candidates.iter();
        let candidate = if let Some(at) = known.position(|known| known.digest.as_ref() == Some(&descriptor.digest)) {
            candidates.get_mut(at)
        } else {
            candidates.push(layout_image(archive, &descriptor, limits)?);
            candidates.last_mut()
        };
        if let Some(candidate) = candidate {
            candidate.names.extend(name);
            candidate.repositories.extend(repository);
        }
    }
    let is_named = |digest: &Digest| candidates.iter().any(|named| named.digest.as_ref() == Some(digest));
    others.retain(|other| !is_named(&other.digest));
    let shown = |other: &Descriptor| other.tag().map_or_else(|| other.digest.to_string(), str::to_owned);
    let left_out = others.iter().map(shown).collect();
    Ok((candidates, left_out))
}

/// Parses the name of an image in a layout: a full one, or a repository's with the image's digest.
/// An export of all that containerd has also names images by their ids, which are no names.
fn names_of(descriptor: &Descriptor) -> Result<(Option<String>, Option<String>), ImportError> {
    let told = descriptor.image_name().filter(|told| Digest::parse(told).is_err());
    let Some(told) = told else { return Ok((None, None)) };
    let reference = parsed(told)?;
    let is_own = reference.digest() == Some(&descriptor.digest);
    Ok((reference.name(), is_own.then(|| reference.repository())))
}

fn layout_image(archive: &Archive, top: &Descriptor, limits: &Limits) -> Result<Candidate, ContentError> {
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
                if current.digest != top.digest {
                    current.check_platform(&config)?;
                }
                let layers = layers.into_iter().map(|layer| Layer {
                    member: member_of(&layer),
                    expected: Some(layer),
                });
                return Ok(Candidate {
                    names: Vec::new(),
                    repositories: Vec::new(),
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

/// Parses the tagged images of a docker-save archive, or all of them, and the digests of the others'
/// configurations. The only other digests it has are those of the uncompressed layers.
fn docker_images(
    archive: &Archive,
    unnamed: bool,
    limits: &Limits,
) -> Result<(Vec<Candidate>, Vec<String>), ImportError> {
    let json = archive.read("manifest.json", "manifest", limits.manifest_bytes)?;
    let images: Vec<DockerImage> = serde_json::from_slice(&json).map_err(|source| ContentError::Parse {
        what: "manifest",
        source,
    })?;
    let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
    for image in images {
        let names = image.repo_tags.unwrap_or_default();
        if names.is_empty() && !unnamed {
            let config = image.config.trim_start_matches("blobs/sha256/");
            left_out.push(format!("sha256:{}", config.trim_end_matches(".json")));
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
            repositories: Vec::new(),
            digest: None,
            config,
            manifests: Vec::new(),
            layers,
        });
    }
    Ok((candidates, left_out))
}

/// Parses a full image name: with registry and tag, without digest.
fn canonical(name: &str) -> Result<String, ImportError> {
    let full = parsed(name)?.name();
    full.ok_or_else(|| invalid(name, reference::Invalid::Format))
}

fn parsed(name: &str) -> Result<Reference, ImportError> {
    Reference::parse(name).map_err(|source| invalid(name, source))
}

fn invalid(name: &str, source: reference::Invalid) -> ImportError {
    let name = name.chars().take(300).collect();
    ImportError::Name { name, source }
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
    let named = candidate.names.iter().filter_map(|name| Some(name.rsplit_once(':')?.0));
    let repositories = named.chain(candidate.repositories.iter().map(String::as_str));
    let repositories: BTreeSet<&str> = repositories.collect();
    let digest = candidate.digest.as_ref();
    let with = |repository: &&str| Some(format!("{repository}@{}", digest?));
    let digests: Vec<String> = repositories.iter().filter_map(with).collect();
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
