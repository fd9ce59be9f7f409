//! Blobs in containerd's content store.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};

use agent_containerd::{CALL, Error, Failure, Meaning, within};
use containerd_client::services::v1::{
    Info, InfoRequest, ReadContentRequest, UpdateRequest, WriteAction, WriteContentRequest,
};
use prost_types::FieldMask;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{Daemon, Lease};
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::Descriptor;
use crate::store::failure::StoreError;
use crate::store::layer::{Blob, LayerError, blocking};

/// Size of one message of a write.
const CHUNK: usize = 1 << 20;
/// Capacity of the channel of messages.
const AHEAD: usize = 2;

impl Daemon {
    /// True if the content store has the blob.
    pub(super) async fn has_blob(&self, digest: &Digest) -> Result<bool, Error> {
        let request = self.client.request(InfoRequest {
            digest: digest.to_string(),
        });
        let found = within(CALL, "look for a blob", self.client.content().info(request)).await;
        Ok(agent_containerd::or_gone(found)?.is_some())
    }

    /// Reads a whole small blob and checks it against its descriptor; `None` if it does not exist.
    pub(super) async fn read_blob(&self, descriptor: &Descriptor, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        const DOING: &str = "read a blob";
        if descriptor.size > limit {
            return Ok(None);
        }
        let request = self.client.request(ReadContentRequest {
            digest: descriptor.digest.to_string(),
            offset: 0,
            size: 0,
        });
        let opened = within(CALL, DOING, self.client.content().read(request)).await;
        let Some(mut stream) = agent_containerd::or_gone(opened)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let reading = async {
            while let Some(part) = stream.message().await? {
                bytes.extend(part.data);
                if bytes.len() as u64 > descriptor.size {
                    break;
                }
            }
            Ok(tonic::Response::new(()))
        };
        let read = within(CALL, DOING, reading).await;
        if agent_containerd::or_gone(read)?.is_none() {
            return Ok(None);
        }
        Ok(descriptor.verify("blob", &bytes).is_ok().then_some(bytes))
    }

    /// Copies a blob to a file. Returns whether a blob that matches its descriptor was found.
    pub(super) async fn copy_blob(&self, descriptor: &Descriptor, mut file: &File) -> Result<bool, LayerError> {
        const DOING: &str = "read a blob";
        let request = self.client.request(ReadContentRequest {
            digest: descriptor.digest.to_string(),
            offset: 0,
            size: 0,
        });
        let opened = within(CALL, DOING, self.client.content().read(request)).await;
        let Some(mut stream) = agent_containerd::or_gone(opened).map_err(StoreError::from)? else {
            return Ok(false);
        };
        let (mut hasher, mut size) = (Sha256::new(), 0_u64);
        loop {
            let part = within(CALL, DOING, async { stream.message().await.map(tonic::Response::new) }).await;
            let Some(part) = agent_containerd::or_gone(part).map_err(StoreError::from)?.flatten() else {
                break;
            };
            hasher.update(&part.data);
            size = size.saturating_add(part.data.len() as u64);
            if size > descriptor.size {
                break;
            }
            file.write_all(&part.data).map_err(ContentError::io("write a layer"))?;
        }
        Ok(size == descriptor.size && Digest::from_hasher(hasher) == descriptor.digest)
    }

    /// Writes a small blob with its labels; the lease protects it from garbage collection.
    pub(super) async fn write_blob(
        &self,
        lease: &Lease,
        bytes: Vec<u8>,
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let descriptor = Descriptor::new("", Digest::of(&bytes), bytes.len() as u64);
        let (sender, receiver) = mpsc::channel(AHEAD);
        let message = first(lease, &descriptor);
        let feeding = async {
            // A receiver that is gone has already reported the error.
            drop(
                sender
                    .send(WriteContentRequest {
                        action: WriteAction::Commit.into(),
                        data: bytes,
                        labels: labels.clone(),
                        ..message
                    })
                    .await,
            );
            drop(sender);
        };
        let (written, ()) = tokio::join!(self.write(lease, receiver, CALL), feeding);
        match written {
            // The existing blob may lack the labels.
            Err(error) if error.source.meaning() == Meaning::Exists => self.label(&descriptor.digest, labels).await,
            written => written,
        }
    }

    /// Writes a layer under the lease; containerd verifies its digest. An existing blob counts as
    /// written.
    pub(super) async fn write_layer(
        &self,
        lease: &Lease,
        blob: Blob,
        descriptor: &Descriptor,
    ) -> Result<(), LayerError> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let message = first(lease, descriptor);
        let feeding = blocking(move || feed(blob, &message, &sender));
        let (written, fed) = tokio::join!(self.write(lease, receiver, self.limits.unpack_time), feeding);
        match written {
            Err(error) if error.source.meaning() == Meaning::Exists => Ok(()),
            Err(error) => Err(StoreError::from(error).into()),
            Ok(()) => Ok(fed?.map_err(ContentError::io("read a layer"))?),
        }
    }

    async fn write(
        &self,
        lease: &Lease,
        receiver: mpsc::Receiver<WriteContentRequest>,
        limit: std::time::Duration,
    ) -> Result<(), Error> {
        let messages = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|message| (message, receiver))
        });
        let request = self.client.leased(lease.id(), messages);
        let mut content = self.client.content();
        let writing = async {
            let mut answers = content.write(request).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok(tonic::Response::new(()))
        };
        within(limit, "write a blob", writing).await
    }

    /// Adds labels to a blob.
    async fn label(&self, digest: &Digest, labels: HashMap<String, String>) -> Result<(), Error> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let request = self.client.request(UpdateRequest {
            info: Some(Info {
                digest: digest.to_string(),
                labels,
                ..Info::default()
            }),
            update_mask: Some(FieldMask { paths }),
        });
        within(CALL, "label a blob", self.client.content().update(request)).await?;
        Ok(())
    }
}

/// Fields that all messages of a write have in common.
fn first(lease: &Lease, descriptor: &Descriptor) -> WriteContentRequest {
    WriteContentRequest {
        action: WriteAction::Write.into(),
        r#ref: lease.unique(descriptor.digest.hex()),
        total: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
        expected: descriptor.digest.to_string(),
        ..WriteContentRequest::default()
    }
}

fn feed(
    mut blob: Blob,
    message: &WriteContentRequest,
    sender: &mpsc::Sender<WriteContentRequest>,
) -> std::io::Result<()> {
    let mut offset = 0_i64;
    loop {
        let mut data = Vec::with_capacity(CHUNK);
        (&mut blob).take(CHUNK as u64).read_to_end(&mut data)?;
        let last = data.is_empty();
        let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
        let action = if last { WriteAction::Commit } else { WriteAction::Write };
        let sent = sender.blocking_send(WriteContentRequest {
            action: action.into(),
            offset,
            data,
            ..message.clone()
        });
        offset = offset.saturating_add(length);
        if last || sent.is_err() {
            return Ok(());
        }
    }
}

/// Error of a stream that ended early.
pub(super) fn broken(doing: &'static str) -> impl FnOnce(tonic::Status) -> Error {
    move |status| Error {
        doing,
        source: Failure::from(status),
    }
}
