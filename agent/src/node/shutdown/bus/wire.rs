//! Wire format of messages.

use std::io;
use std::os::fd::OwnedFd;

/// Maximum length of a message; relevant ones have about a hundred bytes.
const LARGEST: usize = 1 << 20;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Return,
    Error,
    Signal,
}

/// Message with its body as received.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    #[allow(dead_code, reason = "who answers calls needs it, as tests do")]
    pub(crate) serial: u32,
    pub(crate) reply_to: Option<u32>,
    pub(crate) path: String,
    pub(crate) interface: String,
    pub(crate) member: String,
    pub(crate) sender: String,
    /// Error name.
    pub(crate) error: String,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Encodes a message of a type, with string fields and number fields.
pub(crate) fn encode(
    kind: u8,
    serial: u32,
    texts: &[(u8, &str, &str)],
    numbers: &[(u8, u32)],
    signature: &str,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let mut header = Writer::default();
    for (code, letter, text) in texts {
        header.field(*code, letter);
        header.string(text);
    }
    for (code, number) in numbers {
        header.field(*code, "u");
        header.number(*number);
    }
    if !signature.is_empty() {
        header.field(8, "g");
        header.signature(signature);
    }
    let mut whole = Writer(vec![b'l', kind, 0, 1]);
    whole.number(length(body)?);
    whole.number(serial);
    whole.number(length(&header.0)?);
    // Sixteen bytes so far, so the alignment of the rest is unchanged.
    whole.0.extend(&header.0);
    whole.align(8);
    whole.0.extend(body);
    Ok(whole.0)
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(io::Error::other)
}

/// Parses one message; returns it with its length and its number of file descriptors.
pub(super) fn parse(bytes: &[u8]) -> io::Result<Option<(Message, usize, usize)>> {
    let mut reader = Reader { bytes, at: 0 };
    let Some(&[order, kind, _, version]) = bytes.first_chunk::<4>() else {
        return Ok(None);
    };
    if (order, version) != (b'l', 1) {
        return Err(invalid("a message of another byte order or version"));
    }
    if bytes.len() < 16 {
        return Ok(None);
    }
    reader.at = 4;
    let (body, serial, fields) = (reader.number()?, reader.number()?, reader.number()?);
    let large = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let start = large(fields)
        .saturating_add(16)
        .checked_next_multiple_of(8)
        .unwrap_or(usize::MAX);
    let end = start.saturating_add(large(body));
    if end > LARGEST {
        return Err(invalid("a message that is too long"));
    }
    let Some(whole) = bytes.get(..end) else { return Ok(None) };
    let mut message = Message {
        kind: match kind {
            1 => Kind::Call,
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            _ => return Err(invalid("a message of another kind")),
        },
        serial,
        reply_to: None,
        path: String::new(),
        interface: String::new(),
        member: String::new(),
        sender: String::new(),
        error: String::new(),
        body: whole.get(start..).unwrap_or_default().to_vec(),
        descriptors: Vec::new(),
    };
    let mut reader = Reader {
        bytes: whole.get(..16 + large(fields)).unwrap_or_default(),
        at: 16,
    };
    let mut descriptors = 0;
    while reader.at < reader.bytes.len() {
        reader.align(8);
        let code = reader.byte()?;
        let signature = reader.signature()?;
        let (mut text, mut number) = (String::new(), 0);
        match signature.as_str() {
            "s" | "o" => text = reader.string()?,
            "g" => text = reader.signature()?,
            "u" => number = reader.number()?,
            _ => return Err(invalid("a field of another type")),
        }
        match code {
            1 => message.path = text,
            2 => message.interface = text,
            3 => message.member = text,
            4 => message.error = text,
            5 => message.reply_to = Some(number),
            7 => message.sender = text,
            9 => descriptors = large(number),
            // Destination, which is this client; signature, which the caller knows; and fields of
            // later versions.
            _ => {}
        }
    }
    Ok(Some((message, end, descriptors)))
}

