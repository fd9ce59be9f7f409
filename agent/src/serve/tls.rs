//! TLS: the serving certificate and the client CA.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::Error;
use super::access::reviews::Who;

/// Paths of PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    /// Serving certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Client CA.
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

/// Serving certificate, reloaded after its files have changed.
#[derive(Debug)]
struct Own {
    files: Files,
    provider: Arc<CryptoProvider>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Clone)]
struct Shown {
    changed: Option<SystemTime>,
    certified: Arc<CertifiedKey>,
}

impl Own {
    fn open(files: &Files, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let shown = Mutex::new(Shown::read(files, &provider)?);
        Ok(Self {
            files: files.clone(),
            provider,
            shown,
        })
    }
}

impl Shown {
    fn read(files: &Files, provider: &CryptoProvider) -> Result<Self, Error> {
        let changed = changed(&files.certificate);
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, error))?;
        let certified = CertifiedKey::from_der(certificates(&files.certificate)?, key, provider)?;
        Ok(Self {
            changed,
            certified: Arc::new(certified),
        })
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if changed(&self.files.certificate) != shown.changed {
            match Shown::read(&self.files, &self.provider) {
                Ok(new) => *shown = new,
                // The other file may not be written yet: the next handshake retries.
                Err(error) => tracing::warn!(%error, "the changed certificate is not used"),
            }
        }
        Some(Arc::clone(&shown.certified))
    }
}

/// A client without a certificate gets 401 unless it has a token; one with a certificate of another
/// CA fails the handshake.
pub(super) fn configuration(files: &Files) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(common_tls::provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.client_authority)? {
        roots.add(certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()?;
    let own = Own::open(files, Arc::clone(&provider))?;
    let mut configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(own));
    configuration.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(configuration))
}

/// Returns the user of the first certificate: the common name is the user, the organizations are
/// the groups.
pub(super) fn subject(certificates: Option<&[CertificateDer<'_>]>) -> Option<Who> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificates?.first()?).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(Who {
        name: name.to_owned(),
        groups: groups.chain(["system:authenticated"]).map(str::to_owned).collect(),
        ..Who::default()
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Writes a new certificate for n1 and its key into the files.
    fn make(files: &Files) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(["n1".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::write(&files.certificate, made.pem()).unwrap();
        made.der().clone()
    }

    /// Returns the server certificate that a client with this root sees.
    async fn shown(server: &Arc<ServerConfig>, trusted: &CertificateDer<'static>) -> CertificateDer<'static> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let name = rustls::pki_types::ServerName::try_from("n1").unwrap();
        let connecting = TlsConnector::from(Arc::new(client)).connect(name, near);
        let (accepted, connected) = futures::join!(TlsAcceptor::from(Arc::clone(server)).accept(far), connecting);
        accepted.unwrap();
        let connected = connected.unwrap();
        let certificates = connected.get_ref().1.peer_certificates().unwrap();
        certificates.first().unwrap().clone().into_owned()
    }

    #[tokio::test]
    async fn a_certificate_that_has_changed_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files {
            certificate: directory.path().join("serving.crt"),
            key: directory.path().join("serving.key"),
            client_authority: directory.path().join("serving.crt"),
        };
        let first = make(&files);
        let server = configuration(&files).unwrap();
        assert_eq!(shown(&server, &first).await, first);
        let second = make(&files);
        assert_eq!(shown(&server, &second).await, second);
        // A certificate without its key is not used.
        std::fs::write(&files.certificate, "").unwrap();
        assert_eq!(shown(&server, &second).await, second);
    }
}
