//! Content digests. SHA-256 only: the algorithm that every registry supports.

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Digest(String);

/// The text is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// The text does not have the form `algorithm:hex`.
    #[error("invalid checksum digest format")]
    Format,
    /// The algorithm is not SHA-256.
    #[error("unsupported digest algorithm")]
    Algorithm,
    /// The text after `sha256:` is not 64 hexadecimal digits.
    #[error("invalid checksum digest length")]
    Length,
}

impl Digest {
    /// Parses `sha256:…`.
    pub fn parse(text: &str) -> Result<Self, InvalidDigest> {
        let (algorithm, hex) = text.split_once(':').ok_or(InvalidDigest::Format)?;
        if algorithm != "sha256" {
            let known = algorithm
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            return Err(if known && !algorithm.is_empty() {
                InvalidDigest::Algorithm
            } else {
                InvalidDigest::Format
            });
        }
        if hex.len() != 64 {
            return Err(InvalidDigest::Length);
        }
        if !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(InvalidDigest::Format);
        }
        Ok(Self(text.to_owned()))
    }

    /// Computes the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hasher(Sha256::new_with_prefix(bytes))
    }

    pub(crate) fn from_hasher(hasher: Sha256) -> Self {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in hasher.finalize() {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        Self(text)
    }

    /// `sha256:…`
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hexadecimal digits, safe as a file name.
    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, hex)| hex)
    }

    /// Chain ID of a layer on top of `lower` (OCI image specification, "Layer `ChainID`").
    pub(crate) fn chained(lower: Option<&Self>, diff: &Self) -> Self {
        lower.map_or_else(|| diff.clone(), |lower| Self::of(format!("{lower} {diff}").as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Reader that hashes and counts the bytes read through it.
pub(crate) struct HashingReader<R> {
    inner: R,
    hasher: Sha256,
    count: u64,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
            count: 0,
        }
    }

    /// Digest and number of bytes read so far.
    pub(crate) fn finish(self) -> (Digest, u64) {
        (Digest::from_hasher(self.hasher), self.count)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(buffer.get(..read).unwrap_or_default());
        self.count = self.count.saturating_add(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sha256_alone() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::parse(empty), Ok(Digest::of(b"")));
        assert_eq!(Digest::parse("sha512:00"), Err(InvalidDigest::Algorithm));
        assert_eq!(Digest::parse("sha256:../../etc"), Err(InvalidDigest::Length));
        assert_eq!(Digest::parse(&empty.to_uppercase()), Err(InvalidDigest::Format));
        assert_eq!(Digest::parse(&empty.replace('e', "E")), Err(InvalidDigest::Format));
        assert_eq!(Digest::parse("latest"), Err(InvalidDigest::Format));
    }
}
