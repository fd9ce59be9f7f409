//! The cluster's certificate authority, and the certificates that the control plane needs.
//!
//! ```text
//! pki/ca.{crt,key}                          signs everything below
//! pki/apiserver.{crt,key}                   what clients see
//! pki/apiserver-kubelet-client.{crt,key}    what agents see when the server asks them for logs
//! pki/front-proxy/ca.{crt,key}              signs only what is below
//! pki/front-proxy/client.{crt,key}          what servers behind Services see, which believe what it says of users
//! pki/sa.key                                signs the tokens of service accounts
//! admin.kubeconfig                          kubernetes-admin in system:masters
//! ```
//!
//! In a client certificate the common name is the user, and the organizations are the groups.
//! Servers' certificates cannot be used by clients nor the other way round: each has its one
//! extended key usage. Directories are 0700 and keys 0600; wider permissions are removed, with a
//! warning. Keys are never logged.

mod certificate;
mod files;
mod kubeconfig;
mod request;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{Issuer, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tracing::info;

use crate::authn::tokens::{KeyError, SigningKey};

pub use certificate::client;
pub use files::private_directory;
pub use kubeconfig::kubeconfig;

/// The user of the server when it asks an agent for something.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The user of the front proxy's certificate.
pub const FRONT_PROXY: &str = "front-proxy-client";
/// Default lifetime of certificates.
pub const LIFETIME: Duration = Duration::from_hours(365 * 24);
/// The user of `admin.kubeconfig`.
pub const ADMIN: &str = "kubernetes-admin";

/// Purpose of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// Proves a server's names.
    Server {
        /// The subject's common name.
        common_name: String,
        /// The subject's organizations.
        organizations: Vec<String>,
        /// Host names and IP addresses that clients may know the server by.
        names: Vec<String>,
    },
    /// Authenticates a client.
    Client {
        /// The user's name.
        user: String,
        /// The user's groups: at most two fit into a certificate.
        groups: Vec<String>,
    },
}

