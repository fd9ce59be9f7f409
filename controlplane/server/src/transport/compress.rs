//! gzip for large answers.

use std::io::{self, Write};

use axum::body::Body;
use bytes::Bytes;
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};
use futures::{Stream, StreamExt, stream};
use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderValue, StatusCode};

use crate::transport::respond::{Response, with_type};

/// Compresses bytes; fast rather than small, as upstream does.
pub(crate) fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// Part of a long answer. Parts are compressed apart, so that several threads share the work, and make up one member
/// (RFC 1952): each ends with a flush, at a whole byte.
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    checksum: Crc,
}

impl Part {
    /// A part that is not compressed.
    pub(crate) fn plain(bytes: Vec<u8>) -> Self {
        let checksum = Crc::new();
        Self { bytes, checksum }
    }

    /// Compresses a part.
    pub(crate) fn compressed(bytes: &[u8]) -> io::Result<Self> {
        let mut checksum = Crc::new();
        checksum.update(bytes);
        let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
        encoder.write_all(bytes)?;
        encoder.flush()?;
        // Where a block's output did not fit flate2's buffer, miniz_oxide takes the first flush to
        // write the rest of that, and returns with input that it still holds (`compress_inner`).
        encoder.flush()?;
        let bytes = std::mem::take(encoder.get_mut());
        Ok(Self { bytes, checksum })
    }
}

/// Joins compressed parts.
pub(crate) fn joined(parts: impl Stream<Item = io::Result<Part>>) -> impl Stream<Item = io::Result<Bytes>> {
    /// Deflate, no name and time, fastest, unknown system.
    const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
    /// An empty last block.
    const END: [u8; 2] = [3, 0];
    let mut all = Crc::new();
    let bytes = parts.map(Some).chain(stream::iter([None])).map(move |part| {
        let Some(part) = part else {
            return Ok([END.as_slice(), &all.sum().to_le_bytes(), &all.amount().to_le_bytes()]
                .concat()
                .into());
        };
        let part = part?;
        all.combine(&part.checksum);
        Ok(part.bytes.into())
    });
    stream::iter([Ok(Bytes::from_static(&HEAD))]).chain(bytes)
}

/// A compressed answer; plain if it cannot be compressed.
pub(crate) fn respond(code: StatusCode, content_type: &'static str, bytes: &Bytes) -> Response {
    match gzip(bytes) {
        Some(compressed) => compressed_response(code, content_type, compressed),
        None => with_type(code, content_type, bytes.clone()),
    }
}

/// An answer from bytes that are compressed already.
pub(crate) fn compressed_response(
    code: StatusCode,
    content_type: &'static str,
    compressed: impl Into<Body>,
) -> Response {
    let mut response = with_type(code, content_type, compressed);
    response
        .headers_mut()
        .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use bytes::Bytes;
    use flate2::{bufread, read};
    use futures::{TryStreamExt, stream};

    use super::{Part, joined};

    async fn compressed(parts: &[Vec<u8>]) -> Vec<u8> {
        let parts: Vec<io::Result<Part>> = parts.iter().map(|part| Part::compressed(part)).collect();
        let bytes: Vec<Bytes> = joined(stream::iter(parts)).try_collect().await.unwrap();
        bytes.concat()
    }

    #[tokio::test]
    async fn parts_that_are_joined_are_one_member() {
        let noise =
            |start: u32| (start..start + 80_000).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes());
        let long: Vec<u8> = b"{\"kind\":\"Pod\"},".iter().copied().cycle().take(400_000).collect();
        // miniz_oxide ends a block after 58,246 literals: some of these do so while they are flushed.
        let ends = (56_000..=66_000).step_by(1_000);
        let cases: [Vec<Vec<u8>>; 6] = [
            vec![],
            vec![vec![]],
            vec![b"a".to_vec(), vec![], b"b".to_vec()],
            vec![long.clone(), noise(1).collect(), long.clone(), b"]}\n".to_vec()],
            vec![noise(1).collect(), noise(7).collect()],
            ends.map(|length| noise(3).take(length).collect()).collect(),
        ];
        for parts in cases {
            let (all, bytes) = (parts.concat(), compressed(&parts).await);
            let (mut rest, mut one, mut any) = (bytes.as_slice(), Vec::new(), Vec::new());
            bufread::GzDecoder::new(&mut rest).read_to_end(&mut one).unwrap();
            read::MultiGzDecoder::new(bytes.as_slice())
                .read_to_end(&mut any)
                .unwrap();
            assert!(one == all && rest.is_empty() && any == all, "{} bytes", all.len());
        }
    }
}
