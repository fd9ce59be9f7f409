//! Puts arbitrary bytes where registries and archives come in, for tests that look for input that is not survived.

use std::path::Path;

use crate::config::Limits;
use crate::manifest::{self, Document};
use crate::reference::Reference;
use crate::unpack;

/// Reads the bytes as a manifest, as a configuration and as a reference.
///
/// # Panics
/// When a reference could lead out of its registry.
pub fn manifest(bytes: &[u8]) {
    let limits = Limits::default();
    match Document::parse(bytes, &limits) {
        Ok(Document::Index(manifests)) => drop(manifest::for_this_platform(&manifests).is_ok()),
        Ok(Document::Manifest { .. }) | Err(_) => {}
    }
    drop(manifest::parse_config(bytes, 1));
    if let Ok(reference) = Reference::parse(std::str::from_utf8(bytes).unwrap_or_default()) {
        // A repository's name goes into paths of requests.
        assert!(!reference.repository().contains(".."), "{reference:?}");
    }
}

/// Unpacks the bytes as a layer into an empty directory.
pub fn layer(bytes: &[u8], target: &Path) {
    let limits = Limits {
        layer_bytes: 1 << 20,
        entries: 100,
        ..Limits::default()
    };
    drop(unpack::unpack(bytes, target, &limits));
}
