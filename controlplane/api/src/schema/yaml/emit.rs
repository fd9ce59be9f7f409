//! JSON values as block-style YAML. Texts that a YAML 1.1 reader would take for another type
//! (`yes`, `2024-01-01`, `1:30`) are quoted, as upstream does for its clients.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Longest key on the same line as its value, in bytes: readers do not look further for its end.
const LONGEST_KEY: usize = 500;

/// A whole document.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => mapping(&mut out, members, 0),
        Value::Array(items) if !items.is_empty() => list(&mut out, items, 0),
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            line(&mut out, value, 0);
        }
    }
    out
}

/// Writes one item of a list, indented by `indent` columns.
pub fn item(out: &mut String, value: &Value, indent: usize) {
    pad(out, indent);
    inline_item(out, value, indent);
}

fn list(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        self::item(out, item, indent);
    }
}

/// Writes the members of a map; the first one at the current position, the others indented.
fn mapping(out: &mut String, members: &Map<String, Value>, indent: usize) {
    for (place, (key, value)) in members.iter().enumerate() {
        if place > 0 {
            pad(out, indent);
        }
        if key.len() > LONGEST_KEY {
            out.push_str("? ");
        }
        text(out, key, None);
        if key.len() > LONGEST_KEY {
            out.push('\n');
            pad(out, indent);
        }
        out.push(':');
        match value {
            Value::Object(members) if !members.is_empty() => {
                out.push('\n');
                pad(out, indent + 2);
                mapping(out, members, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                list(out, items, indent);
            }
            Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                out.push(' ');
                line(out, value, indent);
            }
        }
    }
}

fn inline_item(out: &mut String, value: &Value, indent: usize) {
    out.push_str("- ");
    match value {
        Value::Object(members) if !members.is_empty() => mapping(out, members, indent + 2),
        Value::Array(items) if !items.is_empty() => {
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    pad(out, indent + 2);
                }
                inline_item(out, item, indent + 2);
            }
        }
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            line(out, value, indent);
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a value that fits on one line.
fn line(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(value) => text(out, value, Some(indent)),
        // JSON and YAML are the same here.
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {
            out.push_str(&value.to_string());
        }
    }
    out.push('\n');
}

/// Writes a text: plain if it is unambiguous, as a block if it has lines and a block is possible,
/// otherwise quoted.
fn text(out: &mut String, value: &str, block_at: Option<usize>) {
    if is_plain(value) {
        out.push_str(value);
    } else if let Some(indent) = block_at.filter(|_| is_block(value)) {
        block(out, value, indent + 2);
    } else {
        quoted(out, value);
    }
}

/// Writes a text in JSON's quotes, also escaping what YAML does not allow.
fn quoted(out: &mut String, value: &str) {
    for character in Value::from(value).to_string().chars() {
        if is_hidden(character) {
            write!(out, "\\u{:04x}", u32::from(character)).ok();
        } else {
            out.push(character);
        }
    }
}

fn is_block(value: &str) -> bool {
    let printable = |character: char| character == '\n' || !is_hidden(character);
    value.contains('\n') && !value.starts_with([' ', '\n']) && value.chars().all(printable)
}

fn block(out: &mut String, value: &str, indent: usize) {
    let end = value.len() - value.trim_end_matches('\n').len();
    out.push_str(match end {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in value.strip_suffix('\n').unwrap_or(value).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
    }
}

/// True for control characters, line breaks of YAML that JSON lacks, the byte order mark, and
/// noncharacters.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

/// True if a plain scalar is read as the same text, by YAML 1.1 and 1.2.
fn is_plain(value: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let Some(first) = value.chars().next() else {
        return false;
    };
    let begins =
        first.is_alphabetic() || matches!(first, '/' | '_') || (first.is_ascii_digit() && !is_number_like(value));
    begins
        && !value.ends_with([' ', ':'])
        && !value.contains(": ")
        && !value.contains(" #")
        && !value.chars().any(is_hidden)
        && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(value))
}

