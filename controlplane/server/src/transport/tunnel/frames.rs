//! Boundaries of WebSocket frames (RFC 6455, section 5.2).

/// The bytes of a head before the length's longer forms and the mask.
const SHORT: usize = 2;

/// Follows the frames of one direction, however they are cut up.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The head of a frame, as far as it came.
    head: [u8; 14],
    known: usize,
    /// Remaining payload of a frame whose head is complete.
    payload: u64,
}

impl Frames {
    /// Number of the next bytes that belong to the current frame; 0 only when there are none.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        if self.payload == 0 {
            for byte in bytes {
                if let Some(place) = self.head.get_mut(self.known) {
                    *place = *byte;
                }
                self.known += 1;
                taken += 1;
                if let Some(payload) = self.complete() {
                    self.known = 0;
                    self.payload = payload;
                    break;
                }
            }
        }
        let left = bytes.len().saturating_sub(taken);
        let more = usize::try_from(self.payload).unwrap_or(usize::MAX).min(left);
        self.payload = self.payload.saturating_sub(more.try_into().unwrap_or(u64::MAX));
        taken + more
    }

    /// The payload's length when the head is complete.
    fn complete(&self) -> Option<u64> {
        let head = self.head.get(..self.known)?;
        let second = *head.get(1)?;
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let (width, short) = match second & 0x7f {
            126 => (2, 0),
            127 => (8, 0),
            short => (0, u64::from(short)),
        };
        let long = head.get(SHORT..SHORT + width)?;
        (self.known == SHORT + width + mask)
            .then(|| long.iter().fold(short, |length, byte| (length << 8) | u64::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

    use super::Frames;

    fn frame(length: usize, mask: bool) -> Vec<u8> {
        let bit = if mask { 0x80 } else { 0 };
        let mut frame = vec![0x82];
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short), _) if short < 126 => frame.push(short | bit),
            (_, Ok(middle)) => {
                frame.push(0x7e | bit);
                frame.extend(middle.to_be_bytes());
            }
            _ => {
                frame.push(0x7f | bit);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(vec![7; if mask { 4 } else { 0 }]);
        frame.extend(vec![0xff; length]);
        frame
    }

    #[test]
    fn every_frame_is_found_however_the_bytes_come() {
        let lengths = [0, 1, 125, 126, 127, 65_535, 65_536, 0, 0, 3];
        let frames: Vec<Vec<u8>> = lengths
            .iter()
            .flat_map(|length| [frame(*length, false), frame(*length, true)])
            .collect();
        let all = frames.concat();
        let ends: Vec<usize> = frames
            .iter()
            .scan(0, |end, frame| {
                *end += frame.len();
                Some(*end)
            })
            .collect();
        for chunk in [1, 2, 3, 7, 1000, all.len()] {
            let (mut found, mut at, mut follower) = (Vec::new(), 0, Frames::default());
            for bytes in all.chunks(chunk) {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let length = follower.advance(rest);
                    assert!(length > 0, "chunks of {chunk}: stuck at {at}");
                    at += length;
                    rest = &rest[length..];
                    if follower.known == 0 && follower.payload == 0 {
                        found.push(at);
                    }
                }
            }
            assert_eq!(found, ends, "chunks of {chunk}");
        }
    }
}
