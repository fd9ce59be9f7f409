//! Layers that are being added to containerd: their lease, blobs and snapshots.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_containerd::{CALL, Client, Error, Meaning, TASK, or_gone, within};
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::services::v1::{
    AddResourceRequest, ApplyRequest, CreateRequest, DeleteRequest, ListRequest, Resource,
};
use containerd_client::types::{Descriptor as Sent, Mount};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::{Daemon, tasks};
use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::Descriptor;
use crate::content::unpack;
use crate::store::failure::StoreError;
use crate::store::layer::{Blob, Have, LayerError, Staged, Wanted, blocking};

/// containerd lease that protects new content from garbage collection until it is dropped.
pub(crate) struct Lease {
    id: String,
    count: AtomicU64,
    client: Client,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Lease {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Name that no other lease uses.
    pub(super) fn unique(&self, what: &str) -> String {
        format!("{}-{}-{what}", self.id, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (client, id) = (self.client.clone(), std::mem::take(&mut self.id));
        if let Ok(executor) = Handle::try_current() {
            let mut tasks = tasks(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(
                async move {
                    // A lease that could not be deleted is deleted by the next process with this
                    // directory.
                    if let Err(error) = end(&client, id).await {
                        tracing::debug!(%error, "a lease stays");
                    }
                },
                &executor,
            );
        }
    }
}

async fn end(client: &Client, id: String) -> Result<(), Error> {
    let request = client.request(DeleteRequest { id, sync: false });
    or_gone(within(CALL, "end a lease", client.leases().delete(request)).await).map(drop)
}

impl Daemon {
    /// Creates a lease. `unique` is a path whose last component is unique within this store.
    pub(crate) async fn lease(&self, unique: &Path) -> Result<Lease, Error> {
        let own = Digest::of(self.owner.as_bytes());
        let own = own.hex().get(..8).unwrap_or_default();
        let name = unique.file_name().unwrap_or_default().to_string_lossy();
        let id = format!("skiff-{own}-{name}");
        let request = self.client.request(CreateRequest {
            id: id.clone(),
            labels: self.labels([]),
        });
        within(CALL, "take a lease", self.client.leases().create(request)).await?;
        Ok(Lease {
            id,
            count: AtomicU64::default(),
            client: self.client.clone(),
            tasks: Arc::clone(&self.tasks),
        })
    }

    /// Deletes the leases of an earlier process.
    pub(super) async fn end_leases(&self) -> Result<(), Error> {
        let request = self.client.request(ListRequest {
            filters: vec![self.own()],
        });
        let listed = within(CALL, "list leases", self.client.leases().list(request)).await?;
        for lease in listed.leases {
            tracing::info!(lease = lease.id, "letting go of an image that was not complete");
            end(&self.client, lease.id).await?;
        }
        Ok(())
    }

    async fn keep(&self, lease: &Lease, kind: String, id: &Digest) -> Result<(), Error> {
        let request = self.client.request(AddResourceRequest {
            id: lease.id.clone(),
            resource: Some(Resource {
                id: id.to_string(),
                r#type: kind,
            }),
        });
        within(CALL, "keep what is there", self.client.leases().add_resource(request)).await?;
        Ok(())
    }

    /// State of a layer. It is added to the lease first and looked up then, so that it cannot be
    /// removed in between.
    pub(crate) async fn have(&self, lease: &Lease, wanted: &Wanted) -> Result<Have, Error> {
        let Some(chain) = wanted.chain() else {
            return Ok(Have::Nothing);
        };
        self.keep(lease, format!("snapshots/{}", self.snapshotter), chain)
            .await?;
        let Some(descriptor) = &wanted.descriptor else {
            return Ok(Have::Nothing);
        };
        self.keep(lease, "content".to_owned(), &descriptor.digest).await?;
        if !self.has_blob(&descriptor.digest).await? {
            return Ok(Have::Nothing);
        }
        Ok(if self.has_snapshot(chain).await? {
            Have::Layer
        } else {
            Have::Blob
        })
    }

    async fn has_snapshot(&self, chain: &Digest) -> Result<bool, Error> {
        let request = self.client.request(StatSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: chain.to_string(),
        });
        let found = within(CALL, "look for a snapshot", self.client.snapshots().stat(request)).await;
        Ok(or_gone(found)?.is_some())
    }

    /// Reads a layer to its end within the limits and passes it to containerd, concurrently if its
    /// digest is known in advance. A layer that is refused afterwards was never unpacked, and is
    /// removed with the lease.
    pub(crate) async fn stage(
        &self,
        lease: &Lease,
        blob: Blob,
        wanted: Wanted,
        limits: &Limits,
    ) -> Result<Staged, LayerError> {
        let again = blob.again().map_err(ContentError::io("read a layer"))?;
        let (limits, known) = (limits.clone(), wanted.descriptor.clone());
        let examining = blocking(move || examine(again, wanted, &limits));
        let (wanted, descriptor) = if let Some(known) = known {
            let (examined, written) = tokio::join!(examining, self.write_layer(lease, blob, &known));
            // Our error is more specific than containerd's.
            let examined = examined??;
            written?;
            examined
        } else {
            let examined = examining.await??;
            self.write_layer(lease, blob, &examined.1).await?;
            examined
        };
        Ok(Staged {
            wanted,
            descriptor,
            unpacked: None,
        })
    }

    /// Has containerd unpack a layer on top of its parents. Another pull may have unpacked it
    /// already.
    pub(crate) async fn place(&self, lease: &Lease, staged: &Staged, limits: &Limits) -> Result<(), LayerError> {
        let Some((chain, lower)) = staged.wanted.chains.split_last() else {
            return Ok(());
        };
        if self.has_snapshot(chain).await.map_err(StoreError::from)? {
            return Ok(());
        }
        let key = lease.unique(chain.hex());
        let prepared = self.client.snapshot("prepare a snapshot", |mut snapshots| {
            let request = self.client.leased(
                lease.id(),
                PrepareSnapshotRequest {
                    snapshotter: self.snapshotter.clone(),
                    key: key.clone(),
                    parent: lower.last().map(Digest::to_string).unwrap_or_default(),
                    // Container snapshots carry our label; this one belongs to the lease.
                    labels: [].into(),
                },
            );
            async move { snapshots.prepare(request).await }
        });
        let mounts = prepared.await.map_err(StoreError::from)?.mounts;
        let unpacked = match self.apply(staged, mounts, limits).await {
            Ok(()) => self.commit(lease, chain, &key).await.map_err(LayerError::from),
            Err(error) => Err(error),
        };
        if unpacked.is_err() {
            let request = self.client.request(RemoveSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key,
            });
            // Otherwise it is removed with the lease.
            drop(within(TASK, "remove a snapshot", self.client.snapshots().remove(request)).await);
        }
        match unpacked {
            Err(LayerError::Store(StoreError::Containerd(error))) if error.source.meaning() == Meaning::Exists => {
                Ok(())
            }
            unpacked => unpacked,
        }
    }

    async fn apply(&self, staged: &Staged, mounts: Vec<Mount>, limits: &Limits) -> Result<(), LayerError> {
        let request = self.client.request(ApplyRequest {
            diff: Some(sent(&staged.descriptor)),
            mounts,
            ..ApplyRequest::default()
        });
        let mut diff = self.client.diff();
        let applied = within(limits.unpack_time, "unpack a layer", diff.apply(request)).await;
        let applied = applied.map_err(StoreError::from)?.applied.unwrap_or_default();
        let expected = &staged.wanted.diff_id;
        if applied.digest == expected.as_str() {
            return Ok(());
        }
        let actual = Digest::parse(&applied.digest).map_err(|source| ContentError::InvalidDigest {
            what: "unpacked layer",
            source,
        })?;
        Err(ContentError::Digest {
            what: "layer content",
            actual,
            expected: expected.clone(),
        }
        .into())
    }

    async fn commit(&self, lease: &Lease, chain: &Digest, key: &str) -> Result<(), StoreError> {
        let request = self.client.leased(
            lease.id(),
            CommitSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                name: chain.to_string(),
                key: key.to_owned(),
                ..CommitSnapshotRequest::default()
            },
        );
        within(TASK, "commit a snapshot", self.client.snapshots().commit(request)).await?;
        Ok(())
    }
}

fn examine(blob: Blob, wanted: Wanted, limits: &Limits) -> Result<(Wanted, Descriptor), ContentError> {
    let read = unpack::examine(blob, limits).map_err(|source| ContentError::Unpack {
        layer: wanted.name.clone(),
        source,
    })?;
    wanted.check(&read)?;
    let descriptor = wanted.described(&read);
    Ok((wanted, descriptor))
}

/// Descriptor as containerd's API takes it.
pub(super) fn sent(descriptor: &Descriptor) -> Sent {
    Sent {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.to_string(),
        size: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
        ..Sent::default()
    }
}
