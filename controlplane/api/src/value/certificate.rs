//! Certificate signing requests (PKCS #10 in PEM), and the rules of the cluster's own signers.

use std::collections::BTreeSet;

use p521::ecdsa::signature;
use p521::ecdsa::signature::hazmat::PrehashVerifier;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ECDSA_WITH_SHA512,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// Signer of client certificates for the API server.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of client certificates for node agents.
pub const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of serving certificates for node agents.
pub const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

const NODE: &str = "system:node:";
const NODES: &str = "system:nodes";

/// Length of a P-521 field element in bytes.
const P521_LENGTH: usize = 66;

/// Subject alternative name of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlternativeName {
    /// DNS name.
    Dns(String),
    /// Email address.
    Email(String),
    /// Octets of an IP address.
    Address(Vec<u8>),
    /// URI.
    Uri(String),
}

/// Contents of a certificate signing request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Common name of the subject.
    pub common_name: String,
    /// Organizations of the subject.
    pub organizations: Vec<String>,
    /// Subject alternative names; types that the control plane does not read are left out.
    pub names: Vec<AlternativeName>,
    /// Subject in DER.
    pub subject: Vec<u8>,
    /// Public key with its algorithm, in DER.
    pub key: Vec<u8>,
}

/// Error of parsing a certificate signing request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The text is not PEM, or another type of block.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Block,
    /// The block is not a PKCS #10 request.
    #[error("asn1: structure error: {0}")]
    Structure(X509Error),
    /// Bytes follow the request.
    #[error("asn1: syntax error: trailing data")]
    Trailing,
    /// A name is not text, or an IP address has the wrong length.
    #[error("x509: malformed name")]
    Name,
    /// An extension is requested twice.
    #[error("x509: certificate request contains duplicate requested extensions")]
    Duplicate,
    /// The signature algorithm is not supported.
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Algorithm,
    /// The signature does not match the request's public key.
    #[error("x509: invalid signature: the request is not signed by its own key")]
    Signature,
}

/// Common name and organizations of a subject. Takes the last common name, as Go's `pkix.Name`
/// does; none if a value is not text.
pub fn subject_of(subject: &X509Name<'_>) -> Option<(String, Vec<String>)> {
    let common_name = match subject.iter_common_name().last() {
        Some(name) => name.as_str().ok()?.to_owned(),
        None => String::new(),
    };
    let organizations = subject.iter_organization().map(|name| name.as_str().map(str::to_owned));
    Some((common_name, organizations.collect::<Result<_, _>>().ok()?))
}

impl Request {
    /// Parses a PEM request and verifies its signature.
    ///
    /// # Errors
    /// The request is malformed; the message is for people.
    pub fn parse(pem: &[u8]) -> Result<Self, Malformed> {
        let block = first_block(pem).ok_or(Malformed::Block)?;
        if block.label != "CERTIFICATE REQUEST" {
            return Err(Malformed::Block);
        }
        let (rest, request) = X509CertificationRequest::from_der(&block.contents).map_err(structure)?;
        if !rest.is_empty() {
            return Err(Malformed::Trailing);
        }
        let info = &request.certification_request_info;
        let (common_name, organizations) = subject_of(&info.subject).ok_or(Malformed::Name)?;
        let mut parsed = Self {
            common_name,
            organizations,
            names: Vec::new(),
            subject: info.subject.as_raw().to_owned(),
            key: info.subject_pki.raw.to_owned(),
        };
        let extensions = requested(&request);
        let mut seen = BTreeSet::new();
        for extension in extensions {
            if !seen.insert(extension.oid.as_bytes()) {
                return Err(Malformed::Duplicate);
            }
            parsed.take(extension.parsed_extension())?;
        }
        match request.verify_signature() {
            Err(X509Error::SignatureUnsupportedAlgorithm) => verify_ecdsa(&request)?,
            verified => verified.map_err(|_invalid| Malformed::Signature)?,
        }
        Ok(parsed)
    }

    fn take(&mut self, extension: &ParsedExtension<'_>) -> Result<(), Malformed> {
        if let ParsedExtension::ParseError { .. } = extension {
            return Err(Malformed::Structure(X509Error::InvalidExtensions));
        }
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            for name in &names.general_names {
                self.names.extend(alternative_name(name)?);
            }
        }
        Ok(())
    }
}

fn structure(error: x509_parser::nom::Err<X509Error>) -> Malformed {
    match error {
        x509_parser::nom::Err::Error(error) | x509_parser::nom::Err::Failure(error) => Malformed::Structure(error),
        x509_parser::nom::Err::Incomplete(_) => Malformed::Structure(X509Error::Generic),
    }
}

