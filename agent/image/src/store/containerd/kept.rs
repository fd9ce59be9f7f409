//! Image names in containerd, and the blobs and snapshots that they reference.

use std::collections::BTreeSet;

use agent_containerd::{CALL, Error, Meaning, TASK, or_gone, within};
use containerd_client::services::v1::snapshots::UsageRequest;
use containerd_client::services::v1::{
    CreateImageRequest, DeleteImageRequest, Image, ListImagesRequest, UpdateImageRequest,
};

use super::layers::sent;
use super::{Daemon, Lease};
use crate::content::manifest::{self, Descriptor};
use crate::store::index::{Record, Target};
use crate::store::layer::Documents;

/// Prefix of the garbage collection labels by which a blob references another.
const CONTENT: &str = "containerd.io/gc.ref.content";
const SNAPSHOT: &str = "containerd.io/gc.ref.snapshot";
/// Label of an imported image, which no registry may have.
pub(super) const IMPORTED: &str = "skiff/imported";

impl Daemon {
    /// Writes an image's manifest and configuration and creates its names. Its layers must be in
    /// place.
    pub(crate) async fn add(&self, lease: &Lease, record: &mut Record, documents: Documents) -> Result<(), Error> {
        let Documents { mut manifests, layers } = documents;
        let config = record.config.clone().into_bytes();
        if manifests.is_empty() {
            manifests.push(manifest::synthesized(&config, &layers));
        }
        let top = record.layers.last().map(|hex| format!("sha256:{hex}"));
        let snapshot = top.map(|chain| (format!("{SNAPSHOT}.{}", self.snapshotter), chain));
        let mut below: Vec<(String, String)> = vec![(format!("{CONTENT}.config"), record.id.clone())];
        let of_layers = layers.iter().enumerate();
        below.extend(of_layers.map(|(position, layer)| (format!("{CONTENT}.l.{position}"), layer.digest.to_string())));
        self.write_blob(lease, config, snapshot.into_iter().collect()).await?;
        let mut outermost = None;
        for document in manifests.into_iter().rev() {
            let descriptor = Descriptor::of_document(&document);
            self.write_blob(lease, document, below.into_iter().collect()).await?;
            below = vec![(format!("{CONTENT}.m.0"), descriptor.digest.to_string())];
            outermost = Some(descriptor);
        }
        let Some(descriptor) = outermost else { return Ok(()) };
        let imported = record.pinned.then(|| (IMPORTED.to_owned(), "true".to_owned()));
        for name in record.names.iter().chain(&record.digests).chain([&record.id]) {
            let labels = self.labels(imported.clone());
            let image = Image {
                name: name.clone(),
                labels,
                target: Some(sent(&descriptor)),
                ..Image::default()
            };
            self.put(image).await?;
        }
        record.target = Some(Target {
            descriptor,
            sizes: layers.iter().map(|layer| layer.size).collect(),
            others: Vec::new(),
        });
        Ok(())
    }

    async fn put(&self, image: Image) -> Result<(), Error> {
        let request = self.client.request(CreateImageRequest {
            image: Some(image.clone()),
            source_date_epoch: None,
        });
        match within(CALL, "name an image", self.client.images().create(request)).await {
            Err(error) if error.source.meaning() == Meaning::Exists => {}
            created => return created.map(drop),
        }
        let request = self.client.request(UpdateImageRequest {
            image: Some(image),
            update_mask: None,
            source_date_epoch: None,
        });
        within(CALL, "name an image", self.client.images().update(request)).await?;
        Ok(())
    }

    /// Deletes names that no image has any more. Returns the bytes that removed images free.
    pub(crate) async fn forget(&self, before: &[Record], after: &[Record]) -> Result<u64, Error> {
        let stay: BTreeSet<&str> = after.iter().flat_map(names).collect();
        let mut gone: Vec<&str> = before
            .iter()
            .flat_map(names)
            .filter(|name| !stay.contains(name))
            .collect();
        gone.sort_unstable();
        gone.dedup();
        let removed = before
            .iter()
            .filter(|record| !after.iter().any(|other| other.id == record.id));
        let mut freed = 0_u64;
        for record in removed {
            freed = freed.saturating_add(self.own_size(record, after).await?);
        }
        let last = gone.last().copied();
        for name in gone {
            // Garbage collection has run when the last of these deletions returns.
            let sync = freed > 0 && Some(name) == last;
            self.delete(name, sync).await?;
        }
        Ok(freed)
    }

    async fn delete(&self, name: &str, sync: bool) -> Result<(), Error> {
        let request = self.client.request(DeleteImageRequest {
            name: name.to_owned(),
            sync,
            target: None,
        });
        let deleted = within(
            TASK,
            "remove the name of an image",
            self.client.images().delete(request),
        )
        .await;
        or_gone(deleted).map(drop)
    }

    /// Bytes of the layers that only this image has, compressed and unpacked.
    async fn own_size(&self, record: &Record, others: &[Record]) -> Result<u64, Error> {
        let shared: BTreeSet<&String> = others.iter().flat_map(|other| &other.layers).collect();
        let sizes = record.target.iter().flat_map(|target| &target.sizes);
        let mut own = record.config.len() as u64;
        for (layer, size) in record.layers.iter().zip(sizes) {
            if shared.contains(layer) {
                continue;
            }
            let request = self.client.request(UsageRequest {
                snapshotter: self.snapshotter.clone(),
                key: format!("sha256:{layer}"),
            });
            let used = within(TASK, "count a snapshot", self.client.snapshots().usage(request)).await;
            let used = or_gone(used)?.map_or(0, |used| u64::try_from(used.size).unwrap_or(0));
            own = own.saturating_add(*size).saturating_add(used);
        }
        Ok(own)
    }

    /// Removes every image and lease with the owner label.
    pub(crate) async fn purge(&self) -> Result<(), Error> {
        self.end_leases().await?;
        let request = self.client.request(ListImagesRequest {
            filters: vec![self.own()],
        });
        let listed = within(CALL, "list images", self.client.images().list(request)).await?;
        let mut left = listed.images.len();
        for image in listed.images {
            left -= 1;
            self.delete(&image.name, left == 0).await?;
        }
        Ok(())
    }
}

fn names(record: &Record) -> impl Iterator<Item = &str> {
    let others = record.target.iter().flat_map(|target| &target.others);
    let all = record.names.iter().chain(&record.digests).chain([&record.id]);
    all.chain(others).map(String::as_str)
}
