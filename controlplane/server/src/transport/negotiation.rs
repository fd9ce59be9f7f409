//! Content negotiation: which encoding and which shape of an object a client accepts.

use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderValue};

use crate::request::failure::Failure;
use crate::request::query::Query;

/// Media types that a 406 lists.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const ACCEPTED_WATCH: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

/// Encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Compact JSON.
    Json,
    /// JSON with indentation, for people.
    PrettyJson,
    /// YAML.
    Yaml,
    /// Kubernetes protobuf.
    Protobuf,
}

impl Encoding {
    /// The answer's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::PrettyJson => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => api::protobuf::MEDIA_TYPE,
        }
    }

    /// The same of a watch's frames.
    pub fn frames_type(self) -> &'static str {
        match self {
            Self::Json | Self::PrettyJson | Self::Yaml => self.content_type(),
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// Encodings by subtype, in the order of preference for clients that accept anything.
    const ALL: [(&'static str, Self); 3] = [
        ("json", Self::Json),
        ("yaml", Self::Yaml),
        ("vnd.kubernetes.protobuf", Self::Protobuf),
    ];

    /// The first that a media range covers.
    pub(crate) fn of(clause: &Clause<'_>) -> Option<Self> {
        candidates(clause).next()
    }

    /// True if watches are served in it.
    fn streams(self) -> bool {
        self != Self::Yaml
    }
}

/// A version of `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaVersion {
    /// `v1`
    V1,
    /// `v1beta1`
    V1Beta1,
}

impl MetaVersion {
    /// `meta.k8s.io/v1` …
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// Transformation of an object in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Itself.
    Object,
    /// Rows for people.
    Table(MetaVersion),
    /// Its metadata alone.
    Metadata(MetaVersion),
    /// The metadata of a list's objects.
    MetadataList(MetaVersion),
}

/// The outcome of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Representation {
    /// Encoding of the body.
    pub encoding: Encoding,
    /// Shape of the body.
    pub shape: Shape,
}

impl Representation {
    /// Compact JSON of the object itself.
    pub const PLAIN: Self = Self {
        encoding: Encoding::Json,
        shape: Shape::Object,
    };
}

/// Media range of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Clause<'a> {
    pub(crate) kind: &'a str,
    pub(crate) subtype: &'a str,
    pub(crate) parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl Clause<'_> {
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// Number of `*` in the media range.
    fn wildcards(&self) -> usize {
        usize::from(self.kind == "*") + usize::from(self.subtype == "*")
    }

    pub(crate) fn matches(&self, kind: &str, subtype: &str) -> bool {
        (self.kind == "*" || self.kind.eq_ignore_ascii_case(kind))
            && (self.subtype == "*" || self.subtype.eq_ignore_ascii_case(subtype))
    }
}

/// Media ranges of all `Accept` headers, best first; `*/*` when there are none.
pub(crate) fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(clause)
        .collect();
    if clauses.is_empty() {
        clauses.push(Clause {
            kind: "*",
            subtype: "*",
            parameters: Vec::new(),
            quality: 1.0,
        });
    }
    sort(&mut clauses);
    clauses
}

/// A stable sort: the client's order decides between equal weights, but specific ranges precede
/// wildcards.
fn sort(clauses: &mut [Clause<'_>]) {
    clauses.sort_by(|left, right| {
        let quality = right.quality.total_cmp(&left.quality);
        quality.then(left.wildcards().cmp(&right.wildcards()))
    });
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let (kind, subtype) = parts.next()?.split_once('/')?;
    let mut quality = 1.0;
    let mut parameters = Vec::new();
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        if name.eq_ignore_ascii_case("q") {
            quality = value.parse().unwrap_or(1.0);
        } else {
            parameters.push((name, value.trim_matches('"')));
        }
    }
    Some(Clause {
        kind,
        subtype,
        parameters,
        quality,
    })
}

/// Negotiates for an object or a list.
///
/// # Errors
/// 406 when nothing that the client accepts can be served.
pub fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Representation, Failure> {
    of_all(headers, query, |_| true)
}

fn of_all(
    headers: &HeaderMap,
    query: &Query,
    served: impl Fn(&Representation) -> bool,
) -> Result<Representation, Failure> {
    let mut representation = best_of(headers, served).ok_or_else(|| Failure::accepts_only(ACCEPTED))?;
    representation.encoding = for_people(representation.encoding, headers, query);
    Ok(representation)
}

