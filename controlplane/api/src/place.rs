//! Which value of a JSON text stands at a place.

/// The keys that lead to the last value which starts before byte `end`; indices of lists are left out. The text is
/// well formed JSON.
pub(crate) fn path_before(json: &[u8], end: usize) -> Vec<String> {
    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    while at < end.min(json.len()) {
        match json.get(at) {
            Some(b'"') => {
                let close = text_end(json, at);
                if let Some(level) = levels.last_mut().filter(|level| level.expects_key) {
                    level.key = json.get(at..close).map(unquoted);
                    level.expects_key = false;
                }
                at = close;
                continue;
            }
            Some(b'{') => levels.push(Level {
                key: None,
                expects_key: true,
                is_object: true,
            }),
            Some(b'[') => levels.push(Level {
                key: None,
                expects_key: false,
                is_object: false,
            }),
            // The closing bracket of a list or an object that does not fit: the value is the whole of it.
            Some(b'}' | b']') => {
                levels.pop();
            }
            Some(b',') => {
                if let Some(level) = levels.last_mut() {
                    level.expects_key = level.is_object;
                }
            }
            _ => {}
        }
        at += 1;
    }
    levels.into_iter().filter_map(|level| level.key).collect()
}

struct Level {
    key: Option<String>,
    expects_key: bool,
    is_object: bool,
}

/// The offset behind the text that starts here.
pub(crate) fn text_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    json.len()
}

fn unquoted(text: &[u8]) -> String {
    serde_json::from_slice(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::path_before;

    #[test]
    fn names_the_value_that_starts_last() {
        let json = br#"{"a":{"b,\"c":[{"d":1},{"e":"x"}]},"f":[]}"#;
        let at = |needle: &str| {
            json.windows(needle.len())
                .position(|part| part == needle.as_bytes())
                .unwrap()
        };
        let path = |end: usize| path_before(json, end).join("/");
        assert_eq!(path(at("1}") + 1), "a/b,\"c/d");
        assert_eq!(path(at("\"x\"") + 3), "a/b,\"c/e");
        assert_eq!(path(at("[{") + 1), "a/b,\"c");
        assert_eq!(path(at("[]") + 1), "f");
        assert_eq!(path(1), "");
    }
}
