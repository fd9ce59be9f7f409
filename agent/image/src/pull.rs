//! Image pulls: from a name to a complete image on this node.

pub(crate) mod flights;

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::{self, Descriptor, Document};
use crate::failure::PullError;
use crate::reference::Reference;
use crate::registry::Session;
use crate::registry::credentials::Credentials;
use crate::registry::download::download;
use crate::registry::failure::RegistryError;
use crate::registry::retries::Retries;
use crate::registry::slots::{Queue, Waits};
use crate::store::image::Image;
use crate::store::index::Record;
use crate::store::layer::{Blob, Documents, Have, LayerError, Staged, Wanted};
use crate::store::{Hold, Images};
use flights::{Outcome, Pulled};

impl Images {
    /// Pulls an image, even if it exists on this node; existing layers are not downloaded again.
    ///
    /// Tries each of the credentials, then anonymous access. Mirrors are asked first: anonymously,
    /// then with the credentials if they refuse that.
    pub async fn pull(&self, name: &str, credentials: &[Credentials]) -> Result<Arc<Image>, Arc<PullError>> {
        Ok(self.fetch(name, credentials).await?.image)
    }

    /// Pulls an image and returns the credentials that worked. Boxed here: each crate that awaits it
    /// would contain all of it.
    pub fn fetch<'a>(&'a self, name: &'a str, credentials: &'a [Credentials]) -> BoxFuture<'a, Outcome> {
        Box::pin(self.join(name, credentials))
    }

    async fn join(&self, name: &str, credentials: &[Credentials]) -> Outcome {
        let reference = Reference::parse(name).map_err(|source| {
            Arc::new(PullError::Name {
                name: name.chars().take(300).collect(),
                source,
            })
        })?;
        let key = (reference.to_string(), credentials.to_vec());
        let flight = self.inner.flights.join(key, || {
            let (images, credentials) = (self.clone(), credentials.to_vec());
            async move { images.pull_bounded(&reference, &credentials).await.map_err(Arc::new) }.boxed()
        });
        flight.await
    }

    async fn pull_bounded(&self, reference: &Reference, credentials: &[Credentials]) -> Result<Pulled, PullError> {
        let bound = self.inner.config.limits.pull_time;
        let waits: Arc<Waits> = Arc::default();
        let pull = Box::pin(self.pull_now(reference, credentials, &waits));
        waits.bounded(bound, pull).await.unwrap_or_else(|| {
            Err(PullError::Deadline {
                image: reference.to_string(),
                seconds: bound.as_secs(),
            })
        })
    }

    async fn pull_now(
        &self,
        reference: &Reference,
        credentials: &[Credentials],
        waits: &Arc<Waits>,
    ) -> Result<Pulled, PullError> {
        let image = || reference.to_string();
        let failed = |error| match error {
            LayerError::Content(source) => PullError::Fetch {
                image: image(),
                source: source.into(),
            },
            LayerError::Store(source) => PullError::Store { image: image(), source },
        };
        let hold = Arc::new(self.inner.hold().await.map_err(failed)?);
        let (session, source) = self
            .find_source(reference, credentials)
            .await
            .map_err(|source| PullError::Resolve { image: image(), source })?;
        let fetch = |source| PullError::Fetch { image: image(), source };
        let opened_by = session.credentials().cloned();
        let found = match source {
            Source::Present(image) => return Ok(Pulled { image, opened_by }),
            Source::Document(found) => *found,
        };
        let top = found.digest.clone();
        let (manifests, config, config_json, layers) = self.select(&session, found).await.map_err(fetch)?;
        let (_, diff_ids) = manifest::parse_config(&config_json, layers.len()).map_err(|error| fetch(error.into()))?;
        let chains = manifest::chain_ids(&diff_ids);
        let wanted = wanted(&layers, &diff_ids, &chains);
        let queue = Arc::new(self.inner.slots.queue(session.address(), waits));
        self.fetch_layers(&Arc::new(session), &hold, &queue, wanted)
            .await
            .map_err(|error| match error {
                FetchError::Registry(source) => fetch(source),
                FetchError::Layer(error) => failed(error),
            })?;
        let record = Record {
            id: config.digest.to_string(),
            size: layers
                .iter()
                .fold(config.size, |size, layer| size.saturating_add(layer.size)),
            config: String::from_utf8_lossy(&config_json).into_owned(),
            names: reference.name().into_iter().collect(),
            digests: vec![format!("{}@{top}", reference.repository())],
            layers: chains.iter().map(|chain| chain.hex().to_owned()).collect(),
            pinned: false,
            target: None,
        };
        let store = |source| PullError::Store { image: image(), source };
        let added = self.inner.add(&hold, record, Documents { manifests, layers });
        let added = added.await.map_err(store)?;
        let added = added.ok_or_else(|| fetch(RegistryError::NotFound(image())))?;
        Ok(Pulled {
            image: added,
            opened_by,
        })
    }

    /// Asks the mirrors, then the registry with each of the credentials. Returns the registry's
    /// last error together with those of the mirrors.
    async fn find_source(
        &self,
        reference: &Reference,
        credentials: &[Credentials],
    ) -> Result<(Session, Source), RegistryError> {
        let origin = reference.domain();
        let mirrors = self.inner.config.registry(origin).mirrors;
        let mut before = Vec::new();
        for mirror in mirrors {
            match self.ask_mirror(&mirror, reference, credentials).await {
                Ok(found) => return Ok(found),
                Err(error) => before.push((mirror, error)),
            }
        }
        let mut last = None;
        for credentials in credentials.iter().map(Some).chain([None]) {
            match self.ask(origin, reference, credentials).await {
                Ok(found) => return Ok(found),
                // An error for authenticated requests is more relevant than the error for anonymous
                // ones.
                Err(error) if error.is_denial() && credentials.is_none() && last.is_some() => {}
                Err(error) => {
                    // The image will not exist for other credentials either.
                    let unreachable = error.is_unreachable();
                    last = Some(error);
                    if unreachable {
                        break;
                    }
                }
            }
        }
        let last = last.unwrap_or_else(|| RegistryError::NotFound(reference.to_string()));
        Err(last.after_mirrors(before, origin))
    }

    /// Asks a mirror anonymously, then with the registry's credentials, which containerd also shows
    /// to a mirror that refuses anonymous requests (`internal/cri/server/images/image_pull.go`,
    /// `ParseAuth`: the kubelet names no server).
    async fn ask_mirror(
        &self,
        mirror: &str,
        reference: &Reference,
        credentials: &[Credentials],
    ) -> Result<(Session, Source), RegistryError> {
        let mut asked = self.ask(mirror, reference, None).await;
        for credentials in credentials {
            if !asked.as_ref().is_err_and(RegistryError::is_denial) {
                break;
            }
            asked = self.ask(mirror, reference, Some(credentials)).await;
        }
        asked
    }

    async fn ask(
        &self,
        host: &str,
        reference: &Reference,
        credentials: Option<&Credentials>,
    ) -> Result<(Session, Source), RegistryError> {
        let limits = &self.inner.config.limits;
        let session = Session::new(&self.inner.config, host, reference, credentials)?;
        let wanted = reference
            .digest()
            .map(Digest::as_str)
            .or(reference.tag())
            .unwrap_or("latest");
        if let Some(image) = self.unchanged(&session, reference, wanted).await? {
            return Ok((session, Source::Present(image)));
        }
        let mut retries = Retries::new(limits);
        let (digest, json) = loop {
            match first_manifest(&session, wanted, reference, limits).await {
                Ok(found) => break found,
                // The kubelet's back-off retries later; until then the pod's status shows the
                // error.
                Err(error) if error.is_unreachable() => return Err(error),
                Err(error) => retries.after(error).await?,
            }
        };
        let document = Document::parse(&json, limits)?;
        let found = Found { digest, json, document };
        Ok((session, Source::Document(Box::new(found))))
    }

    /// Image of this node under the reference, if the registry still has the same one. Registries
    /// with a rate limit count requests of manifests, but not of their digests, which containerd
    /// asks for first, too (`core/remotes/docker/resolver.go`).
    async fn unchanged(
        &self,
        session: &Session,
        reference: &Reference,
        wanted: &str,
    ) -> Result<Option<Arc<Image>>, RegistryError> {
        let repository = format!("{}@", reference.repository());
        let present = || self.resolve(&reference.to_string()).ok().flatten();
        let is_pulled = |image: Arc<Image>| image.digests.iter().any(|digest| digest.starts_with(&repository));
        if !present().is_some_and(is_pulled) {
            return Ok(None);
        }
        match session.digest(wanted).await {
            Ok(Some(digest)) => Ok(present().filter(|image| image.digests.contains(&format!("{repository}{digest}")))),
            Err(error) if error.is_unreachable() => Err(error),
            // The request of the manifest tells why.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Resolves indexes to the manifest for this platform. Returns all documents, and the descriptor
    /// of the configuration with its content.
    async fn select(
        &self,
        session: &Session,
        found: Found,
    ) -> Result<(Vec<Vec<u8>>, Descriptor, Vec<u8>, Vec<Descriptor>), RegistryError> {
        let limits = &self.inner.config.limits;
        let Found { json, mut document, .. } = found;
        let mut documents = vec![json];
        let mut chosen: Option<Descriptor> = None;
        for _ in 0..manifest::NESTING {
            match document {
                Document::Manifest { config, layers } => {
                    let json = self.verified(session, &config, Small::Configuration).await?;
                    if let Some(chosen) = chosen {
                        chosen.check_platform(&json)?;
                    }
                    return Ok((documents, config, json, layers));
                }
                Document::Index(manifests) => {
                    let descriptor = manifest::for_this_platform(&manifests)?;
                    let json = self.verified(session, descriptor, Small::Manifest).await?;
                    document = Document::parse(&json, limits)?;
                    documents.push(json);
                    chosen = Some(descriptor.clone());
                }
            }
        }
        Err(ContentError::Nesting(manifest::NESTING).into())
    }

    /// Fetches a small document and checks it against its descriptor.
    async fn verified(
        &self,
        session: &Session,
        descriptor: &Descriptor,
        blob: Small,
    ) -> Result<Vec<u8>, RegistryError> {
        let limits = &self.inner.config.limits;
        let mut retries = Retries::new(limits);
        let digest = descriptor.digest.as_str();
        loop {
            let (what, read) = match blob {
                Small::Manifest => ("manifest", session.manifest(digest, limits.manifest_bytes).await),
                Small::Configuration => (
                    "configuration",
                    session.blob(digest, "configuration", limits.config_bytes).await,
                ),
            };
            match read.and_then(|bytes| {
                descriptor
                    .verify(what, &bytes)
                    .map(|()| bytes)
                    .map_err(RegistryError::Content)
            }) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => retries.after(error).await?,
            }
        }
    }

    /// Downloads missing layers, several at a time, and puts them into place from the lowest up.
    async fn fetch_layers(
        &self,
        session: &Arc<Session>,
        hold: &Arc<Hold>,
        queue: &Arc<Queue>,
        wanted: Vec<Wanted>,
    ) -> Result<(), FetchError> {
        let mut missing: Vec<BoxFuture<'static, Result<Staged, FetchError>>> = Vec::new();
        for wanted in wanted {
            let have = self.inner.have(hold, &wanted).await?;
            match (have, wanted.descriptor.clone()) {
                (Have::Layer, _) => {}
                (Have::Blob, Some(descriptor)) => missing.push(
                    futures::future::ready(Ok(Staged {
                        wanted,
                        descriptor,
                        unpacked: None,
                    }))
                    .boxed(),
                ),
                (Have::Blob | Have::Nothing, _) => {
                    let (images, session) = (self.clone(), Arc::clone(session));
                    let (hold, queue) = (Arc::clone(hold), Arc::clone(queue));
                    missing.push(async move { images.fetch_layer(&session, &hold, &queue, wanted).await }.boxed());
                }
            }
        }
        let mut fetched = stream::iter(missing).buffered(self.inner.slots.of_pull());
        // Bounded by the number of layers.
        let (fetching, mut staged) = tokio::sync::mpsc::unbounded_channel();
        let fetch = async move {
            while let Some(layer) = fetched.try_next().await? {
                // The receiver lives as long as this future.
                drop(fetching.send(layer));
            }
            Ok::<(), FetchError>(())
        };
        // In a task of its own: downloads that paused meanwhile would keep their slots, and look
        // like slow registries.
        let place = Box::pin(async {
            while let Some(layer) = staged.recv().await {
                self.inner.place(hold, layer).await?;
            }
            Ok::<(), FetchError>(())
        });
        futures::future::try_join(fetch, place).await?;
        Ok(())
    }

    async fn fetch_layer(
        &self,
        session: &Session,
        hold: &Hold,
        queue: &Queue,
        wanted: Wanted,
    ) -> Result<Staged, FetchError> {
        let io = |error| FetchError::Registry(ContentError::io("create a directory")(error).into());
        let Some(descriptor) = &wanted.descriptor else {
            return Err(FetchError::Registry(ContentError::Missing(wanted.name).into()));
        };
        let _slot = self.inner.slots.acquire(queue).await;
        let directory = self.inner.staging().map_err(io)?;
        let path = directory.path().join("blob");
        download(session, descriptor, &path, &self.inner.config.limits).await?;
        let file = std::fs::File::open(&path).map_err(io)?;
        // Unlinked at once, so that its space is freed as soon as it has been read.
        drop(directory);
        let blob = Blob::new(file, 0, descriptor.size);
        Ok(self.inner.stage(hold, blob, wanted).await?)
    }
}

