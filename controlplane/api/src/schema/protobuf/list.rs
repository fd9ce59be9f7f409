//! Encoding of lists item by item. A body's head contains its length, so the items are encoded or
//! measured first.

use super::wire::{Writer, field_length};
use super::{MAGIC, ProtobufError, encode, schema_of, unknown_kind};
use crate::schema::Schema;

/// Field number of `items` in every list.
const ITEMS: u32 = 2;

/// Bytes after the message in a body: upstream writes the content's encoding and type even when
/// they are empty.
pub(super) const TAIL: [u8; 4] = [0x1a, 0, 0x22, 0];

/// Encodes lists of one kind.
#[derive(Clone, Copy, Debug)]
pub struct ListEncoder {
    item: Schema,
}

impl ListEncoder {
    /// Bytes after the items.
    pub const TAIL: &'static [u8] = &TAIL;

    /// Creates an encoder for lists of a kind of the table.
    ///
    /// # Errors
    /// [`ProtobufError::UnknownKind`]
    pub fn of(api_version: &str, kind: &str) -> Result<Self, ProtobufError> {
        let item = schema_of(api_version, kind)?;
        Ok(Self { item })
    }

    /// Appends an object, given as its JSON, as an item; members that the kind does not have are
    /// left out.
    ///
    /// # Errors
    /// [`ProtobufError::Unfit`]
    pub fn item(self, json: &[u8], out: &mut Vec<u8>) -> Result<(), ProtobufError> {
        let mut writer = Writer(std::mem::take(out));
        let written = writer.nested(ITEMS, |writer| encode::message(self.item, json, writer));
        *out = writer.0;
        written
    }

    /// Bytes before the items: `metadata` is the list's as JSON, `length` the size of all items.
    ///
    /// # Errors
    /// [`ProtobufError::Unfit`]
    pub fn head(
        self,
        api_version: &str,
        list_kind: &str,
        metadata: &[u8],
        length: usize,
    ) -> Result<Vec<u8>, ProtobufError> {
        let mut written = Writer::default();
        let list_meta = Schema::named("meta.v1.ListMeta").ok_or_else(|| unknown_kind("meta.k8s.io/v1", "ListMeta"))?;
        encode::message(list_meta, metadata, &mut written)?;
        let mut head = head(api_version, list_kind, field_length(written.0.len()) + length);
        head.bytes(1, &written.0);
        Ok(head.0)
    }
}

/// Start of a body, up to the message of this length.
pub(super) fn head(api_version: &str, kind: &str, length: usize) -> Writer {
    let mut type_meta = Writer::default();
    type_meta.bytes(1, api_version.as_bytes());
    type_meta.bytes(2, kind.as_bytes());
    let mut body = Writer(MAGIC.to_vec());
    body.bytes(1, &type_meta.0);
    body.tag(2, 2);
    body.raw_varint(length as u64);
    body
}
