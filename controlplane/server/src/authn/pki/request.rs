//! Certificate signing requests.
//!
//! The certificate is written here, part by part: a subject may have any number of organizations and attributes of any
//! sort, of which the library that makes our own certificates keeps one each.

use api::certificate::{AlternativeName, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::SigningKey as _;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};
use yasna::models::{GeneralizedTime, ObjectIdentifier, UTCTime};
use yasna::{DERWriter, DERWriterSeq, Tag};

use super::{Pki, PkiError};

/// Maximum and default lifetime of a certificate.
const LONGEST: SignedDuration = SignedDuration::from_hours(365 * 24);
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);
/// Backdating of certificates, for clients with slow clocks.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// Certificates up to this lifetime last as long as requested, without the skew, which would be a
/// large part of it.
const SHORT: SignedDuration = SignedDuration::from_hours(8);

const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY: &[u64] = &[2, 5, 29, 35];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];

/// Kubernetes' names of the key usage bits, and their positions.
const KEY_USAGES: [(&str, usize); 10] = [
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// Kubernetes' names of the extended key usages, in the order in which they are written.
const EXTENDED_KEY_USAGES: [(&str, &[u64]); 13] = [
    ("any", &[2, 5, 29, 37, 0]),
    ("server auth", &[1, 3, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ("netscape sgc", &[2, 16, 840, 1, 113_730, 4, 1]),
];

/// The parts of the authority's certificate that those it signs name.
struct Signer<'a> {
    subject: &'a [u8],
    key_identifier: Option<&'a [u8]>,
}

impl Pki {
    /// Signs a request for these usages, by their Kubernetes names, for a lifetime in seconds.
    /// Returns PEM.
    ///
    /// # Errors
    /// When the authority's key cannot sign, or the clock shows no time that a certificate can tell.
    pub fn sign(
        &self,
        request: &Request,
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, PkiError> {
        let authority = self.authority_der()?;
        let (_, authority) = X509Certificate::from_der(&authority).map_err(|error| PkiError::Unreadable {
            what: "the authority's certificate",
            source: error.into(),
        })?;
        let end = Timestamp::from_second(authority.validity().not_after.timestamp()).unwrap_or(Timestamp::MAX);
        let (from, until) = life(seconds, now, end);
        let life = (moment(from)?, moment(until)?);
        let algorithm = self.algorithm()?;
        let signer = Signer {
            subject: authority.subject().as_raw(),
            key_identifier: authority.extensions().iter().find_map(|extension| {
                let ParsedExtension::SubjectKeyIdentifier(identifier) = extension.parsed_extension() else {
                    return None;
                };
                Some(identifier.0)
            }),
        };
        let unsigned = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_tagged(Tag::context(0), |writer| writer.write_u8(2));
                writer.next().write_bigint_bytes(&rand::random::<[u8; 16]>(), true);
                write_algorithm(writer.next(), algorithm);
                writer.next().write_der(signer.subject);
                writer.next().write_sequence(|writer| {
                    write_moment(writer.next(), life.0);
                    write_moment(writer.next(), life.1);
                });
                writer.next().write_der(&request.subject);
                writer.next().write_der(&request.key);
                writer.next().write_tagged(Tag::context(3), |writer| {
                    writer.write_sequence(|writer| write_extensions(writer, request, usages, &signer));
                });
            });
        });
        let signature = self.issuer.key().sign(&unsigned).map_err(PkiError::Make)?;
        let whole = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&unsigned);
                write_algorithm(writer.next(), algorithm);
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        Ok(to_pem(&whole))
    }

    /// Signature algorithm of the authority's key.
    fn algorithm(&self) -> Result<&'static [u64], PkiError> {
        let known: [(_, &[u64]); 4] = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, &[1, 2, 840, 10045, 4, 3, 2]),
            (&rcgen::PKCS_ECDSA_P384_SHA384, &[1, 2, 840, 10045, 4, 3, 3]),
            (&rcgen::PKCS_ED25519, &[1, 3, 101, 112]),
            (&rcgen::PKCS_RSA_SHA256, RSA_SHA256),
        ];
        let own = self.issuer.key().algorithm();
        let found = known.into_iter().find(|(algorithm, _)| *algorithm == own);
        let unknown = PkiError::Make(rcgen::Error::UnsupportedSignatureAlgorithm);
        found.map(|(_, identifier)| identifier).ok_or(unknown)
    }
}

