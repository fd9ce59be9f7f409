//! Image names, parsed as by the distribution project's `reference` package, with its error
//! messages.

use std::fmt;

use crate::content::digest::Digest;

/// Normalized image name: `docker.io/library/nginx:latest`, `registry:5000/app@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The text is not an image name. The messages are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The text does not match the grammar.
    #[error("invalid reference format")]
    Format,
    /// The path has an upper-case letter.
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    /// The name is longer than 255 characters.
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    /// 64 hexadecimal digits are an id, not a name.
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    /// The digest after `@` is invalid.
    #[error("{0}")]
    Digest(crate::content::digest::InvalidDigest),
}

const NAME_LIMIT: usize = 255;

impl Reference {
    /// Parses and normalizes: adds `docker.io`, `library/` and the tag `latest` where they are left
    /// out.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(Invalid::Identifier(text.to_owned()));
        }
        let (domain, remote) = split_domain(text);
        let (rest, digest) = match remote.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (remote.as_str(), None),
        };
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(Invalid::Uppercase(path.to_owned()));
        }
        let well_formed = is_domain(&domain) && path.split('/').all(is_component) && tag.is_none_or(is_tag);
        if !well_formed {
            return Err(Invalid::Format);
        }
        if domain.len() + 1 + path.len() > NAME_LIMIT {
            return Err(Invalid::TooLong);
        }
        let digest = match digest {
            Some(text) if is_digest_shaped(text) => Some(Digest::parse(text).map_err(Invalid::Digest)?),
            Some(_) => return Err(Invalid::Format),
            None => None,
        };
        let tag = tag
            .map(str::to_owned)
            .or_else(|| digest.is_none().then(|| "latest".to_owned()));
        Ok(Self {
            path: path.to_owned(),
            domain,
            tag,
            digest,
        })
    }

    /// The registry: `docker.io`, `registry.example:5000`.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository in the registry: `library/nginx`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag, `latest` where neither tag nor digest was given.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest after `@`.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// `domain/path`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// `domain/path:tag`, if there is a tag and no digest: a name that an image can have.
    pub fn name(&self) -> Option<String> {
        let tag = self.tag.as_ref().filter(|_| self.digest.is_none())?;
        Some(format!("{}/{}:{tag}", self.domain, self.path))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(formatter, "@{digest}")?;
        }
        Ok(())
    }
}

/// The first component is a registry if it cannot be a Docker Hub user: it has a dot, a colon or an
/// upper-case letter, or is `localhost`.
fn split_domain(text: &str) -> (String, String) {
    let (domain, remote) = match text.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        Some(_) | None => ("docker.io", text),
    };
    let domain = if domain == "index.docker.io" {
        "docker.io"
    } else {
        domain
    };
    let remote = if domain == "docker.io" && !remote.contains('/') {
        format!("library/{remote}")
    } else {
        remote.to_owned()
    };
    (domain.to_owned(), remote)
}

/// Host name, IPv4 or bracketed IPv6 address, with an optional port.
fn is_domain(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                let valid = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
                return valid && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
            }
            None => return false,
        },
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lower-case letters and digits, separated by one period, one or two underscores, or any number of
/// dashes.
fn is_component(text: &str) -> bool {
    let alphanumeric = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    if !text.starts_with(alphanumeric) || !text.ends_with(alphanumeric) {
        return false;
    }
    text.split(alphanumeric)
        .filter(|separator| !separator.is_empty())
        .all(|separator| matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

/// `algorithm:hex` with at least 32 digits, as in the grammar; the algorithm is checked later.
fn is_digest_shaped(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|first: char| first.is_ascii_alphabetic())
            && algorithm
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_'))
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match Reference::parse(text) {
            Ok(reference) => reference.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn normalises_as_upstream() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (given, wanted) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.14.2", "docker.io/library/nginx:1.14.2"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("team/app", "docker.io/team/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:1", "localhost:5000/app:1"),
            ("skiff.local/nginx:1.22.1-9", "skiff.local/nginx:1.22.1-9"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("a.b/c__d/e-f.g", "a.b/c__d/e-f.g:latest"),
            ("", "error: invalid reference format"),
            ("nginx:", "error: invalid reference format"),
            ("nginx:a b", "error: invalid reference format"),
            ("-nginx", "error: invalid reference format"),
            ("../../etc/passwd", "error: invalid reference format"),
            ("a//b", "error: invalid reference format"),
            ("nginx@sha256:12", "error: invalid reference format"),
            (
                "Nginx",
                "error: invalid reference format: repository name (library/Nginx) must be lowercase",
            ),
        ] {
            assert_eq!(shown(given), wanted, "{given:?}");
        }
        assert_eq!(
            shown(&format!("nginx@{digest}")),
            format!("docker.io/library/nginx@{digest}")
        );
        assert_eq!(
            shown(&format!("nginx:1@{digest}")),
            format!("docker.io/library/nginx:1@{digest}")
        );
        assert_eq!(
            shown(&"a".repeat(300)),
            "error: repository name must not be more than 255 characters"
        );
        let hex = "0".repeat(64);
        assert_eq!(
            shown(&hex),
            format!("error: invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings")
        );
    }
}
