//! Container images of a node: pulled from registries or imported from archives, verified by
//! digest, each layer unpacked once: into a directory that overlayfs can use as a lower layer, or
//! by a containerd into a snapshot of its own.
//!
//! ```text
//! reference ─► registry | archive ─► index ─► manifest ─► config, layers ─► staging/… ┬► layers/CHAIN-ID ─► index.json
//!                                                                                     └► content ─► snapshot ─► image (containerd)
//! ```
//!
//! All content from a registry or an archive is untrusted until its digest and its size have been
//! checked, and stays confined afterwards: the unpacker works relative to the directory of the
//! layer, and no symbolic link leads it out of that. A layer appears under its final name only when it is
//! complete and on disk.

mod config;
mod content;
mod export;
mod failure;
pub mod fuzzing;
mod import;
mod pull;
pub mod reference;
mod registry;
mod store;

pub use config::{Config, Limits, Registry};
pub use content::ContentError;
pub use content::digest::{Digest, InvalidDigest};
pub use content::unpack::UnpackError;
pub use export::ExportError;
pub use failure::PullError;
pub use import::{ImportError, Imported};
pub use pull::flights::Pulled;
pub use registry::credentials::{Credentials, CredentialsError};
pub use registry::failure::RegistryError;
pub use registry::redirects::RedirectError;
pub use registry::token::TokenError;
pub use store::containerd::{Config as ContainerdConfig, OpenError as ContainerdError};
pub use store::failure::StoreError;
pub use store::image::Image;
pub use store::{Images, OpenError};

/// Message of an error followed by those of its sources, joined by `: `, as in events.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let next = inner.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = inner.source();
    }
    text
}
