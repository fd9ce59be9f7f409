//! Fuzzing entry points: parses arbitrary bytes as content from registries and archives.

use std::path::Path;

use crate::config::Limits;
use crate::content::manifest::{self, Document};
use crate::content::unpack;
use crate::reference::Reference;

/// Parses the bytes as a manifest, a configuration and a reference.
///
/// # Panics
/// Panics if a reference could lead out of its registry.
pub fn manifest(bytes: &[u8]) {
    let limits = Limits::default();
    match Document::parse(bytes, &limits) {
        Ok(Document::Index(manifests)) => drop(manifest::for_this_platform(&manifests).is_ok()),
        Ok(Document::Manifest { .. }) | Err(_) => {}
    }
    drop(manifest::parse_config(bytes, 1));
    if let Ok(reference) = Reference::parse(std::str::from_utf8(bytes).unwrap_or_default()) {
        // The repository's name becomes part of request paths.
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
