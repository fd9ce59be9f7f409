//! Certificates on both sides of a connection: the server's own, which may be replaced while it serves, and clients'.
//!
//! The handshake accepts every certificate whose key the client holds. It is verified afterwards: a
//! client whose certificate has expired or is of another authority gets `401 Unauthorized`, and may
//! still have a token.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::TlsError;
use crate::authn::identity::User;
use crate::authn::pki::{Identity, Pki, client};

/// TLS configuration and client verification of a server. Clones share state.
#[derive(Debug, Clone)]
pub struct Transport {
    pub(super) config: Arc<rustls::ServerConfig>,
    clients: Arc<dyn ClientCertVerifier>,
    own: Arc<Own>,
    provider: Arc<CryptoProvider>,
    pub(super) connections: usize,
}

/// Client at the other end of a connection.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// No certificate, or one that names no user.
    Nobody,
    /// The user that a certificate names, until the second in which it ends.
    Known { user: User, until: i64 },
    /// A certificate that proves nothing.
    Refused,
}

impl Transport {
    /// The server shows `identity`; clients' certificates count when they are of the same authority.
    pub fn new(pki: &Pki, identity: &Identity) -> Result<Self, TlsError> {
        Self::trusting(pki, identity, &[])
    }

    /// Takes clients' certificates of further authorities, too.
    pub fn trusting(pki: &Pki, identity: &Identity, further: &[CertificateDer<'_>]) -> Result<Self, TlsError> {
        let provider = Arc::new(common_tls::provider());
        let mut roots = RootCertStore::empty();
        for authority in further {
            roots.add(authority.clone().into_owned()).map_err(TlsError::Setup)?;
        }
        roots
            .add(pki.authority_der().map_err(TlsError::Certificates)?)
            .map_err(TlsError::Setup)?;
        let clients: Arc<dyn ClientCertVerifier> =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .map_err(TlsError::Verifier)?;
        let own = Arc::new(Own(RwLock::new(certified(identity, &provider)?)));
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_client_cert_verifier(Arc::new(Unchecked(Arc::clone(&clients))))
            .with_cert_resolver(Arc::<Own>::clone(&own));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            clients,
            own,
            provider,
            connections: super::CONNECTIONS,
        })
    }

    /// Sets the maximum number of connections, instead of 8192.
    #[must_use]
    pub fn with_connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Shows another certificate from now on; connections that there are go on.
    pub fn renew(&self, identity: &Identity) -> Result<(), TlsError> {
        let certified = certified(identity, &self.provider)?;
        *self.own.0.write().unwrap_or_else(PoisonError::into_inner) = certified;
        Ok(())
    }

    /// Identifies the client by its certificates.
    pub(super) fn caller(&self, shown: Option<&[CertificateDer<'_>]>) -> Caller {
        let Some((first, further)) = shown.and_then(<[_]>::split_first) else {
            return Caller::Nobody;
        };
        if let Err(error) = self.clients.verify_client_cert(first, further, UnixTime::now()) {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "a client's certificate was refused"
            );
            return Caller::Refused;
        }
        client(first).map_or(Caller::Nobody, |(user, until)| Caller::Known { user, until })
    }
}

fn certified(identity: &Identity, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key) = identity.to_der().map_err(TlsError::Certificates)?;
    CertifiedKey::from_der(chain, key, provider)
        .map(Arc::new)
        .map_err(TlsError::Setup)
}

/// The certificate that the server shows now.
#[derive(Debug)]
struct Own(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Asks for a certificate and checks only that the client has its key.
#[derive(Debug)]
struct Unchecked(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Unchecked {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _first: &CertificateDer<'_>,
        _further: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
