//! Names derived from a kind's, computed at compile time.

use std::marker::PhantomData;

use crate::kind::Kind;

/// The names.
pub(super) struct Names<K>(PhantomData<K>);

impl<K: Kind> Names<K> {
    const LIST_BYTES: [u8; 64] = joined(K::KIND.as_bytes(), b"List");
    pub(super) const LIST_KIND: &'static str = text(&Self::LIST_BYTES, K::KIND.len() + 4);
    const SINGULAR_BYTES: [u8; 64] = lower(joined(K::KIND.as_bytes(), b""));
    pub(super) const SINGULAR: &'static str = text(&Self::SINGULAR_BYTES, K::KIND.len());
}

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time: a name over 64 bytes does not compile"
)]
const fn joined(first: &[u8], second: &[u8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < first.len() {
        bytes[at] = first[at];
        at += 1;
    }
    while at < first.len() + second.len() {
        bytes[at] = second[at - first.len()];
        at += 1;
    }
    bytes
}

const fn lower(mut bytes: [u8; 64]) -> [u8; 64] {
    bytes.make_ascii_lowercase();
    bytes
}

const fn text(bytes: &'static [u8; 64], length: usize) -> &'static str {
    match std::str::from_utf8(bytes.split_at(length).0) {
        Ok(text) => text,
        Err(_) => "",
    }
}
