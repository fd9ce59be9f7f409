//! `/openapi/v2` and `/openapi/v3`.
//!
//! Documents are large and follow from the table of kinds: each is made when it is first asked for and kept compressed. Those of
//! the program's group versions stay when definitions change.

pub(crate) mod described;
pub(crate) mod served;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use api::{Kinds, Registration, Row};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use described::Described;

/// A document with its entity tag.
struct Document {
    hash: String,
    compressed: OnceLock<Bytes>,
}

impl Document {
    fn new(hash: String) -> Self {
        Self {
            hash,
            compressed: OnceLock::new(),
        }
    }

    fn etag(&self) -> String {
        format!("\"{}\"", self.hash)
    }
}

/// Documents of group versions by path (`apis/apps/v1`): JSON and protobuf, under one tag.
type Versions = Vec<(String, [Document; 2])>;

fn version((path, hash): (String, String)) -> (String, [Document; 2]) {
    (path, [Document::new(hash.clone()), Document::new(hash)])
}

/// Documents of the built-in kinds, independent of definitions.
#[derive(Clone, Default)]
pub(crate) struct Program(Arc<OnceLock<Versions>>);

impl Program {
    fn versions(&self) -> &Versions {
        self.0.get_or_init(|| {
            let paths = api::openapi::documents(api::KINDS).into_iter();
            let hashed = paths.map(|path| (path.clone(), api::openapi::hash(api::KINDS, &path)));
            hashed.map(version).collect()
        })
    }
}

/// Documents, made when they are first asked for.
pub(crate) struct Documents {
    index: Bytes,
    index_hash: String,
    program: Program,
    /// Documents of the group versions of definitions.
    defined: Arc<Versions>,
    v2: Document,
    v2_protobuf: Document,
    /// Documents of aggregated API servers.
    others: Vec<Arc<Described>>,
    /// Documents of v3 that are made of theirs of v2.
    converted: Versions,
}

impl Documents {
    /// Documents of the program's kinds and of those among `kinds` that definitions bring; `revised` is a text that changes
    /// with the definition of a row.
    pub(crate) fn new(program: &Program, kinds: &Kinds, revised: impl Fn(&Registration) -> String) -> Self {
        let defined = defined(kinds).into_iter().map(|(path, rows)| {
            let parts = rows.iter().map(|row| revised(row)).collect::<Vec<_>>();
            let form = api::openapi::hash(&[], &path);
            let hash = hash(parts.iter().map(String::as_str).chain([form.as_str()]));
            version((path, hash))
        });
        let defined: Versions = defined.collect();
        let all = || {
            let all = program.versions().iter().chain(&defined);
            all.map(|(path, [document, _])| (path.as_str(), document.hash.as_str()))
        };
        let of_all = |form: &str| hash(all().map(|(_, hash)| hash).chain([form]));
        Self {
            index: api::openapi::v3_index(all()).to_string().into(),
            index_hash: of_all("index"),
            v2: Document::new(of_all("v2")),
            v2_protobuf: Document::new(of_all("v2 protobuf")),
            program: program.clone(),
            defined: Arc::new(defined),
            others: Vec::new(),
            converted: Versions::new(),
        }
    }

    /// These and those of aggregated API servers.
    pub(crate) fn with(&self, others: Vec<Arc<Described>>) -> Self {
        let mut index: Value = serde_json::from_slice(&self.index).unwrap_or_default();
        let converted: Vec<_> = others.iter().filter_map(|own| own.converted()).collect();
        let made = converted.iter().map(|(path, hash)| (path.as_str(), hash.as_str()));
        let mut made = api::openapi::v3_index(made);
        if let Some(paths) = index.get_mut("paths").and_then(Value::as_object_mut) {
            let added = others.iter().flat_map(|own| &own.v3);
            paths.extend(added.map(|(path, url)| (path.clone(), json!({ "serverRelativeURL": url }))));
            let made = made.get_mut("paths").and_then(Value::as_object_mut);
            paths.extend(made.map(std::mem::take).unwrap_or_default());
        }
        let revised: Vec<String> = others.iter().map(|own| own.revised()).collect();
        let of_all = |own: &str| hash(revised.iter().map(String::as_str).chain([own]));
        Self {
            index: index.to_string().into(),
            index_hash: of_all(&self.index_hash),
            v2: Document::new(of_all(&self.v2.hash)),
            v2_protobuf: Document::new(of_all(&self.v2_protobuf.hash)),
            program: self.program.clone(),
            defined: Arc::clone(&self.defined),
            others,
            converted: converted.into_iter().map(version).collect(),
        }
    }

    /// True if these were made of the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.index_hash == other.index_hash
    }
}

/// The rows that definitions bring, by the paths of their group versions.
fn defined(kinds: &Kinds) -> BTreeMap<String, Vec<Row>> {
    let mut all: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in kinds.rows().filter(|row| row.is_defined()) {
        all.entry(api::openapi::path_of(&row)).or_default().push(row);
    }
    all
}

pub(crate) fn hash(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hasher = Sha256::new();
    parts.into_iter().for_each(|part| hasher.update(part));
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02X}").unwrap_or_default();
        text
    })
}
