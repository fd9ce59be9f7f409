//! Images as volumes: a read-only snapshot of the sandbox's own keeps the mounted content.
//!
//! Its name consists of the sandbox's ID and the name of a file in the sandbox's directory
//! `images`, which is created before the snapshot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_containerd::{KEPT, OWNER};
use containerd_client::services::v1::snapshots::{MountsRequest, ViewSnapshotRequest};
use containerd_client::types::Mount;

use super::root;
use crate::containerd::Shared;
use crate::containerd::client::{Meaning, TASK, meaning, within};
use crate::error::io_error;
use crate::{Error, ImageFiles};

/// Directory in a sandbox's directory.
const IMAGES: &str = "images";

fn name(sandbox: &str, image: &str) -> String {
    format!("{sandbox}-{image}")
}

impl Shared {
    pub(in crate::containerd) async fn mount_image(
        self: &Arc<Self>,
        sandbox: &str,
        image: ImageFiles,
        target: PathBuf,
    ) -> Result<(), Error> {
        let (_, _guard) = self.turn(sandbox).await?;
        let invalid = |what, value: Option<&str>| Error::Invalid {
            what,
            value: value.unwrap_or_default().to_owned(),
        };
        let own = target.file_name().and_then(|name| name.to_str());
        let own = own.ok_or_else(|| invalid("path of an image", target.to_str()))?;
        let snapshot = image.snapshot.filter(|name| !name.is_empty());
        let snapshot = snapshot.ok_or_else(|| invalid("snapshot", None))?;
        let directory = self.directory(sandbox).join(IMAGES);
        let noted = fs::create_dir_all(&directory).and_then(|()| fs::write(directory.join(own), ""));
        noted.map_err(io_error("note an image in", &directory))?;
        let mounts = self.view_image(&name(sandbox, own), snapshot).await?;
        self.blocking("mount an image", move |_| {
            root::attach_fixed(&mounts, &target).map_err(io_error("mount an image at", &target))
        })
        .await?
    }

    async fn view_image(&self, key: &str, parent: String) -> Result<Vec<Mount>, Error> {
        let snapshotter = &self.config.snapshotter;
        let viewed = self.client.snapshot("show a snapshot", |mut snapshots| {
            let labels = [(OWNER, self.owner()), (KEPT, "true".to_owned())];
            let request = self.client.request(ViewSnapshotRequest {
                snapshotter: snapshotter.clone(),
                key: key.to_owned(),
                parent: parent.clone(),
                labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
            });
            async move { snapshots.view(request).await }
        });
        match viewed.await.map_err(Error::from) {
            Ok(viewed) => Ok(viewed.mounts),
            // Made by an earlier attempt.
            Err(error) if meaning(&error) == Meaning::Exists => {
                let request = self.client.request(MountsRequest {
                    snapshotter: snapshotter.clone(),
                    key: key.to_owned(),
                });
                let mut snapshots = self.client.snapshots();
                let known = within(TASK, "ask for a snapshot's mounts", snapshots.mounts(request)).await;
                known.map(|known| known.mounts)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the snapshots of a sandbox's images; returns the failures.
    pub(in crate::containerd) async fn release_images(&self, sandbox: &str) -> Vec<String> {
        let directory = self.directory(sandbox).join(IMAGES);
        let noted = match noted(&directory) {
            Ok(noted) => noted,
            Err(error) => return vec![format!("read {}: {error}", directory.display())],
        };
        let mut failures = Vec::new();
        for own in noted {
            if let Err(error) = self.remove_root(&name(sandbox, &own)).await {
                failures.push(format!("remove snapshot {}: {error}", name(sandbox, &own)));
            }
        }
        failures
    }

    /// True if a snapshot belongs to an existing sandbox.
    pub(super) fn shows_image(&self, snapshot: &str) -> bool {
        let records = self.records();
        records.iter().any(|entry| {
            let sandbox = &entry.record.sandbox.id;
            let own = snapshot
                .strip_prefix(sandbox.as_str())
                .and_then(|rest| rest.strip_prefix('-'));
            own.is_some()
        })
    }
}

fn noted(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}
