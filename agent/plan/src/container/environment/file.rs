//! Variables from files (`fileKeyRef`): `NAME='value'` in shell syntax.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, FileKeySelector};

use super::ReferenceError;

/// State of a file that a variable names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// The file does not exist.
    Absent,
    /// The file cannot be read, with the reason.
    Unreadable(String),
    /// The file's text.
    Text(String),
}

/// By the volume's name and the path in it.
pub type Files = BTreeMap<(String, String), File>;

/// Returns the files that a container's variables refer to, by volume and path.
pub fn wanted(container: &Container) -> impl Iterator<Item = (&str, &str)> {
    let variables = container.env.iter().flatten();
    variables
        .filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref())
        .map(|file| (file.volume_name.as_str(), file.path.as_str()))
}

/// Returns the value of a selector; `None` if it is optional and missing.
pub(super) fn value(selector: &FileKeySelector, files: &Files) -> Result<Option<String>, ReferenceError> {
    let optional = selector.optional == Some(true);
    let path = &selector.path;
    let failed = |why: String| Err(ReferenceError::File(why));
    let text = match files.get(&(selector.volume_name.clone(), path.clone())) {
        Some(File::Text(text)) => text,
        Some(File::Absent) if optional => return Ok(None),
        Some(File::Absent) | None => {
            return failed(format!(
                "failed to open environment variable file {path:?}: no such file or directory"
            ));
        }
        Some(File::Unreadable(why)) => {
            return failed(format!("failed to open environment variable file {path:?}: {why}"));
        }
    };
    match find(text, &selector.key) {
        Ok(Some(value)) => Ok(Some(value)),
        Ok(None) if optional => Ok(None),
        Ok(None) => failed(format!(
            "environment variable key {:?} not found in file {path:?}",
            selector.key
        )),
        Err(why) => failed(format!("failed to parse environment variable file {path:?}: {why}")),
    }
}

/// Returns the first value of a key. Values are in single quotes and may have several lines;
/// comments may follow. The text after the key is not parsed.
fn find(text: &str, key: &str) -> Result<Option<String>, String> {
    let wrong = |line: usize, what: &str| Err(format!("invalid environment variable format at line {line}: {what}"));
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, rest)) = line.split_once('=') else {
            return wrong(number, "missing '='");
        };
        let trimmed = name.trim_end_matches([' ', '\t']);
        if trimmed.is_empty() {
            return wrong(number, "empty variable name");
        }
        if trimmed != name {
            return wrong(number, "whitespace before '=' is not allowed");
        }
        if rest.starts_with([' ', '\t']) {
            // A shell would set it to the empty string.
            if name == key {
                return Ok(Some(String::new()));
            }
            continue;
        }
        let Some(mut rest) = rest.strip_prefix('\'') else {
            return wrong(number, "value must be enclosed in single quotes");
        };
        let mut value = String::new();
        let mut last = number;
        let after = loop {
            if let Some((inside, after)) = rest.split_once('\'') {
                value.push_str(inside);
                break after.trim_start_matches([' ', '\t']);
            }
            value.push_str(rest);
            value.push('\n');
            let Some((next, at)) = lines.next() else {
                return Err(format!(
                    "invalid environment variable format starting at line {number}: unclosed single quote"
                ));
            };
            (rest, last) = (next, at);
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong(last, "unexpected content after closing quote");
        }
        if name == key {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_a_shell_reads_it() {
        let text = "# of the day\n\n  A='one two' # yes\nB='first\nsecond'\nC=''\nD= 'x'\nA='late'\n";
        let found = |key: &str| find(text, key).unwrap();
        assert_eq!(found("A").as_deref(), Some("one two"));
        assert_eq!(found("B").as_deref(), Some("first\nsecond"));
        assert_eq!(found("C").as_deref(), Some(""));
        assert_eq!(found("D").as_deref(), Some(""));
        assert_eq!(found("E"), None);
        let at = "invalid environment variable format";
        for (text, why) in [
            ("A", format!("{at} at line 1: missing '='")),
            ("B='b'\n='x'", format!("{at} at line 2: empty variable name")),
            (
                "A ='x'",
                format!("{at} at line 1: whitespace before '=' is not allowed"),
            ),
            (
                "A=x",
                format!("{at} at line 1: value must be enclosed in single quotes"),
            ),
            (
                "B='b'\nA='x\ny",
                format!("{at} starting at line 2: unclosed single quote"),
            ),
            (
                "A='x\ny' z",
                format!("{at} at line 2: unexpected content after closing quote"),
            ),
        ] {
            assert_eq!(find(text, "A"), Err(why), "{text}");
        }
    }

    #[test]
    fn what_need_not_be_there_is_left_out() {
        let selector = |key: &str, optional: bool| FileKeySelector {
            key: key.to_owned(),
            optional: Some(optional),
            path: "a.env".to_owned(),
            volume_name: "v".to_owned(),
        };
        let files = |file: File| Files::from([(("v".to_owned(), "a.env".to_owned()), file)]);
        let told = |key: &str, optional: bool, file: File| {
            value(&selector(key, optional), &files(file)).map_err(|error| error.to_string())
        };
        let text = || File::Text("A='a'".to_owned());
        assert_eq!(told("A", false, text()), Ok(Some("a".to_owned())));
        assert_eq!(told("B", true, text()), Ok(None));
        let why = "environment variable key \"B\" not found in file \"a.env\"";
        assert_eq!(told("B", false, text()), Err(why.to_owned()));
        assert_eq!(told("A", true, File::Absent), Ok(None));
        let why = "failed to open environment variable file \"a.env\": no such file or directory";
        assert_eq!(told("A", false, File::Absent), Err(why.to_owned()));
    }
}