/// Image that a registry has under a name.
enum Source {
    /// The one that this node has.
    Present(Arc<Image>),
    /// Another one.
    Document(Box<Found>),
}

/// Outermost document: its digest, raw and parsed.
struct Found {
    digest: Digest,
    json: Vec<u8>,
    document: Document,
}

fn wanted(layers: &[Descriptor], diff_ids: &[Digest], chains: &[Digest]) -> Vec<Wanted> {
    let positions = layers.iter().zip(diff_ids).enumerate();
    let each = positions.map(|(position, (layer, diff_id))| Wanted {
        name: layer.digest.to_string(),
        descriptor: Some(layer.clone()),
        diff_id: diff_id.clone(),
        chains: chains.get(..=position).unwrap_or_default().to_vec(),
    });
    each.collect()
}

#[derive(Clone, Copy)]
enum Small {
    Manifest,
    Configuration,
}

async fn first_manifest(
    session: &Session,
    wanted: &str,
    reference: &Reference,
    limits: &Limits,
) -> Result<(Digest, Vec<u8>), RegistryError> {
    let json = session.manifest(wanted, limits.manifest_bytes).await.map_err(|error| {
        if matches!(error, RegistryError::NotFound(_)) {
            RegistryError::NotFound(reference.to_string())
        } else {
            error
        }
    })?;
    let actual = Digest::of(&json);
    match reference.digest() {
        Some(expected) if *expected != actual => Err(ContentError::Digest {
            what: "manifest",
            actual,
            expected: expected.clone(),
        }
        .into()),
        Some(_) | None => Ok((actual, json)),
    }
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Layer(#[from] LayerError),
}
