//! Making and reading certificates.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use super::{Identity, PkiError, Profile};
use crate::authn::identity::User;

const DAY: Duration = Duration::from_hours(24);
/// Lifetime of an authority in days: ten years.
const AUTHORITY_DAYS: u32 = 3653;
/// A certificate is replaced when less than this part of its life is left: two months of a year.
const LAST_PART: i64 = 6;
/// Backdating of certificates, for clients with slow clocks.
const SKEW: Duration = Duration::from_hours(1);
/// DER of the identifier of a user's UID in a subject, 1.3.6.1.4.1.57683.2.
const UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// A new authority.
pub(super) fn authority(name: &str, now: Timestamp) -> Result<Identity, PkiError> {
    let key = KeyPair::generate().map_err(PkiError::Make)?;
    Ok(Identity {
        certificate: self_signed(name, &key, now, None)?,
        key: key.serialize_pem(),
    })
}

/// The next certificate of an authority with the same key, once the current one is in its last part.
/// `None` as well for an authority that was not made here.
pub(super) fn next_authority(certificate: &str, key: &KeyPair, now: Timestamp) -> Result<Option<String>, PkiError> {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()) else {
        return Ok(None);
    };
    let Ok(current) = pem.parse_x509() else {
        return Ok(None);
    };
    let subject = current.subject();
    let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok());
    // Of our own making is one that signs itself and has no other attribute.
    let name = name.filter(|name| current.issuer() == subject && subject.to_string() == format!("CN={name}"));
    match name.filter(|_| now.as_second() >= renewal(&current)) {
        // Begun now, it would be worth nothing once a clock that is ahead is set.
        Some(name) => self_signed(name, key, now, Some(current.validity().not_before.to_datetime())).map(Some),
        None => Ok(None),
    }
}

fn self_signed(name: &str, key: &KeyPair, now: Timestamp, begin: Option<OffsetDateTime>) -> Result<String, PkiError> {
    let mut params = params(Vec::new(), now, DAY * AUTHORITY_DAYS)?;
    if let Some(begin) = begin {
        params.not_before = begin;
    }
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params.self_signed(key).map_err(PkiError::Make)?.pem())
}

/// A new certificate for a purpose.
pub(super) fn leaf(
    profile: &Profile,
    issuer: &Issuer<'_, KeyPair>,
    now: Timestamp,
    lifetime: Duration,
) -> Result<Identity, PkiError> {
    let (common_name, organizations, names, usage) = parts(profile);
    let mut params = params(names.to_vec(), now, lifetime)?;
    params.distinguished_name = distinguished_name(common_name, organizations)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(PkiError::Make)?;
    let certificate = params.signed_by(&key, issuer).map_err(PkiError::Make)?;
    Ok(Identity {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn parts(profile: &Profile) -> (&str, &[String], &[String], ExtendedKeyUsagePurpose) {
    match profile {
        Profile::Server {
            common_name,
            organizations,
            names,
        } => (common_name, organizations, names, ExtendedKeyUsagePurpose::ServerAuth),
        Profile::Client { user, groups } => (user, groups, &[], ExtendedKeyUsagePurpose::ClientAuth),
    }
}

fn params(names: Vec<String>, now: Timestamp, lifetime: Duration) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(names).map_err(PkiError::Make)?;
    params.distinguished_name = DistinguishedName::new();
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).map_err(|error| PkiError::Unreadable {
        what: "the wall clock",
        source: error.into(),
    })?;
    params.not_before = now - SKEW;
    params.not_after = now + lifetime;
    Ok(params)
}

/// The library keeps one attribute of each type, so a second organization is added by its OID.
fn distinguished_name(common_name: &str, organizations: &[String]) -> Result<DistinguishedName, PkiError> {
    let mut name = DistinguishedName::new();
    let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if organizations.len() > types.len() {
        return Err(PkiError::Groups {
            count: organizations.len(),
        });
    }
    for (kind, organization) in types.into_iter().zip(organizations) {
        name.push(kind, organization.as_str());
    }
    name.push(DnType::CommonName, common_name);
    Ok(name)
}

/// True if a stored certificate can still be used: signed by this authority, for this purpose, and
/// not about to expire.
pub(super) fn still_good(certificate: &str, authority: &str, profile: &Profile, now: Timestamp) -> bool {
    let (Ok((_, certificate)), Ok((_, authority))) = (
        x509_parser::pem::parse_x509_pem(certificate.as_bytes()),
        x509_parser::pem::parse_x509_pem(authority.as_bytes()),
    ) else {
        return false;
    };
    let (Ok(certificate), Ok(authority)) = (certificate.parse_x509(), authority.parse_x509()) else {
        return false;
    };
    let (common_name, organizations, names, _) = parts(profile);
    certificate.issuer() == authority.subject()
        && key_identifier(&certificate) == key_identifier(&authority)
        && certificate.validity().not_before.timestamp() <= now.as_second()
        && now.as_second() < renewal(&certificate)
        && subject_of(&certificate).is_some_and(|(user, groups)| user == common_name && groups == organizations)
        && names.iter().all(|name| alternative_names(&certificate).contains(name))
}

/// Time at which the last part of a certificate's life begins, in seconds.
fn renewal(certificate: &X509Certificate<'_>) -> i64 {
    let (begin, end) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    let skew = i64::try_from(SKEW.as_secs()).unwrap_or(0);
    end - (end - begin - skew) / LAST_PART
}

/// True if a certificate belongs to a key. A crash may have left one without the other.
pub(super) fn is_of(certificate: &str, key: &str) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()) else {
        return false;
    };
    match (pem.parse_x509(), KeyPair::from_pem(key)) {
        (Ok(certificate), Ok(key)) => certificate.public_key().raw == key.subject_public_key_info(),
        (_, _) => false,
    }
}

