//! The wire format: varints, fixed sizes and byte strings.

use super::ProtobufError;

/// Field in its wire format.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'b [u8]),
}

impl Wire<'_> {
    pub(super) fn wire_type(self) -> u8 {
        match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32 => 5,
        }
    }
}

/// Reads the fields of a message one after the other.
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    /// Number and value of the next field; none at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire<'b>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_too_large| ProtobufError::Overflow)?;
        if number == 0 {
            return Err(ProtobufError::IllegalTag);
        }
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.take(8)?.try_into().map(u64::from_le_bytes).unwrap_or_default()),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).map_err(|_too_large| ProtobufError::UnexpectedEnd)?)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            other => return Err(ProtobufError::IllegalWireType(u8::try_from(other).unwrap_or(7))),
        };
        Ok(Some((number, value)))
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(ProtobufError::UnexpectedEnd)?;
            self.0 = rest;
            let bits = u64::from(first & 0x7f);
            value |= bits.checked_shl(shift).ok_or(ProtobufError::Overflow)?;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overflow)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], ProtobufError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::UnexpectedEnd)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Writes one message.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn varint(&mut self, number: u32, value: u64) {
        self.tag(number, 0);
        self.raw_varint(value);
    }

    pub(crate) fn fixed64(&mut self, number: u32, value: u64) {
        self.tag(number, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, number: u32, value: &[u8]) {
        self.tag(number, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Writes a message whose only field is a string or bytes: quantities, embedded objects.
    pub(crate) fn message_of_bytes(&mut self, number: u32, value: &[u8]) {
        self.tag(number, 2);
        self.raw_varint(field_length(value.len()) as u64);
        self.bytes(1, value);
    }

    /// Writes a message whose length is known only afterwards.
    pub(crate) fn nested<E>(&mut self, number: u32, write: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        self.tag(number, 2);
        let at = self.0.len();
        // Most messages are short: their length takes one byte.
        self.0.push(0);
        write(self)?;
        let end = self.0.len();
        let length = (end - at - 1) as u64;
        let more = varint_length(length) - 1;
        self.0.resize(end + more, 0);
        self.0.copy_within(at + 1..end, at + 1 + more);
        let mut digits = Self::default();
        digits.raw_varint(length);
        if let Some(place) = self.0.get_mut(at..at + digits.0.len()) {
            place.copy_from_slice(&digits.0);
        }
        Ok(())
    }

    pub(crate) fn tag(&mut self, number: u32, wire_type: u64) {
        self.raw_varint(u64::from(number) << 3 | wire_type);
    }

    pub(crate) fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or_default());
    }
}

/// Encoded size of a field of bytes with a number below 16.
pub(super) fn field_length(value: usize) -> usize {
    1 + varint_length(value as u64) + value
}

/// Encoded size of a varint: seven bits per byte.
fn varint_length(value: u64) -> usize {
    let bits = (u64::BITS - (value | 1).leading_zeros()) as usize;
    bits.div_ceil(7)
}