impl Message {
    /// Returns the body, a boolean.
    pub(crate) fn boolean(&self) -> io::Result<bool> {
        Reader {
            bytes: &self.body,
            at: 0,
        }
        .number()
        .map(|number| number == 1)
    }

    /// Returns the body, a variant with a 64-bit unsigned number.
    pub(crate) fn variant_number(&self) -> io::Result<u64> {
        let mut reader = self.variant("t")?;
        reader.align(8);
        let bytes = reader.take(8)?;
        Ok(u64::from_le_bytes(
            *bytes.first_chunk().ok_or_else(|| invalid("a short message"))?,
        ))
    }

    /// Returns the body, a variant with a string.
    pub(crate) fn variant_string(&self) -> io::Result<String> {
        self.variant("s")?.string()
    }

    fn variant(&self, wanted: &str) -> io::Result<Reader<'_>> {
        let mut reader = Reader {
            bytes: &self.body,
            at: 0,
        };
        if reader.signature()? == wanted {
            Ok(reader)
        } else {
            Err(invalid("a value of another type"))
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| invalid("a short message"))?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        self.take(1)?.first().copied().ok_or_else(|| invalid("a short message"))
    }

    fn number(&mut self) -> io::Result<u32> {
        self.align(4);
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(
            *bytes.first_chunk().ok_or_else(|| invalid("a short message"))?,
        ))
    }

    fn text(&mut self, count: usize) -> io::Result<String> {
        let text = self.take(count)?.to_vec();
        self.take(1)?;
        String::from_utf8(text).map_err(|_bytes| invalid("a string that is no text"))
    }

    fn string(&mut self) -> io::Result<String> {
        let count = usize::try_from(self.number()?).map_err(io::Error::other)?;
        self.text(count)
    }

    fn signature(&mut self) -> io::Result<String> {
        let count = self.byte()?;
        self.text(count.into())
    }
}

/// Writes values in sequence with their alignment.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    pub(crate) fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    /// Our strings are far shorter than the maximum.
    pub(crate) fn string(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.bytes().chain([0]));
    }

    pub(crate) fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.bytes().chain([0]));
    }

    fn field(&mut self, code: u8, signature: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(body: &[u8]) -> Vec<u8> {
        let fields = [
            (1, "o", "/org/freedesktop/login1"),
            (2, "s", "org.freedesktop.login1.Manager"),
            (3, "s", "PrepareForShutdown"),
        ];
        encode(4, 7, &fields, &[(5, 3), (9, 1)], "b", body).unwrap()
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_never_before_it_is_whole() {
        let bytes = signal(&[1, 0, 0, 0]);
        for cut in 0..bytes.len() {
            assert!(parse(&bytes[..cut]).unwrap().is_none(), "{cut}");
        }
        let (message, used, descriptors) = parse(&[bytes.clone(), bytes.clone()].concat()).unwrap().unwrap();
        assert_eq!((used, descriptors), (bytes.len(), 1));
        assert_eq!(
            (message.kind, message.serial, message.reply_to),
            (Kind::Signal, 7, Some(3))
        );
        assert_eq!(message.member, "PrepareForShutdown");
        assert!(message.boolean().unwrap());
    }

    /// Each byte of a message is changed in turn to a few values: the message is rejected,
    /// incomplete or parsed.
    #[test]
    fn attack_37_a_bus_that_writes_nonsense_is_refused_or_waited_for() {
        let bytes = signal(&[0, 0, 0, 0]);
        for place in 0..bytes.len() {
            for value in [0, 1, 7, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] = value;
                if let Ok(Some((message, used, _))) = parse(&changed) {
                    assert!(used <= changed.len(), "{place} {value}");
                    drop((message.boolean(), message.variant_number(), message.variant_string()));
                }
            }
        }
        assert!(parse(&[b'B', 4, 0, 1]).is_err(), "another byte order");
        let mut long = bytes;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&long).is_err(), "more than is ever read");
    }
}