impl Profile {
    /// A client's certificate.
    pub fn client(user: &str, groups: &[&str]) -> Self {
        Self::Client {
            user: user.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    /// The certificate that an agent shows to the API server: its subject is that of the node, its names are the node's.
    pub fn node_serving(node: &str, addresses: &[IpAddr]) -> Self {
        let mut names = vec![node.to_owned()];
        names.extend(addresses.iter().map(IpAddr::to_string));
        Self::Server {
            common_name: node_user(node),
            organizations: vec!["system:nodes".to_owned()],
            names,
        }
    }
}

/// The user that an agent is.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key. Never log it.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Identity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// The certificate and the key in the form that rustls takes.
    pub fn to_der(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PkiError> {
        let unreadable = |error: rustls_pki_types::pem::Error| PkiError::Unreadable {
            what: "a certificate or its key",
            source: error.into(),
        };

        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        Ok((certificates(&self.certificate)?, key.map_err(unreadable)?))
    }
}

/// Failure to issue or load a certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// Only the certificate or only the key of the authority exists.
    #[error("{} is missing beside its other half; restore it, or remove both to make a new authority", path.display())]
    Half {
        /// The missing file.
        path: PathBuf,
    },
    /// A file does not hold what is expected.
    #[error("{what} cannot be read")]
    Unreadable {
        /// Expected content.
        what: &'static str,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificate cannot be made.
    #[error("make a certificate")]
    Make(#[source] rcgen::Error),
    /// The key that signs tokens cannot be had.
    #[error("the key of service accounts' tokens")]
    TokenKey(#[source] KeyError),
    /// More groups than fit.
    #[error("a certificate holds at most two groups, not {count}")]
    Groups {
        /// Requested number.
        count: usize,
    },
}

/// The certificate authority, with its files.
pub struct Pki {
    directory: PathBuf,
    authority: String,
    issuer: Issuer<'static, KeyPair>,
    lifetime: Duration,
}

impl Pki {
    /// Opens the authority in a directory, or makes a new one.
    pub fn open(directory: &Path, now: Timestamp) -> Result<Self, PkiError> {
        Self::open_as("kubernetes", directory, now)
    }

    /// Opens the authority of the front proxy, or makes a new one.
    pub fn open_front_proxy(directory: &Path, now: Timestamp) -> Result<Self, PkiError> {
        Self::open_as("front-proxy-ca", &directory.join("front-proxy"), now)
    }

    fn open_as(name: &str, directory: &Path, now: Timestamp) -> Result<Self, PkiError> {
        private_directory(directory)?;
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        let make = || {
            let made = certificate::authority(name, now)?;
            files::write(&key, &made.key)?;
            files::write(&certificate, &made.certificate)
        };
        match (files::read(&certificate)?, files::read(&key)?) {
            (None, None) => make()?,
            (Some(_), None) => return Err(PkiError::Half { path: key }),
            // The first start was interrupted between the two files: a key that has signed nothing
            // can be replaced.
            (None, Some(_)) if !files::any_certificate(directory)? => make()?,
            (None, Some(_)) => return Err(PkiError::Half { path: certificate }),
            (Some(_), Some(_)) => {}
        }
        files::close_keys(directory)?;
        let read = |path: &Path| files::read(path)?.ok_or(PkiError::Half { path: path.to_owned() });
        let (authority, key) = (read(&certificate)?, read(&key)?);
        let key = KeyPair::from_pem(&key).map_err(PkiError::Make)?;
        let issuer = Issuer::from_ca_cert_pem(&authority, key).map_err(PkiError::Make)?;
        Ok(Self {
            directory: directory.to_owned(),
            authority,
            issuer,
            lifetime: LIFETIME,
        })
    }

    /// Replaces a certificate of the authority that is in its last part by the next one, of the same
    /// key: both verify what either has signed, so clients may keep the current one until it ends.
    pub fn renewed(self, now: Timestamp) -> Result<Self, PkiError> {
        let Some(authority) = certificate::next_authority(&self.authority, self.issuer.key(), now)? else {
            return Ok(self);
        };
        let path = self.directory.join("ca.crt");
        files::write(&path, &authority)?;
        info!(path = %path.display(), "the authority has a new certificate, of the same key");
        Ok(Self { authority, ..self })
    }

    /// Sets the lifetime of certificates that are issued from now on; the default is a year.
    #[must_use]
    pub fn with_lifetime(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// The authority's certificate, as PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The authority's certificate in the form that rustls takes.
    pub fn authority_der(&self) -> Result<CertificateDer<'static>, PkiError> {
        CertificateDer::from_pem_slice(self.authority.as_bytes()).map_err(|error| PkiError::Unreadable {
            what: "the authority's certificate",
            source: error.into(),
        })
    }

    /// Makes a certificate that is kept nowhere.
    pub fn issue(&self, profile: &Profile, now: Timestamp) -> Result<Identity, PkiError> {
        certificate::leaf(profile, &self.issuer, now, self.lifetime)
    }

    /// Certificate of this name in the directory. It is issued when it is missing, about to expire,
    /// of another authority or key, or for another profile.
    pub fn keep(&self, name: &str, profile: &Profile, now: Timestamp) -> Result<Identity, PkiError> {
        let path = |kind: &str| self.directory.join(format!("{name}.{kind}"));
        if let (Some(certificate), Some(key)) = (files::read(&path("crt"))?, files::read(&path("key"))?)
            && certificate::still_good(&certificate, &self.authority, profile, now)
            && certificate::is_of(&certificate, &key)
        {
            return Ok(Identity { certificate, key });
        }
        let made = self.issue(profile, now)?;
        files::write(&path("key"), &made.key)?;
        files::write(&path("crt"), &made.certificate)?;
        Ok(made)
    }

    /// Names and addresses in the server's certificate; empty before it was issued. Leaves out the
    /// machine's hostname: it is also the node's name and identifies no other server.
    pub fn serving_names(&self) -> Result<Vec<String>, PkiError> {
        let certificate = files::read(&self.directory.join("apiserver.crt"))?;
        let mut names = certificate.map(|pem| certificate::names(&pem)).unwrap_or_default();
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        names.retain(|name| !name.eq_ignore_ascii_case(machine.trim()));
        Ok(names)
    }

    /// Key that signs tokens; it is created at the first start and never replaced, which would
    /// invalidate all tokens.
    pub fn token_key(&self) -> Result<SigningKey, PkiError> {
        let path = self.directory.join("sa.key");
        let pem = if let Some(pem) = files::read(&path)? {
            pem
        } else {
            let made = SigningKey::generate().map_err(PkiError::TokenKey)?;
            files::write(&path, &made)?;
            made
        };
        SigningKey::from_pem(&pem).map_err(PkiError::TokenKey)
    }

    /// Writes `admin.kubeconfig` at `path`. Its certificate is kept in the directory and renewed
    /// like the others.
    pub fn admin_kubeconfig(&self, path: &Path, server: &str, now: Timestamp) -> Result<(), PkiError> {
        let identity = self.keep("admin", &Profile::client(ADMIN, &["system:masters"]), now)?;
        write_private(path, &kubeconfig(server, &self.authority, ADMIN, &identity))
    }
}

/// The certificates of a PEM text in the form that rustls takes.
///
/// # Errors
/// When it holds other data.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>();
    read.map_err(|error| PkiError::Unreadable {
        what: "certificates",
        source: error.into(),
    })
}

/// The text of a file that must be there.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|source| PkiError::File {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    if files::read(path)?.as_deref() == Some(text) {
        return files::close_file(path);
    }
    files::write(path, text)
}

#[cfg(test)]
mod tests;
