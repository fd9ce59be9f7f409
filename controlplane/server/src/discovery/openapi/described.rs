//! Documents of a server behind a Service.

use std::collections::BTreeMap;
use std::io::Read as _;

use api::openapi::Other;
use bytes::Bytes;
use flate2::read::GzDecoder;
use tokio::time::Instant;

/// Documents of a group version, as its server told last.
#[derive(Clone)]
pub(crate) struct Described {
    pub(crate) group: String,
    pub(crate) version: String,
    /// URLs of documents of v3 by path (`apis/GROUP/VERSION`), of this group alone. Empty if the server has no v3.
    pub(crate) v3: BTreeMap<String, String>,
    /// Entity tag and document of v2, compressed.
    pub(crate) v2: Option<(String, Bytes)>,
    /// When to look again.
    pub(crate) due: Instant,
}

impl Described {
    /// Text that changes with the documents.
    pub(crate) fn revised(&self) -> String {
        let tag = self.v2.as_ref().map_or("", |(tag, _)| tag.as_str());
        format!("{}/{} {:?} {tag}", self.group, self.version, self.v3)
    }

    /// Path and hash of the document of v3 that is made of v2, for a server that has no v3.
    pub(crate) fn converted(&self) -> Option<(String, String)> {
        let (tag, _) = self.v2.as_ref().filter(|_| self.v3.is_empty())?;
        let path = format!("apis/{}/{}", self.group, self.version);
        let hash = super::hash([&path, tag]);
        Some((path, hash))
    }

    /// Its part of the document of v2.
    pub(crate) fn v2(&self) -> Option<Other> {
        let (_, compressed) = self.v2.as_ref()?;
        let mut document = Vec::new();
        let read = GzDecoder::new(&**compressed).read_to_end(&mut document);
        let document = read.ok().map(|_bytes| serde_json::from_slice(&document))?;
        let unreadable = |error: &serde_json::Error| {
            tracing::warn!(group = self.group, version = self.version, %error, "an OpenAPI document is left out");
        };
        let document = document.inspect_err(unreadable).ok()?;
        Some(Other::of(document, &self.group, &self.version))
    }
}
