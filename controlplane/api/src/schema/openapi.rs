//! OpenAPI documents, generated from the table of kinds: one v3 document per group version, per
//! group and for the version, and one v2 document of all, with upstream's names, so that stock
//! clients find fields (`explain`), patch keys (`apply`, `diff`) and the parameters of each path
//! (`create --validate`, `--dry-run=server`).
//!
//! A document is built anew on each call and is large (megabytes for the core group): the server
//! caches its responses, compressed.

mod components;
mod converted;
mod defined;
mod gnostic;
mod gnostic_v3;
mod marks;
mod merge;
mod operation;
mod parameters;
mod paths;
mod roots;
mod v2;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::registration::Registration;
use roots::Root;

pub use defined::Defined;
pub use merge::Other;
pub use v2::{v2_json, v2_protobuf};

/// Media type of [`v2_protobuf`], which clients up to 1.28 request.
pub const V2_PROTOBUF_MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// Media type of [`v3_protobuf`].
pub const V3_PROTOBUF_MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Revision of the generator itself, so that clients do not use documents of an older one from
/// their caches.
const REVISION: u32 = 7;

/// Response to `/openapi/v3`: URL of each document, with a hash that changes with its content.
pub fn v3_index<'p>(documents: impl IntoIterator<Item = (&'p str, &'p str)>) -> Value {
    let paths = documents.into_iter().map(|(path, hash)| {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        (path.to_owned(), json!({ "serverRelativeURL": url }))
    });
    json!({ "paths": paths.collect::<Map<String, Value>>() })
}

/// Document at `/openapi/v3/PATH`; the path is one of [`documents`]. `None` if there is no such
/// document.
pub fn v3_document(kinds: &[Registration], path: &str) -> Option<Value> {
    let paths = paths_at(kinds, path);
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": title(),
        "paths": paths,
        "components": {
            "schemas": schemas_at(kinds, path),
            "securitySchemes": {"BearerToken": components::bearer_token()},
        },
    }))
}

/// Document at `/openapi/v3/PATH` in gnostic's protobuf, which some in-cluster clients request.
pub fn v3_protobuf(kinds: &[Registration], path: &str) -> Option<Vec<u8>> {
    v3_document(kinds, path).map(|document| gnostic_v3::document(&document))
}

fn rows_of<'k>(kinds: &'k [Registration], path: &str) -> Vec<&'k Registration> {
    kinds.iter().filter(|row| path_of(row) == path).collect()
}

fn title() -> Value {
    json!({"title": "Kubernetes", "version": "v1.36.0"})
}

fn paths_at(kinds: &[Registration], path: &str) -> Map<String, Value> {
    Root::find(kinds, path).map_or_else(|| paths::of(&rows_of(kinds, path)), |root| root.paths())
}

fn schemas_at(kinds: &[Registration], path: &str) -> Map<String, Value> {
    Root::find(kinds, path).map_or_else(|| components::of(kinds, &rows_of(kinds, path)), |root| root.schemas())
}

/// The paths of all documents: `api`, `api/v1`, `apis`, `apis/apps`, `apis/apps/v1`, `version`.
pub fn documents(kinds: &[Registration]) -> Vec<String> {
    let mut all = Root::all(kinds);
    all.extend(group_versions(kinds));
    all.into_iter().collect()
}

/// The paths of the documents of group versions: `api/v1`, `apis/apps/v1`.
pub fn group_versions(kinds: &[Registration]) -> Vec<String> {
    kinds.iter().map(path_of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Hash in the index: upper-case hexadecimal, of the inputs of the document.
pub fn hash(kinds: &[Registration], path: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(REVISION.to_le_bytes());
    hasher.update(env!("CARGO_PKG_VERSION"));
    hasher.update(path);
    for row in kinds.iter().filter(|row| path_of(row) == path) {
        hasher.update(row.kind);
        for subresource in row.subresources {
            hasher.update(subresource.name());
        }
    }
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02X}").unwrap_or_default();
        text
    })
}

/// The path of a row's group version: `apis/apps/v1`.
pub fn path_of(row: &Registration) -> String {
    if row.group.is_empty() {
        format!("api/{}", row.version)
    } else {
        format!("apis/{}/{}", row.group, row.version)
    }
}

/// The extension that names a kind.
fn group_version_kind(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}
