//! Lists: items are written as they are stored, and long lists are assembled while they are sent,
//! so that no list is in memory twice.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::{io, iter};

use api::Registration;
use api::go_json;
use api::protobuf::ListEncoder;
use api::yaml::emit;
use axum::body::Body;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::table::TAIL;
use super::{ListMeta, PARTIAL, Table, misshapen, partial_of};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::server::blocking;
use crate::transport::compress::{self, Part};
use crate::transport::negotiation::{Encoding, MetaVersion, Representation, Shape, accepts_gzip};
use crate::transport::respond::{Response, document, unencodable, with_type};

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
const CHUNK: usize = 128 * 1024;
/// Number of chunks of one list that are made or wait to be sent: one more than are computed at a time.
const AT_ONCE: usize = 3;
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
    let list = texts(registration, kind, &metadata, items, partial);
    if encoding == Encoding::Json {
        return send(context, encoding, list);
    }
    send(context, encoding, list.rendered(kind, &metadata, encoding))
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
    let list = List {
        head: table.head(metadata),
        form: table,
        items,
        tail: [TAIL, b"\n"].concat().into(),
    };
    if encoding == Encoding::Json {
        return send(context, encoding, list);
    }
    let length = list.items.iter().map(Bytes::len).sum();
    blocking::apart(length, async {
        let bytes = list.whole().map_err(Failure::internal)?;
        document(encoding, StatusCode::OK, (version.api_version(), "Table"), &bytes)
    })
    .await
}

/// Sends a list. The chunks of a long one are made and compressed by other threads, two at a time, while it is sent.
fn send<F: Form>(context: &Context, encoding: Encoding, list: List<F>) -> Result<Response, Failure> {
    let content_type = encoding.content_type();
    let List {
        head: mut begun,
        form,
        items,
        tail,
    } = list;
    let mut left = items.into_iter();
    let mut first = true;
    while begun.len() <= COMPRESS_OVER
        && let Some(item) = left.next()
    {
        form.append(&item, first, &mut begun).map_err(Failure::internal)?;
        first = false;
    }
    let is_whole = left.len() == 0;
    if is_whole {
        begun.extend_from_slice(&tail);
    }
    let is_compressed = begun.len() > COMPRESS_OVER && accepts_gzip(&context.headers);
    if is_whole && !is_compressed {
        return Ok(with_type(StatusCode::OK, content_type, begun));
    }
    let form = Arc::new(form);
    let later = groups(left).map(move |(group, is_last)| {
        let (form, tail) = (form.clone(), tail.clone());
        blocking::compute(move || {
            let mut chunk = Vec::with_capacity(CHUNK + 4096);
            for item in group {
                form.append(&item, false, &mut chunk)?;
            }
            if is_last {
                chunk.extend_from_slice(&tail);
            }
            finish(chunk, is_compressed)
        })
        .boxed()
    });
    let first = async move {
        if is_compressed {
            blocking::compute(move || Part::compressed(&begun)).await
        } else {
            Ok(Part::plain(begun))
        }
    };
    let chunks = stream::iter(iter::once(first.boxed()).chain(later)).buffered(AT_ONCE);
    if is_compressed {
        let compressed = Body::from_stream(compress::joined(chunks));
        return Ok(compress::compressed_response(StatusCode::OK, content_type, compressed));
    }
    let chunks = chunks.map_ok(|chunk| Bytes::from(chunk.bytes));
    Ok(with_type(StatusCode::OK, content_type, Body::from_stream(chunks)))
}

fn finish(chunk: Vec<u8>, is_compressed: bool) -> io::Result<Part> {
    if is_compressed {
        Part::compressed(&chunk)
    } else {
        Ok(Part::plain(chunk))
    }
}

/// Items in groups of some [`CHUNK`] bytes, and whether a group is the last.
fn groups(mut left: std::vec::IntoIter<Bytes>) -> impl Iterator<Item = (Vec<Bytes>, bool)> {
    iter::from_fn(move || {
        let mut length = 0;
        let mut group = Vec::new();
        while length < CHUNK
            && let Some(item) = left.next()
        {
            length += item.len();
            group.push(item);
        }
        (!group.is_empty()).then(|| (group, left.len() == 0))
    })
}

/// Form of a list's items.
trait Form: Send + Sync + 'static {
    /// Appends an item.
    fn append(&self, item: &Bytes, is_first: bool, buffer: &mut Vec<u8>) -> io::Result<()>;
}

/// A list that is put together while it is sent.
struct List<F> {
    head: Vec<u8>,
    form: F,
    items: Vec<Bytes>,
    tail: Cow<'static, [u8]>,
}

impl<F: Form> List<F> {
    fn whole(&self) -> io::Result<Bytes> {
        let mut whole = self.head.clone();
        for (index, item) in self.items.iter().enumerate() {
            self.form.append(item, index == 0, &mut whole)?;
        }
        whole.extend_from_slice(&self.tail);
        Ok(whole.into())
    }
}

