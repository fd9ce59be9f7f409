//! Registry credentials from pull secrets.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use reqwest::header::HeaderValue;
use serde::Deserialize;

use crate::reference::{self, Reference};

/// User name and password (or token) for one registry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl Credentials {
    /// Value of an `Authorization` header.
    pub(crate) fn basic(&self) -> Option<HeaderValue> {
        let encoded = STANDARD.encode(format!("{}:{}", self.username, self.password));
        let mut value = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// A pull secret could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The pull secret is not a Docker configuration.
    #[error("parse the pull secret")]
    Format(#[source] serde_json::Error),
    /// The image name is invalid.
    #[error("parse the image name")]
    Reference(#[source] reference::Invalid),
}

/// Entries by registry. A `null` is an absent value everywhere, as in Go
/// (`pkg/credentialprovider/config.go`).
type Auths = BTreeMap<String, Option<Auth>>;

#[derive(Deserialize)]
struct DockerConfig {
    /// Required, though it may be `null`: the older format has no such key.
    #[serde(deserialize_with = "Option::deserialize")]
    auths: Option<Auths>,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(rename = "auth")]
    encoded: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// Credentials in a pull secret that apply to this image, the longest matching registry path
    /// first.
    ///
    /// Takes the data of `.dockerconfigjson` or of the older `.dockercfg`. As in the kubelet, a key
    /// may have a scheme, a path, and `*` for one label of the host name.
    pub fn for_image(secret: &[u8], image: &str) -> Result<Vec<Self>, CredentialsError> {
        let reference = Reference::parse(image).map_err(CredentialsError::Reference)?;
        let auths = match serde_json::from_slice::<DockerConfig>(secret) {
            Ok(config) => config.auths.unwrap_or_default(),
            Err(_) => serde_json::from_slice::<Auths>(secret).map_err(CredentialsError::Format)?,
        };
        let target = format!("{}/{}", reference.domain(), reference.path());
        let mut found: Vec<(usize, Self)> = auths
            .into_iter()
            .filter(|(key, _)| matches(key, &target))
            .filter_map(|(key, auth)| Some((key.len(), auth?.into_credentials()?)))
            .collect();
        found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
        Ok(found.into_iter().map(|(_, credentials)| credentials).collect())
    }
}

impl Auth {
    fn into_credentials(self) -> Option<Credentials> {
        let Some(encoded) = self.encoded.filter(|encoded| !encoded.is_empty()) else {
            return Some(Credentials {
                username: self.username.filter(|username| !username.is_empty())?,
                password: self.password.unwrap_or_default(),
            });
        };
        // Padded or not (`decodeDockerConfigFieldAuth`, `pkg/credentialprovider/config.go`).
        let bare = encoded.trim().trim_end_matches('=');
        let decoded = String::from_utf8(STANDARD_NO_PAD.decode(bare).ok()?).ok()?;
        let (username, password) = decoded.split_once(':')?;
        Some(Credentials {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
        })
    }
}

/// True if `key` (`https://index.docker.io/v1/`, `*.example.org`, `ghcr.io/team`) matches `target`
/// (`domain/path`).
fn matches(key: &str, target: &str) -> bool {
    let key = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let key = key.trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let hub = matches!(host, "index.docker.io" | "registry-1.docker.io" | "docker.io");
    let host = if hub { "docker.io" } else { host };
    // The version of the registry API is not part of a repository's name.
    let path = match path.split_once('/') {
        Some(("v1" | "v2", rest)) => rest,
        None if matches!(path, "v1" | "v2") => "",
        Some(_) | None => path,
    };
    let (target_host, target_path) = target.split_once('/').unwrap_or((target, ""));
    let labels: Vec<&str> = host.split('.').collect();
    let target_labels: Vec<&str> = target_host.split('.').collect();
    let host_matches = labels.len() == target_labels.len()
        && labels
            .iter()
            .zip(&target_labels)
            .all(|(pattern, label)| covers(pattern, label));
    let path_matches = path.is_empty()
        || target_path
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    host_matches && path_matches
}

/// True if a label matches a pattern, in which each `*` stands for any characters.
fn covers(pattern: &str, label: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == label;
    };
    let Some(mut left) = label.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = left.split_once(part) else {
            return false;
        };
        left = after;
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(secret: &str, image: &str) -> Vec<String> {
        Credentials::for_image(secret.as_bytes(), image)
            .unwrap()
            .into_iter()
            .map(|found| found.username)
            .collect()
    }

    #[test]
    fn picks_the_registry_of_the_image() {
        let secret = r#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"aHViOnNlY3JldA=="},
            "registry.example:5000":{"username":"example","password":"p"},
            "registry.example:5000/team":{"username":"team","password":"p"},
            "*.cloud.example":{"username":"wild","password":"p"}}}"#;
        assert_eq!(names(secret, "nginx"), ["hub"]);
        assert_eq!(names(secret, "registry.example:5000/team/app"), ["team", "example"]);
        assert_eq!(names(secret, "registry.example:5000/teams/app"), ["example"]);
        assert_eq!(names(secret, "eu.cloud.example/x"), ["wild"]);
        assert!(names(secret, "other.example/x").is_empty());
        let versions = r#"{"auths":{
            "http://registry.example:5000/v1/":{"username":"one","password":"p"},
            "https://registry.example:5000/v2/team/":{"username":"two","password":"p"},
            "reg*.ex*le:5000":{"username":"glob","password":"p"}}}"#;
        assert_eq!(
            names(versions, "registry.example:5000/team/app"),
            ["two", "one", "glob"]
        );
        assert_eq!(names(versions, "registry.example:5000/other"), ["one", "glob"]);
        assert!(names(versions, "registry.example:5001/other").is_empty());
        assert_eq!(
            [
                covers("a*b*c", "aXbYc"),
                covers("a*b*c", "abc"),
                covers("a*b", "a"),
                covers("*", "")
            ],
            [true, true, false, true]
        );
        assert_eq!(
            names(r#"{"docker.io":{"username":"old","password":"p"}}"#, "nginx"),
            ["old"]
        );
    }

    #[test]
    fn auth_comes_first_and_needs_no_padding() {
        for (entry, expected) in [
            (r#"{"auth":"YWI6Yw=="}"#, "ab"),
            (r#"{"auth":"YWI6Yw"}"#, "ab"),
            (r#"{"auth":"YTpi","username":"other","password":"p"}"#, "a"),
            (r#"{"auth":"","username":"other","password":"p"}"#, "other"),
            (r#"{"auth":null,"username":"other","password":null}"#, "other"),
        ] {
            let secret = format!(r#"{{"auths":{{"r.example":{entry}}}}}"#);
            assert_eq!(names(&secret, "r.example/x"), [expected], "{entry}");
        }
    }

    #[test]
    fn an_entry_without_credentials_spoils_no_other() {
        for entry in [
            "null",
            "{}",
            r#"{"auth":null}"#,
            r#"{"auth":"","email":"e"}"#,
            r#"{"username":null}"#,
        ] {
            let rest = r#""r.example":{"auth":"YTpi"}"#;
            for secret in [
                format!(r#"{{"auths":{{"r.example/x":{entry},{rest}}}}}"#),
                format!(r#"{{"r.example/x":{entry},{rest}}}"#),
            ] {
                assert_eq!(names(&secret, "r.example/x"), ["a"], "{secret}");
            }
        }
        for nothing in [r#"{"auths":null}"#, r#"{"auths":{},"credsStore":"pass"}"#, "{}"] {
            assert!(names(nothing, "r.example/x").is_empty(), "{nothing}");
        }
    }

    #[test]
    fn never_shows_the_password() {
        let credentials = Credentials {
            username: "me".into(),
            password: "secret".into(),
        };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
