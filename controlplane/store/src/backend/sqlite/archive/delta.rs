//! Compression of versions, and the interval tree of revisions.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

/// Largest size of a version, above that of any request body.
const MOST: usize = 16 << 20;
const LEVEL: i32 = 3;

/// Compresses and decompresses versions, alone or as the difference to another one
/// (`ZSTD_CCtx_loadDictionary`).
pub(in super::super) struct Codec {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
}

impl Codec {
    pub(in super::super) fn new() -> io::Result<Self> {
        Ok(Self {
            compressor: Compressor::new(LEVEL)?,
            decompressor: Decompressor::new()?,
        })
    }

    /// Compresses bytes as the difference to others; alone if those are empty.
    pub(super) fn pack(&mut self, bytes: &[u8], against: &[u8]) -> io::Result<Vec<u8>> {
        self.compressor.set_dictionary(LEVEL, against)?;
        self.compressor.compress(bytes)
    }

    /// Reverts [`Codec::pack`]; `size` is the original size.
    pub(in super::super) fn unpack(&mut self, packed: &[u8], size: usize, against: &[u8]) -> io::Result<Vec<u8>> {
        self.decompressor.set_dictionary(against)?;
        self.decompressor.decompress(packed, size.min(MOST))
    }
}

/// The node of the interval tree for the revisions from `first` to `last`: the number among them
/// with the most trailing zeros in binary (the fork node of a relational interval tree, Kriegel,
/// Pötke and Seidl 2000). An interval that contains a revision is stored at one of the [`nodes`] of
/// that revision.
pub(super) fn fork(first: u64, last: u64) -> u64 {
    let differing = first.saturating_sub(1) ^ last;
    let level = 63_u32.saturating_sub(differing.leading_zeros());
    (last >> level) << level
}

/// The nodes that can store intervals containing a revision, up to the newest revision.
pub(super) fn nodes(revision: u64, newest: u64) -> impl Iterator<Item = u64> {
    let levels = (0..62_u32).map(move |level| ((revision >> level) | 1) << level);
    levels.filter(move |node| *node <= newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_small_beside_one_like_it_and_comes_back() {
        let mut codec = Codec::new().unwrap();
        let words: Vec<String> = (0..400_u32)
            .map(|n| n.wrapping_mul(2_654_435_761).to_string())
            .collect();
        let (first, second) = (words.join(" "), words.join(" ").replace(&words[200], "changed"));
        let packed = codec.pack(second.as_bytes(), first.as_bytes()).unwrap();
        assert!(packed.len() < 64, "{}", packed.len());
        let alone = codec.pack(second.as_bytes(), &[]).unwrap();
        assert!(alone.len() > 1000, "{}", alone.len());
        for (packed, against) in [(&packed, first.as_bytes()), (&alone, &[][..])] {
            let unpacked = codec.unpack(packed, second.len(), against).unwrap();
            assert_eq!(unpacked, second.as_bytes());
        }
        codec.unpack(&packed, 10, first.as_bytes()).unwrap_err();
    }

    proptest::proptest! {
        #[test]
        fn an_interval_is_filed_at_one_node_of_each_revision_in_it(first in 1..5000_u64, more in 0..5000_u64, inside in 0..5000_u64) {
            let last = first + more;
            let node = fork(first, last);
            proptest::prop_assert!((first..=last).contains(&node));
            let inside = first + inside % (more + 1);
            proptest::prop_assert_eq!(nodes(inside, last).filter(|own| *own == node).count(), 1);
        }
    }
}
