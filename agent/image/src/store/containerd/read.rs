//! Reads containerd's images as records of this store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, PoisonError};

use agent_containerd::{CALL, Error, OWNER, within};
use containerd_client::services::v1::snapshots::{Kind, ListSnapshotsRequest};
use containerd_client::services::v1::{Image, ListImagesRequest};

use super::Daemon;
use super::content::broken;
use super::kept::IMPORTED;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::{self, Descriptor, Document};
use crate::reference::Reference;
use crate::store::failure::StoreError;
use crate::store::index::{Record, Target};
use crate::store::layer::LayerError;
use crate::store::whole::Whole;

/// Contents of a manifest and its configuration.
pub(super) struct Known {
    id: String,
    config: String,
    size: u64,
    /// Chain IDs, lowest first.
    layers: Vec<String>,
    sizes: Vec<u64>,
}

impl Daemon {
    /// All complete images, by id.
    pub(crate) async fn read(&self) -> Result<Vec<Record>, Error> {
        let request = self.client.request(ListImagesRequest::default());
        let images = within(CALL, "list images", self.client.images().list(request))
            .await?
            .images;
        let snapshots = self.snapshots().await?;
        let mut records: BTreeMap<String, Record> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for image in images {
            let Some(descriptor) = target(&image) else { continue };
            let Some(known) = self.known(&descriptor).await? else {
                continue;
            };
            seen.insert(descriptor.digest.to_string(), Arc::clone(&known));
            let top = known.layers.last().map(|hex| format!("sha256:{hex}"));
            if top.is_none_or(|chain| snapshots.contains(&chain)) {
                let record = records
                    .entry(known.id.clone())
                    .or_insert_with(|| known.record(descriptor));
                self.take_name(record, &image);
            }
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        Ok(records.into_values().collect())
    }

    fn take_name(&self, record: &mut Record, image: &Image) {
        let ours = image.labels.get(OWNER) == Some(&self.owner);
        // Images of other clients are not garbage-collected either.
        let pinned = !ours || image.labels.contains_key(IMPORTED);
        match Reference::parse(&image.name) {
            _ if image.name == record.id => {}
            Ok(reference) if reference.name().as_ref() == Some(&image.name) => {
                record.names.push(image.name.clone());
                record.pinned |= pinned;
            }
            Ok(reference) if reference.digest().is_some() && reference.to_string() == image.name => {
                record.digests.push(image.name.clone());
            }
            Ok(_) | Err(_) => {
                if let Some(target) = &mut record.target {
                    target.others.push(image.name.clone());
                }
            }
        }
    }

    /// Names of all committed snapshots.
    async fn snapshots(&self) -> Result<BTreeSet<String>, Error> {
        const DOING: &str = "list snapshots";
        let request = self.client.request(ListSnapshotsRequest {
            snapshotter: self.snapshotter.clone(),
            filters: vec!["kind==committed".to_owned()],
        });
        let mut listed = within(CALL, DOING, self.client.snapshots().list(request)).await?;
        let mut all = BTreeSet::new();
        let reading = async {
            while let Some(page) = listed.message().await.map_err(broken(DOING))? {
                let committed = page.info.into_iter().filter(|info| info.kind() == Kind::Committed);
                all.extend(committed.map(|info| info.name));
            }
            Ok(all)
        };
        let late = |_elapsed| broken(DOING)(tonic::Status::deadline_exceeded("the list does not end"));
        tokio::time::timeout(CALL, reading).await.map_err(late)?
    }

    /// Reads the manifest and configuration for this machine that a target leads to; `None` if they
    /// are missing or not supported.
    async fn known(&self, target: &Descriptor) -> Result<Option<Arc<Known>>, Error> {
        let known = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(target.digest.as_str()).cloned()
        };
        if known.is_some() {
            return Ok(known);
        }
        let Some((_, config, layers)) = self.manifest(target).await? else {
            return Ok(None);
        };
        let json = self.read_blob(&config, self.limits.config_bytes).await?;
        Ok(json
            .and_then(|json| Known::parse(&config, &json, &layers))
            .map(Arc::new))
    }

    /// Image with its layers in files; `None` if containerd lacks some of them.
    pub(crate) async fn whole(&self, record: &Record, staging: &Path) -> Result<Option<Whole>, LayerError> {
        let failed = StoreError::from;
        let Some(target) = &record.target else { return Ok(None) };
        let Some((manifest, config, descriptors)) = self.manifest(&target.descriptor).await.map_err(failed)? else {
            return Ok(None);
        };
        let mut layers = Vec::new();
        for descriptor in descriptors {
            let file = tempfile::tempfile_in(staging).map_err(ContentError::io("write a layer"))?;
            if !self.copy_blob(&descriptor, &file).await? {
                return Ok(None);
            }
            layers.push((descriptor, file));
        }
        let config = self
            .read_blob(&config, self.limits.config_bytes)
            .await
            .map_err(failed)?;
        Ok(config.map(|config| Whole {
            config,
            manifest: Some(manifest),
            layers,
        }))
    }

    /// Manifest for this machine that a target leads to, with its configuration and layers.
    async fn manifest(&self, target: &Descriptor) -> Result<Option<(Vec<u8>, Descriptor, Vec<Descriptor>)>, Error> {
        let mut current = target.clone();
        for _ in 0..manifest::NESTING {
            let Some(json) = self.read_blob(&current, self.limits.manifest_bytes).await? else {
                return Ok(None);
            };
            match Document::parse(&json, &self.limits) {
                Ok(Document::Index(manifests)) => match manifest::for_this_platform(&manifests) {
                    Ok(descriptor) => current = descriptor.clone(),
                    Err(_) => return Ok(None),
                },
                Ok(Document::Manifest { config, layers }) => return Ok(Some((json, config, layers))),
                Err(error) => {
                    tracing::debug!(digest = %current.digest, %error, "containerd has an image that is none");
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

fn target(image: &Image) -> Option<Descriptor> {
    let target = image.target.as_ref()?;
    let digest = Digest::parse(&target.digest).ok()?;
    let size = u64::try_from(target.size).ok()?;
    Some(Descriptor::new(target.media_type.clone(), digest, size))
}

impl Known {
    fn parse(config: &Descriptor, json: &[u8], layers: &[Descriptor]) -> Option<Self> {
        let (_, diff_ids) = manifest::parse_config(json, layers.len()).ok()?;
        let chains = manifest::chain_ids(&diff_ids);
        Some(Self {
            id: config.digest.to_string(),
            config: String::from_utf8_lossy(json).into_owned(),
            size: layers
                .iter()
                .fold(config.size, |size, layer| size.saturating_add(layer.size)),
            layers: chains.iter().map(|chain| chain.hex().to_owned()).collect(),
            sizes: layers.iter().map(|layer| layer.size).collect(),
        })
    }

    fn record(&self, descriptor: Descriptor) -> Record {
        Record {
            id: self.id.clone(),
            config: self.config.clone(),
            names: Vec::new(),
            digests: Vec::new(),
            size: self.size,
            layers: self.layers.clone(),
            pinned: false,
            target: Some(Target {
                descriptor,
                sizes: self.sizes.clone(),
                others: Vec::new(),
            }),
        }
    }
}
