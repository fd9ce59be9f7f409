//! Trust in the certificates of a bundle and in nothing else, as in Go's clients with `RootCAs`.
//!
//! A bundle may hold the server's own self-signed certificate. Go accepts it as a leaf certificate
//! (`Certificate.Verify` in `crypto/x509/verify.go`); rustls accepts a certificate authority as
//! nothing else, and `openssl req -x509` marks each as an authority.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use thiserror::Error;
use x509_parser::parse_x509_certificate;

/// The bundle cannot be used to verify servers.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The bundle holds no certificate. The message is Go's.
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    Empty,
    /// rustls refuses the contents.
    #[error("unable to load root certificates")]
    Unusable(#[source] Error),
}

/// Verifier that trusts the certificates of a bundle.
#[derive(Debug)]
pub struct Bundle {
    authorities: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Bundle {
    /// Client configuration that trusts the certificates in these PEM blocks.
    pub fn client(pem: &[u8]) -> Result<ClientConfig, BundleError> {
        let provider = Arc::new(super::provider());
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).flatten().collect();
        let mut roots = RootCertStore::empty();
        let (taken, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        if taken == 0 {
            return Err(BundleError::Empty);
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let authorities = verifier.map_err(|error| BundleError::Unusable(Error::General(error.to_string())))?;
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(BundleError::Unusable)?.dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::new(Self {
            authorities,
            certificates,
        }));
        Ok(builder.with_no_client_auth())
    }
}

/// Verifies a configured certificate except for its signature.
///
/// # Errors
/// For another name, another time, or another purpose.
pub fn vouch(certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let (_, parsed) =
        parse_x509_certificate(certificate).map_err(|_unread| Error::from(CertificateError::BadEncoding))?;
    let at = |second: i64| UnixTime::since_unix_epoch(Duration::from_secs(second.try_into().unwrap_or_default()));
    let not_before = at(parsed.validity().not_before.timestamp());
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    let not_after = at(parsed.validity().not_after.timestamp());
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    let purposes = parsed.extended_key_usage();
    let purposes = purposes.map_err(|_unread| Error::from(CertificateError::BadEncoding))?;
    match purposes {
        Some(purposes) if !purposes.value.server_auth && !purposes.value.any => {
            Err(CertificateError::InvalidPurpose.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// True for a certificate with no issuer but itself.
fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| parsed.issuer().as_raw() == parsed.subject().as_raw())
}

impl ServerCertVerifier for Bundle {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = self
            .authorities
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let is_known = self.certificates.iter().any(|given| given == end_entity);
        let is_authority = matches!(judged, Err(Error::InvalidCertificate(CertificateError::Other(_))));
        if judged.is_ok() || !(is_known || is_authority && is_self_issued(end_entity)) {
            return judged;
        }
        vouch(end_entity, server_name, now)?;
        if is_known {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