const RSA_SHA256: &[u64] = &[1, 2, 840, 113_549, 1, 1, 11];

/// Validity of a certificate: never longer than its authority's.
fn life(seconds: Option<i32>, now: Timestamp, end: Timestamp) -> (Timestamp, Timestamp) {
    let wanted = seconds.map_or(LONGEST, |seconds| SignedDuration::from_secs(i64::from(seconds)));
    let wanted = wanted.clamp(SHORTEST, LONGEST);
    let from = now - SKEW;
    let until = if wanted < SHORT { now + wanted } else { from + wanted };
    (from, until.min(end))
}

fn moment(at: Timestamp) -> Result<OffsetDateTime, PkiError> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|error| PkiError::Unreadable {
        what: "the wall clock",
        source: error.into(),
    })
}

fn write_moment(writer: DERWriter<'_>, at: OffsetDateTime) {
    if (1950..2050).contains(&at.year()) {
        writer.write_utctime(&UTCTime::from_datetime(at));
    } else {
        writer.write_generalized_time(&GeneralizedTime::from_datetime(at));
    }
}

fn write_algorithm(writer: DERWriter<'_>, identifier: &[u64]) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(identifier));
        if identifier == RSA_SHA256 {
            writer.next().write_null();
        }
    });
}

fn write_extensions(writer: &mut DERWriterSeq<'_>, request: &Request, usages: &[String], signer: &Signer<'_>) {
    let has = |usage: &str| usages.iter().any(|own| own == usage);
    let bits: Vec<usize> = KEY_USAGES
        .iter()
        .filter(|(name, _)| has(name))
        .map(|(_, bit)| *bit)
        .collect();
    if let Some(last) = bits.iter().max() {
        let mut octets = [0_u8; 2];
        for bit in &bits {
            if let Some(octet) = octets.get_mut(bit / 8) {
                *octet |= 0x80 >> (bit % 8);
            }
        }
        let octets = octets.get(..=last / 8).unwrap_or_default();
        write_extension(writer, KEY_USAGE, true, |writer| {
            writer.write_bitvec_bytes(octets, last + 1);
        });
    }
    let extended = EXTENDED_KEY_USAGES.iter().filter(|(name, _)| has(name));
    let mut extended: Vec<&[u64]> = extended.map(|(_, identifier)| *identifier).collect();
    extended.dedup();
    if !extended.is_empty() {
        write_extension(writer, EXTENDED_KEY_USAGE, false, |writer| {
            writer.write_sequence(|writer| {
                for identifier in extended {
                    writer.next().write_oid(&ObjectIdentifier::from_slice(identifier));
                }
            });
        });
    }
    // `CA:FALSE`: the sequence is empty.
    write_extension(writer, BASIC_CONSTRAINTS, true, |writer| {
        writer.write_sequence(|_writer| {});
    });
    if let Some(identifier) = signer.key_identifier {
        write_extension(writer, AUTHORITY_KEY, false, |writer| {
            writer.write_sequence(|writer| {
                let own = writer.next();
                own.write_tagged_implicit(Tag::context(0), |writer| writer.write_bytes(identifier));
            });
        });
    }
    if !request.names.is_empty() {
        // Without a subject the names are all that there is. An empty sequence is two octets.
        let critical = request.subject.len() <= 2;
        write_extension(writer, ALTERNATIVE_NAMES, critical, |writer| {
            writer.write_sequence(|writer| request.names.iter().for_each(|name| write_name(writer.next(), name)));
        });
    }
}

fn write_name(writer: DERWriter<'_>, name: &AlternativeName) {
    let (number, octets) = match name {
        AlternativeName::Email(text) => (1, text.as_bytes()),
        AlternativeName::Dns(text) => (2, text.as_bytes()),
        AlternativeName::Uri(text) => (6, text.as_bytes()),
        AlternativeName::Address(octets) => (7, octets.as_slice()),
    };
    writer.write_tagged_implicit(Tag::context(number), |writer| writer.write_bytes(octets));
}

fn write_extension(
    writer: &mut DERWriterSeq<'_>,
    identifier: &[u64],
    critical: bool,
    value: impl FnOnce(DERWriter<'_>),
) {
    let value = yasna::construct_der(value);
    writer.next().write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(identifier));
        if critical {
            writer.next().write_bool(true);
        }
        writer.next().write_bytes(&value);
    });
}

fn to_pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, further) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = further;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
