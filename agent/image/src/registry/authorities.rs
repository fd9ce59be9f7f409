//! Trust in registry certificates: the system's roots, and the PEM files configured for a registry.
//!
//! A configured file may hold the registry's own self-signed certificate. Docker and containerd
//! accept it as a leaf certificate; rustls accepts a certificate authority as nothing else, and
//! `openssl req -x509` marks each as an authority. The holder of such a key could sign for any
//! host, so it is trusted only for the host that it names and was configured for.

use std::net::Ipv6Addr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Client configuration for requests on behalf of the registry at `host`, for which these files are
/// configured.
pub(crate) fn configuration(host: &str, files: &[Vec<u8>]) -> Result<ClientConfig, Error> {
    let provider = Arc::new(common_tls::provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let verifier = Given::new(host, files, provider)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut configuration = builder.with_no_client_auth();
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(configuration)
}

/// Verifier that also accepts the configured certificates themselves.
#[derive(Debug)]
struct Given {
    /// Verifier for the registry's own host.
    ordinary: Verifier,
    /// Verifier for all other hosts: without the registry's own certificates.
    elsewhere: Verifier,
    certificates: Vec<CertificateDer<'static>>,
    /// Host that the certificates are configured for. Another server that presents one, for tokens
    /// or layers, is refused.
    host: Option<ServerName<'static>>,
}

impl Given {
    fn new(host: &str, files: &[Vec<u8>], provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let mut certificates = Vec::new();
        for file in files {
            for certificate in CertificateDer::pem_slice_iter(file) {
                certificates.push(certificate.map_err(|error| Error::General(format!("read a certificate: {error}")))?);
            }
        }
        let host = ServerName::try_from(name(host).to_owned()).ok();
        let names_host = |certificate: &&CertificateDer<'static>| {
            let parsed = ParsedCertificate::try_from(*certificate);
            let named = |host: &ServerName<'_>| parsed.is_ok_and(|parsed| verify_server_name(&parsed, host).is_ok());
            host.as_ref().is_some_and(named)
        };
        let authorities: Vec<_> = certificates.iter().filter(|own| !names_host(own)).cloned().collect();
        Ok(Self {
            elsewhere: Verifier::new_with_extra_roots(authorities, Arc::clone(&provider))?,
            ordinary: Verifier::new_with_extra_roots(certificates.clone(), provider)?,
            certificates,
            host,
        })
    }
}

/// Host without its port, brackets and trailing dot.
pub(crate) fn name(host: &str) -> &str {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None if host.parse::<Ipv6Addr>().is_ok() => host,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// True if two names are of the same host.
fn same(given: &ServerName<'_>, asked: &ServerName<'_>) -> bool {
    let (given, asked) = (given.to_str(), asked.to_str());
    let asked = asked.strip_suffix('.').unwrap_or(&asked);
    given.eq_ignore_ascii_case(asked)
}

impl ServerCertVerifier for Given {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let own = self.host.as_ref().is_some_and(|host| same(host, server_name));
        let verifier = if own { &self.ordinary } else { &self.elsewhere };
        let judged = verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let known = self.certificates.iter().any(|given| given == end_entity);
        if judged.is_ok() || !known || !own {
            return judged;
        }
        common_tls::vouch(end_entity, server_name, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ordinary.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ordinary.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ordinary.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};

    use super::*;

    const IN_2030: UnixTime = UnixTime::since_unix_epoch(Duration::from_hours(525_960));

    /// Self-signed certificate marked as an authority, as `openssl req -x509` creates it.
    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> (String, CertificateDer<'static>) {
        let mut params = CertificateParams::new(["localhost".to_owned(), "other.example".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2040, 1, 1);
        change(&mut params);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        (made.pem(), made.der().clone())
    }

    fn judged(host: &str, given: &str, shown: &CertificateDer<'_>, asked: &str) -> String {
        let given = Given::new(host, &[given.as_bytes().to_vec()], Arc::new(common_tls::provider())).unwrap();
        let asked = ServerName::try_from(asked).unwrap();
        let judged = given.verify_server_cert(shown, &[], &asked, &[], IN_2030);
        judged.map_or_else(|error| format!("{error:?}"), |_| "good".to_owned())
    }

    #[test]
    fn a_certificate_that_was_given_is_trusted_for_its_host_while_it_is_good() {
        let (pem, own) = certificate(|_| {});
        assert_eq!(judged("localhost:5443", &pem, &own, "localhost"), "good");
        // Another certificate with the same names, which is not configured.
        let (_, stranger) = certificate(|_| {});
        assert_ne!(judged("localhost:5443", &pem, &stranger, "localhost"), "good");
        // It names this host too, but was not configured for it.
        assert_ne!(judged("localhost:5443", &pem, &own, "other.example"), "good");
        assert!(judged("third.example", &pem, &own, "third.example").contains("NotValidForName"));
        let (pem, old) = certificate(|params| params.not_after = date_time_ymd(2029, 1, 1));
        assert!(judged("localhost", &pem, &old, "localhost").contains("Expired"));
        let (pem, new) = certificate(|params| params.not_before = date_time_ymd(2031, 1, 1));
        assert!(judged("localhost", &pem, &new, "localhost").contains("NotValidYet"));
        let (pem, client) =
            certificate(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        assert!(judged("localhost", &pem, &client, "localhost").contains("InvalidPurpose"));
    }

    #[test]
    fn what_a_given_authority_has_signed_is_good_everywhere() {
        let (pem, _) = certificate(|_| {});
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["ca.example".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        let leaf = CertificateParams::new(["registry.example".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        assert_eq!(
            judged("mirror.example", &issuer.pem(), leaf.der(), "registry.example"),
            "good"
        );
        assert_ne!(judged("mirror.example", &pem, leaf.der(), "registry.example"), "good");
    }

    #[test]
    fn what_a_registrys_own_certificate_has_signed_is_good_for_its_host_alone() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["Registry.example".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        let names = ["registry.example".to_owned(), "tokens.example".to_owned()];
        let leaf = CertificateParams::new(names).unwrap();
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &own).unwrap();
        for host in ["registry.example", "REGISTRY.example:5000", "registry.example.:443"] {
            assert_eq!(
                judged(host, &own.pem(), leaf.der(), "registry.example"),
                "good",
                "{host}"
            );
            assert_ne!(judged(host, &own.pem(), leaf.der(), "tokens.example"), "good", "{host}");
        }
    }

    #[test]
    fn a_host_is_the_same_however_it_is_written() {
        let (pem, own) = certificate(|params| {
            let address = rcgen::SanType::IpAddress("fd00::7".parse().unwrap());
            params.subject_alt_names.push(address);
        });
        for (host, asked) in [
            ("LOCALHOST", "localhost"),
            ("localhost.:5000", "localhost"),
            ("localhost", "LocalHost"),
            ("[fd00::7]:5000", "fd00::7"),
            ("fd00:0:0::7", "fd00::7"),
        ] {
            assert_eq!(judged(host, &pem, &own, asked), "good", "{host} {asked}");
        }
        assert_ne!(judged("[fd00::8]", &pem, &own, "fd00::7"), "good");
    }
}