/// Verifies signatures that ring does not and Go does: by keys of P-521, and of SHA-512 hashes.
fn verify_ecdsa(request: &X509CertificationRequest<'_>) -> Result<(), Malformed> {
    let info = &request.certification_request_info;
    let algorithm = &request.signature_algorithm.algorithm;
    let hash = if *algorithm == OID_SIG_ECDSA_WITH_SHA256 {
        Sha256::digest(info.raw).to_vec()
    } else if *algorithm == OID_SIG_ECDSA_WITH_SHA384 {
        Sha384::digest(info.raw).to_vec()
    } else if *algorithm == OID_SIG_ECDSA_WITH_SHA512 {
        Sha512::digest(info.raw).to_vec()
    } else {
        return Err(Malformed::Algorithm);
    };
    let curve = info.subject_pki.algorithm.parameters.as_ref();
    let curve = curve
        .and_then(|curve| curve.as_oid().ok())
        .ok_or(Malformed::Algorithm)?;
    let (point, signature) = (&info.subject_pki.subject_public_key.data, &request.signature_value.data);
    let verified = if curve == OID_EC_P256 {
        use p256::ecdsa::{Signature, VerifyingKey};
        verify_hash(
            VerifyingKey::from_sec1_bytes(point),
            &hash,
            Signature::from_der(signature),
        )
    } else if curve == OID_NIST_EC_P384 {
        use p384::ecdsa::{Signature, VerifyingKey};
        verify_hash(
            VerifyingKey::from_sec1_bytes(point),
            &hash,
            Signature::from_der(signature),
        )
    } else if curve == OID_NIST_EC_P521 {
        use p521::ecdsa::{Signature, VerifyingKey};
        // The library refuses hashes of less than half the length of a field element.
        let mut padded = vec![0; P521_LENGTH.saturating_sub(hash.len())];
        padded.extend(hash);
        verify_hash(
            VerifyingKey::from_sec1_bytes(point),
            &padded,
            Signature::from_der(signature),
        )
    } else {
        return Err(Malformed::Algorithm);
    };
    verified.map_err(|_invalid| Malformed::Signature)
}

fn verify_hash<K: PrehashVerifier<S>, S>(
    key: signature::Result<K>,
    hash: &[u8],
    signature: signature::Result<S>,
) -> signature::Result<()> {
    key?.verify_prehash(hash, &signature?)
}

fn first_block(pem: &[u8]) -> Option<Pem> {
    Pem::iter_from_buffer(pem).next()?.ok()
}

fn requested<'a>(request: &'a X509CertificationRequest<'_>) -> Vec<&'a X509Extension<'a>> {
    let attributes = request.certification_request_info.iter_attributes();
    attributes
        .filter_map(|attribute| match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
            ParsedCriAttribute::ChallengePassword(_) | ParsedCriAttribute::UnsupportedAttribute => None,
        })
        .flatten()
        .collect()
}

fn alternative_name(name: &GeneralName<'_>) -> Result<Option<AlternativeName>, Malformed> {
    Ok(match name {
        GeneralName::DNSName(name) => Some(AlternativeName::Dns((*name).to_owned())),
        GeneralName::RFC822Name(name) => Some(AlternativeName::Email((*name).to_owned())),
        GeneralName::URI(name) => Some(AlternativeName::Uri((*name).to_owned())),
        GeneralName::IPAddress(octets) if [4, 16].contains(&octets.len()) => {
            Some(AlternativeName::Address((*octets).to_owned()))
        }
        GeneralName::IPAddress(_) | GeneralName::Invalid(..) => return Err(Malformed::Name),
        GeneralName::OtherName(..)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::RegisteredID(_) => None,
    })
}

/// True if clients reach the API server, or another Service of the cluster, by this name. With it,
/// a node could present a certificate of the CA that they trust.
pub fn is_the_servers(name: &str, server: &[String]) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    // A wildcard may cover the server's names as well.
    name.contains('*')
        || matches!(name.as_str(), "localhost" | "kubernetes" | "kubernetes.default")
        || [".svc", ".cluster.local"]
            .into_iter()
            .any(|domain| name.ends_with(domain))
        || server.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

/// Reason for which a signer does not sign a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The subject's organizations are wrong.
    #[error("subject organization is not system:nodes")]
    Organization,
    /// The subject's common name is wrong.
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    /// There is no DNS name or IP address.
    #[error("DNS or IP subjectAltName is required")]
    NamesMissing,
    /// The signer does not certify names of this type.
    #[error("{0} subjectAltNames are not allowed")]
    Names(&'static str),
    /// The usages are not exactly the required ones.
    #[error("usages did not match [{}]", .0.join(" "))]
    Usages(&'static [&'static str]),
    /// A usage is not allowed for clients.
    #[error("invalid usage for client certificate: {0}")]
    Usage(String),
    /// Clients would take the holder for the API server.
    #[error("the certificate would be valid for a name of the API server")]
    TheServers,
    /// The certificate is not for a client.
    #[error("missing required usage for client certificate: client auth")]
    NotForClients,
}

