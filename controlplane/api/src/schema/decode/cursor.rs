//! Cursor over JSON that is known to be well-formed.

use std::borrow::Cow;

/// The text is not JSON after all.
pub(super) struct Malformed;

/// Type of a value that is not read further, as Go calls it.
pub(super) enum Found<'j> {
    Null,
    Bool,
    Number(&'j str),
    Text(Cow<'j, str>),
    List,
    Object,
}

/// Position in a text.
pub(super) struct Cursor<'j> {
    /// The text.
    pub(super) json: &'j [u8],
    /// The offset of the next byte.
    pub(super) at: usize,
}

impl<'j> Cursor<'j> {
    pub(super) fn peek(&mut self) -> Result<u8, Malformed> {
        while self.json.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.json.get(self.at).copied().ok_or(Malformed)
    }

    /// Reads one value; of lists and objects only the type.
    pub(super) fn scalar(&mut self) -> Result<Found<'j>, Malformed> {
        let json: &'j [u8] = self.json;
        let first = self.peek()?;
        let start = self.at;
        if first == b'"' {
            return self.string().map(Found::Text);
        }
        if matches!(first, b'{' | b'[') {
            self.skip()?;
            return Ok(if first == b'{' { Found::Object } else { Found::List });
        }
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        while self.json.get(self.at).is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
        let word = json.get(start..self.at).unwrap_or_default();
        if word.is_empty() {
            return Err(Malformed);
        }
        match first {
            b't' | b'f' => Ok(Found::Bool),
            b'n' => Ok(Found::Null),
            _ => std::str::from_utf8(word).map(Found::Number).or(Err(Malformed)),
        }
    }

    /// Reads a string; copies it only if it has escapes.
    pub(super) fn string(&mut self) -> Result<Cow<'j, str>, Malformed> {
        let (json, start): (&'j [u8], _) = (self.json, self.at);
        self.skip_string()?;
        let text = json.get(start..self.at).unwrap_or_default();
        match text {
            [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => {
                std::str::from_utf8(inner).map(Cow::Borrowed).or(Err(Malformed))
            }
            _ => serde_json::from_slice(text).map(Cow::Owned).or(Err(Malformed)),
        }
    }

    pub(super) fn skip_string(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        loop {
            match self.json.get(self.at).ok_or(Malformed)? {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => self.at += 1,
            }
        }
    }

    /// Skips one value of any depth.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1).ok_or(Malformed)?;
                    self.at += 1;
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.scalar()?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}