/// Negotiates for the answer to a question, of which there is no table.
///
/// # Errors
/// 406
pub(crate) fn negotiate_review(headers: &HeaderMap, query: &Query) -> Result<Representation, Failure> {
    of_all(headers, query, |found| !matches!(found.shape, Shape::Table(_)))
}

/// Negotiates for the frames of a watch.
///
/// # Errors
/// 406 when what the client likes best is no stream.
pub fn negotiate_watch(headers: &HeaderMap) -> Result<Representation, Failure> {
    let found = best_of(headers, |_| true);
    let found = found.ok_or_else(|| Failure::accepts_only(ACCEPTED))?;
    Some(found)
        .filter(|representation| representation.encoding.streams())
        .ok_or_else(|| Failure::accepts_only(ACCEPTED_WATCH))
}

/// Negotiates for the `Status` of a failure, which has no other shapes: JSON when the client
/// accepts no other served type.
pub(crate) fn negotiate_failure(accept: Option<&HeaderValue>, json: Encoding) -> Encoding {
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let mut clauses: Vec<Clause<'_>> = accept
        .iter()
        .flat_map(|text| text.split(','))
        .filter_map(clause)
        .collect();
    sort(&mut clauses);
    let plain = |clause: &&Clause<'_>| ["as", "g", "v"].iter().all(|name| clause.parameter(name).is_none());
    let mut encodings = clauses
        .iter()
        .filter(plain)
        .filter_map(|clause| candidates(clause).next());
    encodings
        .next()
        .filter(|found| *found != Encoding::Json)
        .unwrap_or(json)
}

fn best_of(headers: &HeaderMap, served: impl Fn(&Representation) -> bool) -> Option<Representation> {
    clauses(headers).iter().find_map(|clause| {
        let mut found = candidates(clause).filter_map(|encoding| representation(clause, encoding));
        found.find(&served)
    })
}

/// The encodings that a media range covers.
fn candidates(clause: &Clause<'_>) -> impl Iterator<Item = Encoding> {
    Encoding::ALL
        .into_iter()
        .filter(|(subtype, _)| clause.matches("application", subtype))
        .map(|(_, encoding)| encoding)
}

/// Representation for a clause; `None` when it asks for a shape that does not exist in this
/// encoding.
fn representation(clause: &Clause<'_>, encoding: Encoding) -> Option<Representation> {
    let stream = clause.parameter("stream").filter(|stream| !stream.is_empty());
    if stream.is_some_and(|stream| stream != "watch" || !encoding.streams()) {
        return None;
    }
    let shape = shape(clause)?;
    // Upstream's tables have no protobuf form.
    let is_table = matches!(shape, Shape::Table(_));
    (!is_table || encoding != Encoding::Protobuf).then_some(Representation { encoding, shape })
}

fn shape(clause: &Clause<'_>) -> Option<Shape> {
    let parameters = ["as", "g", "v"].map(|name| clause.parameter(name));
    let version = match parameters {
        [None, None, None] => return Some(Shape::Object),
        [_, Some("meta.k8s.io"), Some("v1")] => MetaVersion::V1,
        [_, Some("meta.k8s.io"), Some("v1beta1")] => MetaVersion::V1Beta1,
        _ => return None,
    };
    match parameters {
        [Some("Table"), ..] => Some(Shape::Table(version)),
        [Some("PartialObjectMetadata"), ..] => Some(Shape::Metadata(version)),
        [Some("PartialObjectMetadataList"), ..] => Some(Shape::MetadataList(version)),
        _ => None,
    }
}

/// Indented JSON for clients that request it, and for curl, Wget and browsers by default
/// (`isPrettyPrint` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`).
pub(crate) fn for_people(encoding: Encoding, headers: &HeaderMap, query: &Query) -> Encoding {
    let is_pretty = || {
        if let Some(asked) = query.text("pretty") {
            return matches!(asked, "1" | "t" | "T" | "true" | "TRUE" | "True");
        }
        let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
        let people: [&[u8]; 3] = [b"curl", b"Wget", b"Mozilla/5.0"];
        agent.is_some_and(|agent| people.iter().any(|name| agent.starts_with(name)))
    };
    if encoding == Encoding::Json && is_pretty() {
        Encoding::PrettyJson
    } else {
        encoding
    }
}

/// True if the client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip")) && parts.next() != Some("q=0")
        })
}