/// Checks that one of the cluster's own signers signs a request for these usages.
///
/// # Errors
/// Reason for which the signer refuses. Other signers have rules of their own: every request passes
/// for them.
pub fn check(signer: &str, request: &Request, usages: &[String]) -> Result<(), Unfit> {
    let names = |sorts: &[&'static str]| {
        let unwanted = sorts
            .iter()
            .find(|sort| request.names.iter().any(|name| sort_of(name) == **sort));
        unwanted.map_or(Ok(()), |sort| Err(Unfit::Names(sort)))
    };
    match signer {
        NODE_CLIENT => {
            check_organization(request)?;
            names(&["DNS", "Email", "IP", "URI"])?;
            check_common_name(request)?;
            check_usages(usages, &["client auth", "digital signature", "key encipherment"])
        }
        NODE_SERVING => {
            check_organization(request)?;
            if !request.names.iter().any(|name| ["DNS", "IP"].contains(&sort_of(name))) {
                return Err(Unfit::NamesMissing);
            }
            names(&["Email", "URI"])?;
            check_usages(usages, &["digital signature", "key encipherment", "server auth"])?;
            check_common_name(request)
        }
        CLIENT => {
            let known = ["client auth", "digital signature", "key encipherment"];
            if let Some(unknown) = usages.iter().find(|usage| !known.contains(&usage.as_str())) {
                return Err(Unfit::Usage(unknown.clone()));
            }
            let is_client = usages.iter().any(|usage| usage == "client auth");
            if is_client { Ok(()) } else { Err(Unfit::NotForClients) }
        }
        _ => Ok(()),
    }
}

const fn sort_of(name: &AlternativeName) -> &'static str {
    match name {
        AlternativeName::Dns(_) => "DNS",
        AlternativeName::Email(_) => "Email",
        AlternativeName::Address(_) => "IP",
        AlternativeName::Uri(_) => "URI",
    }
}

fn check_organization(request: &Request) -> Result<(), Unfit> {
    let fits = request.organizations == [NODES];
    if fits { Ok(()) } else { Err(Unfit::Organization) }
}

fn check_common_name(request: &Request) -> Result<(), Unfit> {
    let fits = request.common_name.starts_with(NODE);
    if fits { Ok(()) } else { Err(Unfit::CommonName) }
}

/// Checks for exactly the needed usages; only `key encipherment`, which only RSA keys support, may
/// be left out.
fn check_usages(usages: &[String], needed: &'static [&'static str]) -> Result<(), Unfit> {
    let has = |usage: &str| usages.iter().any(|own| own == usage);
    let fits = usages.iter().all(|usage| needed.contains(&usage.as_str()))
        && needed.iter().all(|usage| *usage == "key encipherment" || has(usage));
    if fits { Ok(()) } else { Err(Unfit::Usages(needed)) }
}

/// Error of parsing a certificate chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChain {
    /// A block is not a certificate.
    #[error("only CERTIFICATE PEM blocks are allowed, found {0:?}")]
    Block(String),
    /// A certificate is malformed.
    #[error("x509: malformed certificate")]
    Malformed,
    /// The text has no certificate.
    #[error("must contain at least one CERTIFICATE PEM block")]
    Empty,
}

/// Checks that a PEM text holds certificates and nothing else. Text outside the blocks is ignored.
///
/// # Errors
/// The text holds another block, a malformed certificate or no block.
pub fn check_chain(pem: &[u8]) -> Result<(), NoChain> {
    let mut found = 0_usize;
    for block in Pem::iter_from_buffer(pem) {
        let block = block.map_err(|_unreadable| NoChain::Malformed)?;
        if block.label != "CERTIFICATE" {
            return Err(NoChain::Block(block.label));
        }
        block.parse_x509().map_err(|_malformed| NoChain::Malformed)?;
        found += 1;
    }
    if found == 0 { Err(NoChain::Empty) } else { Ok(()) }
}

/// Expiry of the first certificate of a PEM chain, in Unix seconds.
pub fn end_of(pem: &[u8]) -> Option<i64> {
    let block = first_block(pem)?;
    let (_, certificate) = X509Certificate::from_der(&block.contents).ok()?;
    Some(certificate.validity().not_after.timestamp())
}