/// Objects as JSON.
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
) -> List<Shown> {
    let metadata = text(metadata);
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[");
    let own = registration.kind;
    let form = partial.map_or_else(
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
    List {
        head: head.into_bytes(),
        form,
        items,
        tail: "]}\n".as_bytes().into(),
    }
}

impl Form for Shown {
    fn append(&self, item: &Bytes, is_first: bool, buffer: &mut Vec<u8>) -> io::Result<()> {
        if !is_first {
            buffer.push(b',');
        }
        match self {
            Self::After(type_metas) => match type_metas.iter().find_map(|own| item.strip_prefix(own.as_bytes())) {
                Some(rest) => {
                    buffer.push(b'{');
                    go_json::escape(rest, buffer);
                }
                None => go_json::escape(item, buffer),
            },
            Self::Whole => go_json::escape(item, buffer),
            Self::Metadata(version) => go_json::escape(&partial_of(item, *version), buffer),
        }
        Ok(())
    }
}

impl List<Shown> {
    /// The same list as people read it, one item in memory at a time.
    fn rendered(self, (api_version, kind): (&str, &str), metadata: &ListMeta, encoding: Encoding) -> List<Rendered> {
        let is_empty = self.items.is_empty();
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
        List {
            head: head.into_bytes(),
            form: Rendered {
                shown: self.form,
                is_yaml: encoding == Encoding::Yaml,
            },
            items: self.items,
            tail: tail.into_bytes().into(),
        }
    }
}

fn text(metadata: &ListMeta) -> String {
    serde_json::to_string(metadata).unwrap_or_default()
}

/// Objects as YAML, or as JSON over many lines.
struct Rendered {
    shown: Shown,
    is_yaml: bool,
}

impl Form for Rendered {
    fn append(&self, item: &Bytes, is_first: bool, buffer: &mut Vec<u8>) -> io::Result<()> {
        let mut json = Vec::new();
        self.shown.append(item, true, &mut json)?;
        if self.is_yaml {
            let value: Value = serde_json::from_slice(&json)?;
            let mut text = String::new();
            emit::item(&mut text, &value, 0);
            buffer.extend_from_slice(text.as_bytes());
        } else {
            let before = if is_first { "\n    " } else { ",\n    " };
            buffer.extend_from_slice(before.as_bytes());
            buffer.extend_from_slice(&go_json::indent(&json, 4));
        }
        Ok(())
    }
}

impl Form for Table {
    fn append(&self, item: &Bytes, is_first: bool, buffer: &mut Vec<u8>) -> io::Result<()> {
        if !is_first {
            buffer.push(b',');
        }
        self.row_of(item).map_err(io::Error::other)?.append(buffer);
        Ok(())
    }
}

/// Objects as protobuf.
enum Messages {
    /// Of objects that are encoded a second time.
    Encoded(ListEncoder),
    /// Of chunks that were kept, in this room.
    Kept(SemaphorePermit<'static>),
}

impl Form for Messages {
    fn append(&self, item: &Bytes, _is_first: bool, buffer: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Encoded(encoder) => encoder.item(item, buffer).map_err(io::Error::other)?,
            Self::Kept(_room) => buffer.extend_from_slice(item),
        }
        Ok(())
    }
}

/// Answers with protobuf, whose head says how long the items are: they are encoded first, and kept if there is room.
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
    let mut length = 0;
    let mut kept = ROOM.try_acquire_many(0).ok().map(|room| (Vec::new(), room));
    let encode = |(group, _): (Vec<Bytes>, bool)| async move {
        let length: usize = group.iter().map(Bytes::len).sum();
        let encode = move || {
            let mut chunk = Vec::with_capacity(length);
            let done = group.iter().try_for_each(|item| encoder.item(item, &mut chunk));
            // Its length is the room that it takes.
            chunk.shrink_to_fit();
            done.map(|()| Bytes::from(chunk))
        };
        // A short list does not wait for the long ones.
        if length < CHUNK {
            return encode();
        }
        blocking::compute(encode).await
    };
    let mut chunks = pin!(stream::iter(groups(items.clone().into_iter()).map(encode)).buffered(AT_ONCE));
    while let Some(chunk) = chunks.try_next().await.map_err(|error| unencodable(&error))? {
        length += chunk.len();
        let room = u32::try_from(chunk.len())
            .ok()
            .and_then(|room| ROOM.try_acquire_many(room).ok());
        kept = kept.zip(room).map(|((mut chunks, mut all), room)| {
            chunks.push(chunk);
            all.merge(room);
            (chunks, all)
        });
    }
    let head = encoder
        .head(api_version, kind, text(metadata).as_bytes(), length)
        .map_err(|error| unencodable(&error))?;
    let (form, items) = match kept {
        Some((chunks, room)) => (Messages::Kept(room), chunks),
        None => (Messages::Encoded(encoder), items),
    };
    let tail = ListEncoder::TAIL.into();
    send(
        context,
        Encoding::Protobuf,
        List {
            head,
            form,
            items,
            tail,
        },
    )
}
