//! TLS with ring's algorithms, plus P-521, which Go's TLS has and ring lacks.
//!
//! - [`provider`]: for servers, and clients that verify certificates
//! - [`trusting`]: for probes, which do not verify the server's identity
//! - [`Bundle`]: for clients with configured certificates, including the server's own
//! - [`verifies_es512`]: for signed tokens

mod bundle;
mod p521;

pub use self::p521::verifies_es512;
pub use bundle::{Bundle, BundleError, vouch};

use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};

/// Crypto provider of ring, extended by P-521.
pub fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.kx_groups.push(&p521::Secp521r1);
    provider.signature_verification_algorithms = *ALGORITHMS;
    provider
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

/// In TLS 1.2 a scheme names the hash alone: a P-521 key may sign with each.
static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let known = ring::default_provider().signature_verification_algorithms;
    let more = [
        (SignatureScheme::ECDSA_NISTP256_SHA256, p521::ECDSA_SHA256),
        (SignatureScheme::ECDSA_NISTP384_SHA384, p521::ECDSA_SHA384),
        (SignatureScheme::ECDSA_NISTP521_SHA512, p521::ECDSA_SHA512),
    ];
    let mut all: Vec<Algorithm> = known.all.to_vec();
    let mut mapping: Vec<(SignatureScheme, Vec<Algorithm>)> = Vec::new();
    mapping.extend(known.mapping.iter().map(|(scheme, by)| (*scheme, by.to_vec())));
    for (scheme, algorithm) in more {
        all.push(algorithm);
        match mapping.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, by)) => by.push(algorithm),
            None => mapping.push((scheme, vec![algorithm])),
        }
    }
    let mapping = mapping.into_iter().map(|(scheme, by)| (scheme, &*by.leak()));
    WebPkiSupportedAlgorithms {
        all: all.leak(),
        mapping: mapping.collect::<Vec<_>>().leak(),
    }
});

/// Client configuration that accepts every certificate, as Go's with `InsecureSkipVerify`.
///
/// # Errors
/// Fails if the provider has no suite for a version of TLS.
pub fn trusting() -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider())).with_safe_default_protocol_versions()?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate));
    Ok(builder.with_no_client_auth())
}

/// Verifier that accepts everything, including handshake signatures, which prove nothing for an
/// unverified key.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}
