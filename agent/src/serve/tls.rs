//! The agent's certificate, and whose certificates it takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::Error;

/// PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The agent's certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that signs clients.
    pub client_authority: PathBuf,
}

fn unreadable(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::File {
        path: path.to_owned(),
        source: std::io::Error::other(error),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, error))?;
    found.collect::<Result<_, _>>().map_err(|error| unreadable(path, error))
}

/// A client without a certificate gets an answer of 401; one with a certificate of another authority gets no connection.
pub(super) fn configuration(files: &Files) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.client_authority)? {
        roots.add(certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, error))?;
    let mut configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&files.certificate)?, key)?;
    configuration.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(configuration))
}

/// The common name of the first certificate.
pub(super) fn common_name(certificates: Option<&[CertificateDer<'_>]>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificates?.first()?).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}
