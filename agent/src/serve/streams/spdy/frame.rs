//! Frames of SPDY/3.1: parser and encoder, without I/O.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

/// Length of a frame's header.
pub(super) const HEAD: usize = 8;
/// Flag of the sender's last frame of a stream.
pub(super) const FIN: u8 = 1;
/// Status code of a `RST_STREAM` frame: protocol error.
pub(super) const PROTOCOL_ERROR: u32 = 1;
/// Status code of a `RST_STREAM` frame: stream refused.
pub(super) const REFUSED: u32 = 3;

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;
/// The highest bit is reserved.
const STREAM: u32 = 0x7fff_ffff;

/// Type of a frame, from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Data { stream: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
    OtherVersion,
}

/// Control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control<'a> {
    SynStream {
        stream: u32,
        block: &'a [u8],
    },
    Headers {
        block: &'a [u8],
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    /// `SETTINGS`, `WINDOW_UPDATE` and `GOAWAY`: ignored.
    Other,
}

/// Header names in lower case.
pub(in super::super) type Headers = BTreeMap<String, String>;

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*four))
}

pub(super) fn head(bytes: [u8; HEAD]) -> Head {
    let [high, low] = [0, 4].map(|at| number(&bytes, at).unwrap_or_default());
    let [flags, ..] = low.to_be_bytes();
    let length = usize::try_from(low & 0x00ff_ffff).unwrap_or(usize::MAX);
    if high & !STREAM == 0 {
        let fin = flags & FIN != 0;
        return Head::Data {
            stream: high,
            fin,
            length,
        };
    }
    let version = (high & STREAM) >> 16;
    match u16::try_from(high & 0xffff) {
        Ok(kind) if version == u32::from(VERSION) => Head::Control { kind, flags, length },
        Ok(_) | Err(_) => Head::OtherVersion,
    }
}

/// Parses the payload of a control frame; `None` if it is too short.
pub(super) fn control(kind: u16, payload: &[u8]) -> Option<Control<'_>> {
    Some(match kind {
        SYN_STREAM => Control::SynStream {
            stream: number(payload, 0)? & STREAM,
            block: payload.get(10..)?,
        },
        // Clients open all streams; a reply has a header block too.
        SYN_REPLY | HEADERS => Control::Headers {
            block: payload.get(4..)?,
        },
        RST_STREAM => Control::Reset {
            stream: number(payload, 0)? & STREAM,
        },
        PING => Control::Ping {
            id: number(payload, 0)?,
        },
        _ => Control::Other,
    })
}

/// Parses a header block. Of several values of a name, the first is used.
pub(super) fn headers(block: &[u8]) -> Option<Headers> {
    let mut found = Headers::new();
    let mut at = 4;
    let mut text = || {
        let length = usize::try_from(number(block, at)?).ok()?;
        let bytes = block.get(at + 4..)?.get(..length)?;
        at += 4 + length;
        std::str::from_utf8(bytes).ok()
    };
    for _ in 0..number(block, 0)? {
        let (name, value) = (text()?, text()?);
        let value = value.split('\0').next().unwrap_or_default();
        found.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Some(found)
}

fn make(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u16(0x8000 | VERSION);
    frame.put_u16(kind);
    frame.put_u8(0);
    frame.put_uint(payload.len() as u64, 3);
    frame.put_slice(payload);
    frame.freeze()
}

fn numbers(first: u32, second: u32) -> [u8; 8] {
    (u64::from(first) << 32 | u64::from(second)).to_be_bytes()
}

/// Encodes the header of a data frame.
pub(super) fn data(stream: u32, flags: u8, length: usize) -> [u8; HEAD] {
    // Chunks are far shorter than the maximum of 24 bits.
    let length = u32::try_from(length).unwrap_or(0) & 0x00ff_ffff;
    numbers(stream & STREAM, u32::from(flags) << 24 | length)
}

pub(super) fn reset(stream: u32, why: u32) -> Bytes {
    make(RST_STREAM, &numbers(stream, why))
}

pub(super) fn ping(id: u32) -> Bytes {
    make(PING, &id.to_be_bytes())
}

pub(super) fn window_update(stream: u32, length: usize) -> Bytes {
    make(WINDOW_UPDATE, &numbers(stream, u32::try_from(length).unwrap_or(0)))
}

/// Appends a header block without headers. It consists of stored blocks, which keep no state; the
/// first one of a connection begins with the zlib header.
fn without_headers(mut payload: Vec<u8>, first: bool) -> Vec<u8> {
    /// Stored block with the number 0, and an empty one (a sync flush).
    const NONE: [u8; 14] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if first {
        payload.extend([0x78, 0x01]);
    }
    payload.extend(NONE);
    payload
}

/// Encodes a `SYN_REPLY`.
pub(super) fn reply(stream: u32, first: bool) -> Bytes {
    make(SYN_REPLY, &without_headers(stream.to_be_bytes().to_vec(), first))
}

/// Encodes a `SYN_STREAM`, as a client. The stream has no associated stream and no priority.
#[cfg(test)]
pub(super) fn open(stream: u32, first: bool) -> Bytes {
    let mut payload = numbers(stream, 0).to_vec();
    payload.extend([0, 0]);
    make(SYN_STREAM, &without_headers(payload, first))
}

/// Encodes a `GOAWAY`: `stream` was the last accepted one.
pub(super) fn goodbye(stream: u32) -> Bytes {
    make(GOAWAY, &numbers(stream, 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_are_read_as_they_are_made() {
        assert_eq!(
            head(data(7, FIN, 70_000)),
            Head::Data {
                stream: 7,
                fin: true,
                length: 70_000
            }
        );
        let frame = reset(9, REFUSED);
        let first = head(*frame.first_chunk().unwrap());
        assert_eq!(
            first,
            Head::Control {
                kind: RST_STREAM,
                flags: 0,
                length: 8
            }
        );
        assert_eq!(control(RST_STREAM, &frame[HEAD..]), Some(Control::Reset { stream: 9 }));
        assert_eq!(control(PING, &ping(5)[HEAD..]), Some(Control::Ping { id: 5 }));
        assert_eq!(head([0x80, 2, 0, 1, 0, 0, 0, 0]), Head::OtherVersion);
    }

    #[test]
    fn headers_are_read_and_lies_about_lengths_refused() {
        let mut block = vec![0, 0, 0, 1];
        for text in ["StreamType", "error\0other"] {
            block.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            block.extend(text.as_bytes());
        }
        assert_eq!(headers(&block).unwrap()["streamtype"], "error");
        assert_eq!(headers(&block[..block.len() - 1]), None);
        assert_eq!(headers(&[0xff; 12]), None);
    }

    proptest! {
        #[test]
        fn attack_no_bytes_break_the_reader(kind: u16, bytes: Vec<u8>, first: [u8; HEAD]) {
            head(first);
            control(kind, &bytes);
            headers(&bytes);
        }
    }
}
