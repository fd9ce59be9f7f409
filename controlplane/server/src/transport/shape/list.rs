//! Lists: items are written as they are stored, and long lists are assembled while they are sent,
//! so that no list is in memory twice.

use std::borrow::Cow;
use std::io;

use api::Registration;
use api::go_json;
use api::protobuf::ListEncoder;
use api::yaml::emit;
use axum::body::Body;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::table::TAIL;
use super::{ListMeta, PARTIAL, Table, document, misshapen, partial_of, unencodable};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::server::blocking;
use crate::transport::compress;
use crate::transport::negotiation::{Encoding, MetaVersion, Representation, Shape, accepts_gzip};
use crate::transport::respond::{Response, with_type};

/// The metadata of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) revision: u64,
    /// Token for the next page.
    pub(crate) remainder: Option<String>,
    /// Objects after this page, where selectors do not make that unknown.
    pub(crate) remaining: Option<usize>,
}

/// Bytes of one chunk of a long list.
const CHUNK: usize = 256 * 1024;
/// Answers over this size are compressed for clients that take it.
pub(super) const COMPRESS_OVER: usize = 128 * 1024;
/// Bytes of items in protobuf that all lists together may keep while they are measured and sent. A list that finds no room
/// is encoded twice.
static ROOM: Semaphore = Semaphore::const_new(24 * 1024 * 1024);

/// Answers a list of objects, given as their JSON.
pub(crate) async fn list(
    context: &Context,
    representation: Representation,
    head: &Head,
    items: Vec<Bytes>,
) -> Result<Response, Failure> {
    let registration = &context.registration;
    let metadata = metadata(head);
    let Representation { encoding, shape } = representation;
    let partial = match shape {
        Shape::Object => None,
        Shape::MetadataList(version) => Some(version),
        Shape::Metadata(_) => return Err(misshapen(PARTIAL, "a list", registration, registration.list_kind)),
        Shape::Table(version) => return table(context, encoding, version, &metadata, items).await,
    };
    let own = registration.api_version();
    let kind = match partial {
        None => (own.as_str(), registration.list_kind),
        Some(version) => (version.api_version(), "PartialObjectMetadataList"),
    };
    if encoding == Encoding::Protobuf {
        if partial.is_none() {
            super::check_protobuf(registration)?;
        }
        return protobuf(context, kind, &metadata, items, partial).await;
    }
    let chunks = texts(registration, kind, &metadata, items, partial);
    if encoding == Encoding::Json {
        return send(context, encoding, chunks);
    }
    send(context, encoding, chunks.rendered(kind, &metadata, encoding))
}

fn metadata(head: &Head) -> ListMeta {
    ListMeta {
        resource_version: head.revision.to_string(),
        remainder: head.remainder.clone(),
        remaining_item_count: head.remaining,
    }
}

/// Answers with a table, whose rows are made while they are sent.
async fn table(
    context: &Context,
    encoding: Encoding,
    version: MetaVersion,
    metadata: &ListMeta,
    items: Vec<Bytes>,
) -> Result<Response, Failure> {
    let table = Table::of(context, version)?;
    let length = items.iter().map(Bytes::len).sum();
    let chunks = Chunks {
        head: Some(table.head(metadata)),
        pieces: Rows {
            table,
            left: items.into_iter(),
            first: true,
        },
        tail: Some([TAIL, b"\n"].concat().into()),
        length,
    };
    if encoding == Encoding::Json {
        return send(context, encoding, chunks);
    }
    blocking::apart(length, async {
        let bytes = chunks.whole().map_err(Failure::internal)?;
        document(encoding, StatusCode::OK, (version.api_version(), "Table"), &bytes)
    })
    .await
}

