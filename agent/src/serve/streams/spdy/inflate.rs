//! Decompression of headers: one zlib stream per connection, with a preset dictionary.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// First words of the dictionary, each of which is preceded by its length.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges \
    age allow authorization cache-control connection content-base content-encoding content-language content-length \
    content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since \
    if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate \
    proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning \
    www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin";
/// Rest of the dictionary.
const REST: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154164175025045052\
    03 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not \
    Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec \
    00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
    application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,\
    utf-,*,enq=0.";
/// Checksum of the dictionary in the header of a stream.
const IDENTITY: [u8; 4] = [0xe3, 0xc6, 0xa7, 0xc2];
/// Window size: longest distance of a back reference.
const WINDOW: usize = 32 << 10;
/// Maximum decompressed length of one block.
const BLOCK: usize = 16 << 10;

/// State of one connection.
pub(super) struct Inflater {
    state: Box<DecompressorOxide>,
    /// Last decompressed bytes, at most [`WINDOW`] of them.
    window: Vec<u8>,
    begun: bool,
}

fn dictionary() -> Vec<u8> {
    let mut all = Vec::with_capacity(WINDOW + BLOCK);
    for word in WORDS.split(' ') {
        all.extend(u32::try_from(word.len()).unwrap_or(0).to_be_bytes());
        all.extend(word.replace('_', " ").bytes());
    }
    all.extend(REST.bytes());
    all
}

impl Inflater {
    pub(super) fn new() -> Self {
        Self {
            state: Box::default(),
            window: Vec::new(),
            begun: false,
        }
    }

    /// Skips the header of the stream; its dictionary is optional.
    fn begin<'a>(&mut self, block: &'a [u8]) -> Option<&'a [u8]> {
        let (head, rest) = block.split_at_checked(2)?;
        let [method, flags] = *head.first_chunk()?;
        if method & 0x0f != 8 || !u16::from_be_bytes([method, flags]).is_multiple_of(31) {
            return None;
        }
        self.begun = true;
        if flags & 0x20 == 0 {
            return Some(rest);
        }
        let (identity, rest) = rest.split_at_checked(4)?;
        self.window = dictionary();
        (identity == IDENTITY).then_some(rest)
    }

    /// Decompresses the next block; `None` if it is malformed or too long.
    pub(super) fn inflate(&mut self, block: &[u8]) -> Option<Vec<u8>> {
        let block = if self.begun { block } else { self.begin(block)? };
        let before = self.window.len();
        self.window.resize(before + BLOCK, 0);
        let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, read, written) = decompress(&mut self.state, block, &mut self.window, before, flags);
        self.window.truncate(before + written);
        if status != TINFLStatus::NeedsMoreInput || read != block.len() {
            return None;
        }
        let plain = self.window.get(before..)?.to_vec();
        let surplus = self.window.len().saturating_sub(WINDOW);
        self.window.drain(..surplus);
        Some(plain)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::headers;
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    #[test]
    fn blocks_of_zlib_with_the_dictionary_are_read() {
        let mut inflater = Inflater::new();
        let first = bytes(
            "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45a024cc64610024398b209198094adc8c0600000000ffff",
        );
        let first = headers(&inflater.inflate(&first).unwrap()).unwrap();
        let second = headers(&inflater.inflate(&bytes("c2aa15540a2512d209000000ffff")).unwrap()).unwrap();
        let read = |headers: &super::super::frame::Headers| {
            headers
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(read(&first), ["port=80", "requestid=0", "streamtype=error"]);
        assert_eq!(read(&second), ["port=80", "requestid=0", "streamtype=data"]);
    }

    #[test]
    fn our_own_replies_are_such_blocks() {
        let mut inflater = Inflater::new();
        for (stream, first) in [(1, true), (3, false), (5, false)] {
            let frame = super::super::frame::reply(stream, first);
            let plain = inflater.inflate(&frame[12..]).unwrap();
            assert_eq!(headers(&plain).map(|headers| headers.len()), Some(0));
        }
    }

    #[test]
    fn attack_05_a_block_that_grows_without_end_is_refused() {
        // Two bits for each run of 258 zeros.
        let mut bomb = vec![
            0x78, 0x9c, 0xec, 0xc1, 0x01, 0x01, 0x00, 0x00, 0x00, 0x80, 0x90, 0xfe, 0xaf, 0xee, 0x08, 0x0a,
        ];
        bomb.extend([0; 4096]);
        assert_eq!(Inflater::new().inflate(&bomb), None);
    }

    proptest! {
        #[test]
        fn attack_no_bytes_break_the_decompression(blocks: Vec<Vec<u8>>, proper: bool) {
            let mut inflater = Inflater::new();
            if proper {
                inflater.inflate(&[0x78, 0x01]);
            }
            for block in blocks {
                if let Some(plain) = inflater.inflate(&block) {
                    prop_assert!(plain.len() <= BLOCK);
                }
                prop_assert!(inflater.window.len() <= WINDOW + BLOCK);
            }
        }
    }
}
