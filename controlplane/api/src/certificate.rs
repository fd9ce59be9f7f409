//! Requests for certificates (PKCS #10 in PEM): what they ask for, and what the cluster's own signers sign.

use std::collections::BTreeSet;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// Signs clients of the API server.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signs nodes' agents as clients of the API server.
pub const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs what nodes' agents show to the API server.
pub const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

const NODE: &str = "system:node:";
const NODES: &str = "system:nodes";

/// A name that a certificate shall be for, besides its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlternativeName {
    /// A host name.
    Dns(String),
    /// A mail address.
    Email(String),
    /// The octets of an IP address.
    Address(Vec<u8>),
    /// A URI.
    Uri(String),
}

/// Contents of a certificate signing request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The subject's common name.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// Subject alternative names; types that the control plane does not read are left out.
    pub names: Vec<AlternativeName>,
    /// The whole subject, as DER.
    pub subject: Vec<u8>,
    /// The public key with its algorithm, as DER.
    pub key: Vec<u8>,
}

/// Error of parsing a certificate signing request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// Not PEM, or something else in PEM.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Block,
    /// Not the structure of a request.
    #[error("asn1: structure error: {0}")]
    Structure(X509Error),
    /// Bytes after the request.
    #[error("asn1: syntax error: trailing data")]
    Trailing,
    /// A name that is no text, or an address of another length than addresses have.
    #[error("x509: malformed name")]
    Name,
    /// An extension is asked for twice.
    #[error("x509: certificate request contains duplicate requested extensions")]
    Duplicate,
    /// Signed in a way that cannot be checked.
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Algorithm,
    /// Not signed by its own key.
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
    /// Reads a request in PEM that is signed by its own key.
    ///
    /// # Errors
    /// Faults of it, as people read it.
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
        request.verify_signature().map_err(|error| {
            if error == X509Error::SignatureUnsupportedAlgorithm {
                Malformed::Algorithm
            } else {
                Malformed::Signature
            }
        })?;
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
    // A name for many is the server's as well.
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
    /// The subject's organizations.
    #[error("subject organization is not system:nodes")]
    Organization,
    /// The subject's common name.
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    /// No name that a server could be known by.
    #[error("DNS or IP subjectAltName is required")]
    NamesMissing,
    /// Names of a sort that the signer does not certify.
    #[error("{0} subjectAltNames are not allowed")]
    Names(&'static str),
    /// The usages are not the ones that there must be.
    #[error("usages did not match [{}]", .0.join(" "))]
    Usages(&'static [&'static str]),
    /// A usage that clients do not have.
    #[error("invalid usage for client certificate: {0}")]
    Usage(String),
    /// Clients of the API server would take the holder for it.
    #[error("the certificate would be valid for a name of the API server")]
    TheServers,
    /// Not for a client.
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

/// All of the usages and no others; only `key encipherment`, which keys other than RSA's cannot do, may be left out.
fn check_usages(usages: &[String], needed: &'static [&'static str]) -> Result<(), Unfit> {
    let has = |usage: &str| usages.iter().any(|own| own == usage);
    let fits = usages.iter().all(|usage| needed.contains(&usage.as_str()))
        && needed.iter().all(|usage| *usage == "key encipherment" || has(usage));
    if fits { Ok(()) } else { Err(Unfit::Usages(needed)) }
}

/// Error of parsing a certificate chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChain {
    /// Something else in PEM.
    #[error("only CERTIFICATE PEM blocks are allowed, found {0:?}")]
    Block(String),
    /// A block that holds no certificate.
    #[error("x509: malformed certificate")]
    Malformed,
    /// Nothing in PEM at all.
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

/// The second in which the first certificate of a chain in PEM ends.
pub fn end_of(pem: &[u8]) -> Option<i64> {
    let block = first_block(pem)?;
    let (_, certificate) = X509Certificate::from_der(&block.contents).ok()?;
    Some(certificate.validity().not_after.timestamp())
}
