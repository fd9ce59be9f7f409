//! Why an image could not be pulled.

use std::io;
use std::time::Duration;

use reqwest::StatusCode;

use crate::content::ContentError;
use crate::redirects::RedirectError;
use crate::reference;
use crate::store::StoreError;
use crate::token::TokenError;

/// An image could not be pulled. The texts are containerd's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name is invalid.
    #[error("Failed to apply default image tag {name:?}: couldn't parse image name {name:?}")]
    Name {
        /// The name as it was given.
        name: String,
        /// What is wrong with it.
        source: reference::Invalid,
    },
    /// The registry did not say what the name stands for.
    #[error("failed to pull and unpack image {image:?}: failed to resolve reference {image:?}")]
    Resolve {
        /// The full name.
        image: String,
        /// Why.
        source: RegistryError,
    },
    /// Something of the image could not be had, or is not what it should be.
    #[error("failed to pull and unpack image {image:?}")]
    Fetch {
        /// The full name.
        image: String,
        /// Why.
        source: RegistryError,
    },
    /// The store refused.
    #[error("failed to pull and unpack image {image:?}")]
    Store {
        /// The full name.
        image: String,
        /// Why.
        source: StoreError,
    },
    /// It took too long.
    #[error("failed to pull and unpack image {image:?}: not complete after {seconds} s")]
    Deadline {
        /// The full name.
        image: String,
        /// The bound in seconds.
        seconds: u64,
    },
}

impl PullError {
    /// The reason of a container that waits because of this: `ErrImagePull` or `InvalidImageName`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name { .. } => "InvalidImageName",
            Self::Resolve { .. } | Self::Fetch { .. } | Self::Store { .. } | Self::Deadline { .. } => "ErrImagePull",
        }
    }

    /// The text, sources included, as far as a pod's status has room for it: parts of it are a registry's.
    pub fn message(&self) -> String {
        const LONGEST: usize = 4096;
        let mut text = crate::chain(self);
        text.truncate(text.floor_char_boundary(LONGEST));
        text
    }
}

/// A registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It has no such image.
    #[error("{0}: not found")]
    NotFound(String),
    /// It wants credentials, or others.
    #[error("pull access denied, repository does not exist or may require authorization: server message: {0}")]
    Denied(StatusCode),
    /// It gave no token.
    #[error("failed to authorize")]
    Authorize(#[source] TokenError),
    /// It redirects to where it is not followed.
    #[error("failed to do request")]
    Redirect(#[source] RedirectError),
    /// It answered with another failure.
    #[error("unexpected status from GET request to {url}: {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The answer.
        status: StatusCode,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It could not be reached, or the connection broke.
    #[error("failed to do request")]
    Request(#[source] reqwest::Error),
    /// It sends a layer, but hardly.
    #[error("the registry has sent {received} bytes of a layer in {seconds} s")]
    Slow {
        /// What came.
        received: u64,
        /// In which time.
        seconds: u64,
    },
    /// A certificate authority could not be read.
    #[error("read the certificate authority {path:?}")]
    Authority {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it gave is not what it should be.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// What was given to be trusted of it cannot be.
    #[error("trust the certificate authorities")]
    Trust(#[source] rustls::Error),
    /// Neither it nor any of its mirrors gave the image.
    #[error("{}registry {origin:?}", told(.mirrors))]
    Everywhere {
        /// The mirrors, in the order in which they were asked.
        mirrors: Vec<(String, RegistryError)>,
        /// The registry.
        origin: String,
        /// What it answered.
        source: Box<RegistryError>,
    },
}

fn told(mirrors: &[(String, RegistryError)]) -> String {
    let each = mirrors.iter();
    let each = each.map(|(host, error)| format!("mirror {host:?}: {}; ", crate::chain(error)));
    each.collect::<Vec<_>>().concat()
}

impl RegistryError {
    /// Whether no connection came about at all.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_connect())
    }

    /// With what the mirrors, if any were asked before, answered.
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

    /// Whether another try may go better, and the time that the registry wants to be left alone.
    pub(crate) fn retry(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status, retry_after, ..
            } if *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                Some(retry_after.unwrap_or_default())
            }
            // A truncated or garbled transfer.
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
