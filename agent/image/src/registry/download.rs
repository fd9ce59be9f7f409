//! Downloads one blob to a file.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::Descriptor;
use crate::registry::Session;
use crate::registry::failure::RegistryError;
use crate::registry::retries::Retries;

/// Downloads a blob and checks its size and digest. An interrupted transfer is resumed.
pub(crate) async fn download(
    session: &Session,
    layer: &Descriptor,
    path: &Path,
    limits: &Limits,
) -> Result<(), RegistryError> {
    if layer.size > limits.blob_bytes {
        return Err(ContentError::TooLarge {
            what: "layer",
            limit: limits.blob_bytes,
        }
        .into());
    }
    let mut progress = Progress::new(path)?;
    let mut retries = Retries::new(limits);
    loop {
        match progress.receive(session, layer, limits).await {
            Ok(()) => return Ok(()),
            Err(error) => retries.after(error).await?,
        }
    }
}

/// State of the download of one blob.
struct Progress {
    file: std::fs::File,
    hasher: Sha256,
    received: u64,
}

impl Progress {
    fn new(path: &Path) -> Result<Self, ContentError> {
        let file = std::fs::File::create_new(path).map_err(ContentError::io("write a layer"))?;
        Ok(Self {
            file,
            hasher: Sha256::new(),
            received: 0,
        })
    }

    async fn receive(&mut self, session: &Session, layer: &Descriptor, limits: &Limits) -> Result<(), RegistryError> {
        if self.received >= layer.size {
            self.restart()?;
        }
        let (mut response, begins) = match session.blob_from(layer.digest.as_str(), self.received).await {
            Ok(opened) => opened,
            // The registry has no more bytes than were received, so the received bytes are not the
            // layer.
            Err(RegistryError::Status { status, .. }) if status == reqwest::StatusCode::RANGE_NOT_SATISFIABLE => {
                let actual = self.received;
                self.restart()?;
                return Err(ContentError::Size {
                    what: "layer",
                    actual,
                    expected: layer.size,
                }
                .into());
            }
            Err(error) => return Err(error),
        };
        if begins != self.received {
            self.restart()?;
        }
        // Only the time spent waiting for the registry counts: the local disk may be slow, too.
        let (mut waited, mut before) = (Duration::ZERO, self.received);
        loop {
            let asked = Instant::now();
            let chunk = response.chunk().await.map_err(RegistryError::Request)?;
            waited += asked.elapsed();
            let Some(chunk) = chunk else { break };
            self.write(&chunk, layer.size)?;
            if waited >= limits.pace_time {
                let received = self.received.saturating_sub(before);
                if received < limits.pace_bytes && self.received < layer.size {
                    let seconds = waited.as_secs();
                    return Err(RegistryError::Slow { received, seconds });
                }
                (waited, before) = (Duration::ZERO, self.received);
            }
        }
        self.check(layer)
    }

    fn restart(&mut self) -> Result<(), ContentError> {
        use std::io::Seek as _;
        self.file
            .rewind()
            .and_then(|()| self.file.set_len(0))
            .map_err(ContentError::io("write a layer"))?;
        self.hasher = Sha256::new();
        self.received = 0;
        Ok(())
    }

    fn write(&mut self, chunk: &[u8], expected: u64) -> Result<(), ContentError> {
        self.received = self.received.saturating_add(chunk.len() as u64);
        if self.received > expected {
            return Err(ContentError::Size {
                what: "layer",
                actual: self.received,
                expected,
            });
        }
        self.hasher.update(chunk);
        self.file.write_all(chunk).map_err(ContentError::io("write a layer"))
    }

    fn check(&self, layer: &Descriptor) -> Result<(), RegistryError> {
        if self.received != layer.size {
            return Err(ContentError::Size {
                what: "layer",
                actual: self.received,
                expected: layer.size,
            }
            .into());
        }
        let actual = Digest::from_hasher(self.hasher.clone());
        if actual == layer.digest {
            Ok(())
        } else {
            Err(ContentError::Digest {
                what: "layer",
                actual,
                expected: layer.digest.clone(),
            }
            .into())
        }
    }
}
