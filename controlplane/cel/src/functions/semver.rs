//! Semantic versions (`k8s.io/apiserver/pkg/cel/library/semverlib.go`, `github.com/blang/semver/v4`).

use std::sync::Arc;

use super::Function;
use crate::value::opaque::Semver;
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "semver" => |_, args| {
            parsed(args)?
                .map(|version| Value::Semver(Arc::new(version)))
                .map_err(Error::new)
        },
        "isSemver" => |_, args| Ok(Value::Bool(parsed(args)?.is_ok())),
        "major" => |_, args| number(args, 0),
        "minor" => |_, args| number(args, 1),
        "patch" => |_, args| number(args, 2),
        _ => return None,
    })
}

fn parsed(args: &[Value<'_>]) -> Result<Result<Semver, String>, Error> {
    match args {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(Semver::parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(normalized(text).and_then(|text| Semver::parse(&text))),
        _ => Err(Error::overload()),
    }
}

fn number<'a>(args: &[Value<'a>], part: usize) -> Result<Value<'a>, Error> {
    match args {
        [Value::Semver(version)] => Ok(Value::Int(
            version
                .numbers
                .get(part)
                .and_then(|number| i64::try_from(*number).ok())
                .unwrap_or(i64::MAX),
        )),
        _ => Err(Error::overload()),
    }
}

/// Normalizes a version: adds missing numbers, removes `v` and leading zeros.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text
        .splitn(3, '.')
        .map(|part| {
            if part.len() < 2 {
                return part.to_owned();
            }
            let bare = part.trim_start_matches('0');
            if bare.starts_with(|c: char| c.is_ascii_digit()) {
                bare.to_owned()
            } else {
                format!("0{bare}")
            }
        })
        .collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

impl Semver {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = rest
            .split_once('+')
            .map_or((*rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest
            .split_once('-')
            .map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let numbers = [plain("Major", major)?, plain("Minor", minor)?, plain("Patch", patch)?];
        let mut parts = Vec::new();
        for part in pre.iter().flat_map(|pre| pre.split('.')) {
            if part.is_empty() {
                return Err("Prerelease is empty".to_owned());
            }
            if part.chars().all(|c| c.is_ascii_digit()) && part.len() > 1 && part.starts_with('0') {
                return Err(format!(
                    "Numeric PreRelease version must not contain leading zeroes {part:?}"
                ));
            }
            if !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(format!("Invalid character(s) found in prerelease {part:?}"));
            }
            parts.push(part.to_owned());
        }
        for part in build.iter().flat_map(|build| build.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self { numbers, pre: parts })
    }
}

fn plain(name: &str, text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!(
            "Invalid character(s) found in {} number {text:?}",
            name.to_lowercase()
        ));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {text:?}"));
    }
    text.parse()
        .map_err(|_range| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}