/// Sends a list, a long one chunk by chunk.
fn send<P: Pieces + Send + 'static>(
    context: &Context,
    encoding: Encoding,
    mut chunks: Chunks<P>,
) -> Result<Response, Failure> {
    let content_type = encoding.content_type();
    let mut begun = Vec::with_capacity(chunks.length.min(CHUNK + 4096));
    chunks.fill(&mut begun, CHUNK).map_err(Failure::internal)?;
    let is_whole = chunks.tail.is_none();
    if begun.len() > COMPRESS_OVER && accepts_gzip(&context.headers) {
        let all = std::iter::once(Ok(begun.into())).chain(chunks);
        let compressed = Body::from_stream(futures::stream::iter(compress::stream(all)));
        return Ok(compress::compressed_response(StatusCode::OK, content_type, compressed));
    }
    if is_whole {
        return Ok(with_type(StatusCode::OK, content_type, begun));
    }
    let all = std::iter::once(Ok(begun.into())).chain(chunks);
    let mut response = Response::new(Body::from_stream(futures::stream::iter(all)));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

/// Items of a list, between its head and its tail.
trait Pieces {
    /// Appends the next piece; `false` when there is none.
    fn append(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool>;
}

/// A list as chunks that are put together when they are sent.
struct Chunks<P> {
    head: Option<Vec<u8>>,
    pieces: P,
    tail: Option<Cow<'static, [u8]>>,
    /// Bytes that it takes, more or less.
    length: usize,
}

impl<P: Pieces> Chunks<P> {
    fn whole(mut self) -> io::Result<Bytes> {
        let mut whole = Vec::with_capacity(self.length);
        self.fill(&mut whole, usize::MAX)?;
        Ok(whole.into())
    }

    /// Appends pieces until the buffer has this many bytes.
    fn fill(&mut self, buffer: &mut Vec<u8>, enough: usize) -> io::Result<()> {
        if let Some(head) = self.head.take() {
            buffer.extend_from_slice(&head);
        }
        while buffer.len() < enough && self.tail.is_some() {
            if !self.pieces.append(buffer)? {
                buffer.extend_from_slice(&self.tail.take().unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl<P: Pieces> Iterator for Chunks<P> {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.tail.as_ref()?;
        let mut chunk = Vec::with_capacity(CHUNK + 4096);
        let filled = self.fill(&mut chunk, CHUNK);
        if filled.is_err() {
            self.tail = None;
        }
        Some(filled.map(|()| chunk.into()))
    }
}

/// Objects as JSON.
struct Texts {
    left: std::vec::IntoIter<Bytes>,
    shown: Shown,
    first: bool,
}

enum Shown {
    /// Without the item's own `kind` and `apiVersion`, which the list gives: the prefixes with
    /// which every object of the kind begins, also if an older version stored it.
    After([String; 2]),
    Metadata(MetaVersion),
    /// Unchanged: custom resources are written so.
    Whole,
}

fn texts(
    registration: &Registration,
    (api_version, kind): (&str, &str),
    metadata: &ListMeta,
    items: Vec<Bytes>,
    partial: Option<MetaVersion>,
) -> Chunks<Texts> {
    let metadata = text(metadata);
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[");
    let own = registration.kind;
    let shown = partial.map_or_else(
        || {
            if registration.is_defined() {
                return Shown::Whole;
            }
            Shown::After([
                format!("{{\"kind\":\"{own}\",\"apiVersion\":\"{api_version}\","),
                format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{own}\","),
            ])
        },
        Shown::Metadata,
    );
    let tail = "]}\n".as_bytes();
    let length = items.iter().map(|item| item.len() + 1).sum::<usize>() + head.len() + tail.len();
    Chunks {
        head: Some(head.into_bytes()),
        pieces: Texts {
            left: items.into_iter(),
            shown,
            first: true,
        },
        tail: Some(tail.into()),
        length,
    }
}

impl Pieces for Texts {
    fn append(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        if self.left.len() == 0 {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.first, false) {
            buffer.push(b',');
        }
        Ok(self.item(buffer))
    }
}

impl Texts {
    /// Appends the next item alone, escaped.
    fn item(&mut self, buffer: &mut Vec<u8>) -> bool {
        let Some(item) = self.left.next() else {
            return false;
        };
        match &self.shown {
            Shown::After(type_metas) => match type_metas.iter().find_map(|own| item.strip_prefix(own.as_bytes())) {
                Some(rest) => {
                    buffer.push(b'{');
                    go_json::escape(rest, buffer);
                }
                None => go_json::escape(&item, buffer),
            },
            Shown::Whole => go_json::escape(&item, buffer),
            Shown::Metadata(version) => go_json::escape(&partial_of(&item, *version), buffer),
        }
        true
    }
}

impl Chunks<Texts> {
    /// The same list as people read it, one item in memory at a time.
    fn rendered(self, (api_version, kind): (&str, &str), metadata: &ListMeta, encoding: Encoding) -> Chunks<Rendered> {
        let is_empty = self.pieces.left.len() == 0;
        let (head, tail) = if encoding == Encoding::Yaml {
            let version = emit::document(&json!({ "apiVersion": api_version }));
            let items = if is_empty { "items: []\n" } else { "items:\n" };
            let tail = emit::document(&json!({ "kind": kind, "metadata": metadata }));
            (format!("{version}{items}"), tail)
        } else {
            let end = if is_empty { "]" } else { "\n  ]" };
            let metadata = go_json::text(go_json::indent(text(metadata).as_bytes(), 2));
            let own =
                format!("\"kind\": \"{kind}\",\n  \"apiVersion\": \"{api_version}\",\n  \"metadata\": {metadata}");
            (format!("{{\n  {own},\n  \"items\": ["), format!("{end}\n}}"))
        };
        Chunks {
            head: Some(head.into_bytes()),
            tail: Some(tail.into_bytes().into()),
            length: self.length,
            pieces: Rendered {
                texts: self.pieces,
                is_yaml: encoding == Encoding::Yaml,
            },
        }
    }
}

fn text(metadata: &ListMeta) -> String {
    serde_json::to_string(metadata).unwrap_or_default()
}

/// Objects as YAML, or as JSON over many lines.
struct Rendered {
    texts: Texts,
    is_yaml: bool,
}

impl Pieces for Rendered {
    fn append(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let mut item = Vec::new();
        if !self.texts.item(&mut item) {
            return Ok(false);
        }
        let first = std::mem::replace(&mut self.texts.first, false);
        if self.is_yaml {
            let value: Value = serde_json::from_slice(&item)?;
            let mut text = String::new();
            emit::item(&mut text, &value, 0);
            buffer.extend_from_slice(text.as_bytes());
        } else {
            let before = if first { "\n    " } else { ",\n    " };
            buffer.extend_from_slice(before.as_bytes());
            buffer.extend_from_slice(&go_json::indent(&item, 4));
        }
        Ok(true)
    }
}

/// Objects as rows of a table.
struct Rows {
    table: Table,
    left: std::vec::IntoIter<Bytes>,
    first: bool,
}

impl Pieces for Rows {
    fn append(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let Some(item) = self.left.next() else {
            return Ok(false);
        };
        if !std::mem::replace(&mut self.first, false) {
            buffer.push(b',');
        }
        self.table.row_of(&item).map_err(io::Error::other)?.append(buffer);
        Ok(true)
    }
}

/// Objects as protobuf.
struct Messages {
    encoder: ListEncoder,
    kept: std::vec::IntoIter<Kept>,
    left: std::vec::IntoIter<Bytes>,
}

/// Encoded items, and the room that they take.
struct Kept {
    bytes: Vec<u8>,
    _room: SemaphorePermit<'static>,
}

impl Kept {
    fn new() -> Option<Self> {
        let room = ROOM.try_acquire_many(u32::try_from(CHUNK).unwrap_or(u32::MAX)).ok()?;
        Some(Self {
            bytes: Vec::with_capacity(CHUNK),
            _room: room,
        })
    }
}

/// Lists' items as long as there is room for all of them.
struct Keeper(Option<Vec<Kept>>);

impl Keeper {
    fn keep(&mut self, item: &[u8]) {
        let Some(kept) = &mut self.0 else { return };
        let is_full = kept.last().is_none_or(|last| last.bytes.len() + item.len() > CHUNK);
        if is_full {
            match Kept::new() {
                Some(more) if item.len() <= CHUNK => kept.push(more),
                _ => {
                    self.0 = None;
                    return;
                }
            }
        }
        if let Some(last) = kept.last_mut() {
            last.bytes.extend_from_slice(item);
        }
    }
}

impl Pieces for Messages {
    fn append(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(kept) = self.kept.next() {
            buffer.extend_from_slice(&kept.bytes);
            return Ok(true);
        }
        let Some(item) = self.left.next() else {
            return Ok(false);
        };
        self.encoder.item(&item, buffer).map_err(io::Error::other)?;
        Ok(true)
    }
}

async fn protobuf(
    context: &Context,
    (api_version, kind): (&str, &str),
    metadata: &ListMeta,
    items: Vec<Bytes>,
    partial: Option<MetaVersion>,
) -> Result<Response, Failure> {
    let item = match partial {
        None => context.registration.kind,
        Some(_) => PARTIAL,
    };
    let encoder = ListEncoder::of(api_version, item).map_err(|error| unencodable(&error))?;
    let (mut length, mut unbroken) = (0, 0);
    let mut keeper = Keeper(Some(Vec::new()));
    let mut scratch = Vec::new();
    for item in &items {
        scratch.clear();
        encoder.item(item, &mut scratch).map_err(|error| unencodable(&error))?;
        length += scratch.len();
        keeper.keep(&scratch);
        unbroken += item.len();
        if unbroken > CHUNK {
            // Other requests run in between.
            unbroken = 0;
            tokio::task::yield_now().await;
        }
    }
    let head = encoder
        .head(api_version, kind, text(metadata).as_bytes(), length)
        .map_err(|error| unencodable(&error))?;
    let (kept, left) = match keeper.0 {
        Some(kept) => (kept, Vec::new()),
        None => (Vec::new(), items),
    };
    let chunks = Chunks {
        length: head.len() + length + ListEncoder::TAIL.len(),
        head: Some(head),
        pieces: Messages {
            encoder,
            kept: kept.into_iter(),
            left: left.into_iter(),
        },
        tail: Some(ListEncoder::TAIL.into()),
    };
    send(context, Encoding::Protobuf, chunks)
}
