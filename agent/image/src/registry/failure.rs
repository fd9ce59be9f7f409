//! Errors of a registry.

use std::io;
use std::time::Duration;

use reqwest::StatusCode;

use super::redirects::RedirectError;
use super::token::TokenError;
use crate::content::ContentError;

/// A registry did not return the requested content.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry does not have the image.
    #[error("{0}: not found")]
    NotFound(String),
    /// The registry requires other credentials.
    #[error("pull access denied, repository does not exist or may require authorization: server message: {0}")]
    Denied(StatusCode),
    /// No token was issued.
    #[error("failed to authorize")]
    Authorize(#[source] TokenError),
    /// The registry redirects to an address that is not allowed.
    #[error("failed to do request")]
    Redirect(#[source] RedirectError),
    /// The registry answered with another status.
    #[error("unexpected status from GET request to {url}: {status}")]
    Status {
        /// Requested URL.
        url: String,
        /// Status of the answer.
        status: StatusCode,
        /// Delay from its `Retry-After` header.
        retry_after: Option<Duration>,
    },
    /// The connection failed or broke.
    #[error("failed to do request")]
    Request(#[source] reqwest::Error),
    /// The registry sends a layer too slowly.
    #[error("the registry has sent {received} bytes of a layer in {seconds} s")]
    Slow {
        /// Bytes received.
        received: u64,
        /// Time in which they were received.
        seconds: u64,
    },
    /// A file of certificate authorities could not be read.
    #[error("read the certificate authority {path:?}")]
    Authority {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content is invalid.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The configured certificates are invalid.
    #[error("trust the certificate authorities")]
    Trust(#[source] rustls::Error),
    /// Neither the registry nor any of its mirrors has the image.
    #[error("{}registry {origin:?}", told(.mirrors))]
    Everywhere {
        /// Errors of the mirrors, in the order in which they were asked.
        mirrors: Vec<(String, RegistryError)>,
        /// Registry host.
        origin: String,
        /// Error of the registry.
        source: Box<RegistryError>,
    },
}

fn told(mirrors: &[(String, RegistryError)]) -> String {
    let each = mirrors.iter();
    let each = each.map(|(host, error)| format!("mirror {host:?}: {}; ", crate::chain(error)));
    each.collect::<Vec<_>>().concat()
}

impl RegistryError {
    /// True if no connection could be established.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_connect())
    }

    /// True if other credentials may be accepted.
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Authorize(_))
    }

    /// Adds the errors of the mirrors, if any were asked.
    pub(crate) fn after_mirrors(self, mirrors: Vec<(String, Self)>, origin: &str) -> Self {
        if mirrors.is_empty() {
            return self;
        }
        Self::Everywhere {
            mirrors,
            origin: origin.to_owned(),
            source: Box::new(self),
        }
    }

    /// Delay that the registry asks for before the next attempt; `None` if another attempt cannot
    /// succeed.
    pub(crate) fn retry(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status, retry_after, ..
            } if *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                Some(retry_after.unwrap_or_default())
            }
            // Truncated or corrupted transfer.
            Self::Request(_)
            | Self::Slow { .. }
            | Self::Content(ContentError::Digest { .. } | ContentError::Size { .. } | ContentError::Io { .. }) => {
                Some(Duration::ZERO)
            }
            Self::Status { .. }
            | Self::NotFound(_)
            | Self::Denied(_)
            | Self::Authorize(_)
            | Self::Redirect(_)
            | Self::Authority { .. }
            | Self::Trust(_)
            | Self::Everywhere { .. }
            | Self::Content(_) => None,
        }
    }
}