/// True if a text could be a number, a date or a time: it has only their characters.
fn is_number_like(value: &str) -> bool {
    let has = |character: char| character.is_ascii_hexdigit() || "xXoO_+-.:TtZz ".contains(character);
    value.chars().all(has)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::document;

    #[test]
    fn it_looks_like_upstreams() {
        let value = json!({
            "a": {"list": [{"name": "x", "ports": [80, 443]}, [1, ["two"]], "three", {}], "none": [], "null": null},
            "lines": "#!/bin/sh\necho a\n\n  echo b\n",
            "open": "a\nb",
            "two": "a\n\n",
            "image": "docker.io/library/nginx:1.14.2",
            "yes": true,
        });
        let expected = "a:\n  list:\n  - name: x\n    ports:\n    - 80\n    - 443\n  - - 1\n    - - two\n  - three\n  - {}\n  \
            none: []\n  \"null\": null\nimage: docker.io/library/nginx:1.14.2\nlines: |\n  #!/bin/sh\n  echo a\n\n    \
            echo b\nopen: |-\n  a\n  b\ntwo: |+\n  a\n\n\"yes\": true\n";
        assert_eq!(document(&value), expected);
    }

    #[test]
    fn what_could_be_something_else_is_quoted() {
        for text in [
            "",
            "yes",
            "No",
            "on",
            "y",
            "null",
            "~",
            "2024-01-01",
            "1:30",
            "=",
            "<<",
            "1_000",
            "0x1f",
            "1e3",
            ".5",
            "-",
            "- a",
            "a: b",
            "a #b",
            "a:",
            " a",
            "a ",
            "{",
            "[",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "\"a",
            "'a",
            "|",
            ">",
            "?",
            "\ta",
            "\na",
            " a\nb",
            "a\r\nb",
            "2024-01-01 00:00:00",
            "+1",
            "0o7",
            "---",
            "null",
            "a\u{7}",
        ] {
            let written = document(&json!([text]));
            assert_eq!(written, format!("- {}\n", Value::from(text)));
            let read = crate::schema::yaml::to_json(written.as_bytes()).unwrap().value;
            assert_eq!(read, json!([text]));
        }
        for text in [
            "nginx:1.14.2",
            "64Mi",
            "/bin/sh",
            "a b",
            "10m",
            "it's",
            "a#b",
            "grün",
            "default-token",
            "1.2.3-rc.1",
        ] {
            assert_eq!(document(&json!([text])), format!("- {text}\n"));
        }
    }

    #[test]
    fn what_cannot_stand_is_escaped() {
        for text in [
            "a\u{85}b",
            "\u{7f}",
            "a\u{2028}",
            "\u{feff}x",
            "\u{fffe}",
            "a\n\u{ffff}",
        ] {
            let written = document(&json!([text]));
            assert!(!written.trim_end().chars().any(super::is_hidden), "{written:?}");
            assert_eq!(
                crate::schema::yaml::to_json(written.as_bytes()).unwrap().value,
                json!([text])
            );
        }
    }

    #[test]
    fn long_keys_are_keys() {
        let value = json!({ "k".repeat(3_000): { "a: b".repeat(500): [1] } });
        assert_eq!(
            crate::schema::yaml::to_json(document(&value).as_bytes()).unwrap().value,
            value
        );
    }

    proptest::proptest! {
        /// Parses the output with our own reader, which is YAML 1.1, and one of 1.2.
        #[test]
        fn what_is_written_is_read(key in "\\PC{0,6}|[a-z: #\n'\"-]{0,8}", value in "\\PC{0,8}|[a-z0-9: #\n\t'\"_.,-]{0,12}") {
            let value = json!({ "k": { (key): [value.clone(), [{ "v": value.clone() }]] }, "l": value });
            let written = document(&value);
            proptest::prop_assert_eq!(&crate::schema::yaml::to_json(written.as_bytes()).unwrap().value, &value, "{}", written);
            let other: Value = serde_yaml::from_str(&written).unwrap();
            proptest::prop_assert_eq!(&other, &value, "{}", written);
        }
    }
}