/// The identifier of the key that signed a certificate (of an authority: its own).
fn key_identifier(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    let find = |own: bool| {
        certificate.extensions().iter().find_map(|extension| {
            if let (false, ParsedExtension::AuthorityKeyIdentifier(authority)) = (own, extension.parsed_extension()) {
                authority.key_identifier.as_ref().map(|id| id.0.to_vec())
            } else if let (true, ParsedExtension::SubjectKeyIdentifier(id)) = (own, extension.parsed_extension()) {
                Some(id.0.to_vec())
            } else {
                None
            }
        })
    };
    find(certificate.is_ca())
}

/// The names and addresses that a certificate (PEM) is for.
pub(super) fn names(certificate: &str) -> Vec<String> {
    let pem = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).ok();
    let parsed = pem.as_ref().and_then(|(_, pem)| pem.parse_x509().ok());
    parsed.as_ref().map(alternative_names).unwrap_or_default()
}

fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    names
        .filter_map(|name| {
            if let GeneralName::DNSName(name) = name {
                return Some((*name).to_owned());
            }
            let GeneralName::IPAddress(octets) = name else {
                return None;
            };
            match *octets {
                [a, b, c, d] => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
                other => <[u8; 16]>::try_from(other)
                    .ok()
                    .map(|octets| std::net::Ipv6Addr::from(octets).to_string()),
            }
        })
        .collect()
}

/// User that a client certificate (DER) names, and its expiration in seconds; `None` when it names
/// no user, or a malformed UID.
pub fn client(certificate: &[u8]) -> Option<(User, i64)> {
    let digest: Vec<String> = Sha256::digest(certificate)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let (name, groups) = subject_of(&certificate)?;
    let mut user = User::new(name, groups.iter().map(String::as_str));
    user.uid = uid_of(&certificate)?;
    let credential = "authentication.kubernetes.io/credential-id".to_owned();
    user.extra
        .insert(credential, vec![format!("X509SHA256={}", digest.concat())]);
    Some((user, certificate.validity().not_after.timestamp()))
}

/// UID in a subject, empty if there is none; `None` if there are several, or one that is not text
/// (`parseUIDFromCert` of `staging/src/k8s.io/apiserver/pkg/authentication/request/x509/x509.go`).
fn uid_of(certificate: &X509Certificate<'_>) -> Option<String> {
    let attributes = certificate.subject().iter_attributes();
    let mut uids = attributes.filter(|attribute| attribute.attr_type().as_bytes() == UID);
    match (uids.next(), uids.next()) {
        (None, _) => Some(String::new()),
        (Some(uid), None) => uid.as_str().ok().filter(|uid| !uid.is_empty()).map(str::to_owned),
        (Some(_), Some(_)) => None,
    }
}

fn subject_of(certificate: &X509Certificate<'_>) -> Option<(String, Vec<String>)> {
    api::certificate::subject_of(certificate.subject()).filter(|(user, _)| !user.is_empty())
}
