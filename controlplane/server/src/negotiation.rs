//! Content negotiation: which encoding and which shape of an object a client accepts.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING};

use crate::failure::Failure;
use crate::query::Query;

/// What a 406 says.
const ACCEPTED: &str = "application/json, application/yaml";
const ACCEPTED_WATCH: &str = "application/json, application/json;stream=watch";

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Compact JSON.
    Json,
    /// JSON with indentation, for people.
    PrettyJson,
    /// YAML.
    Yaml,
}

impl Encoding {
    /// The answer's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::PrettyJson => "application/json",
            Self::Yaml => "application/yaml",
        }
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

/// What becomes of an object on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Itself.
    Object,
    /// Rows for people.
    Table(MetaVersion),
    /// Its metadata alone.
    Metadata(MetaVersion),
}

/// The outcome of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Representation {
    /// How the body is written.
    pub encoding: Encoding,
    /// What it shows.
    pub shape: Shape,
}

impl Representation {
    /// Compact JSON of the object itself.
    pub const PLAIN: Self = Self {
        encoding: Encoding::Json,
        shape: Shape::Object,
    };
}

/// One media range of an `Accept` header.
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

    pub(crate) fn matches(&self, kind: &str, subtype: &str) -> bool {
        (self.kind == "*" || self.kind.eq_ignore_ascii_case(kind))
            && (self.subtype == "*" || self.subtype.eq_ignore_ascii_case(subtype))
    }
}

/// The media ranges of all `Accept` headers, best first; `*/*` when there are none.
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
    // Stable: among equals the client's order counts.
    clauses.sort_by(|left, right| right.quality.total_cmp(&left.quality));
    clauses
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
    for clause in clauses(headers) {
        let encoding = if clause.matches("application", "json") {
            if pretty(query) {
                Encoding::PrettyJson
            } else {
                Encoding::Json
            }
        } else if clause.matches("application", "yaml") {
            Encoding::Yaml
        } else {
            continue;
        };
        if let Some(shape) = shape(&clause) {
            return Ok(Representation { encoding, shape });
        }
    }
    Err(Failure::NotAcceptable { accepted: ACCEPTED })
}

/// Negotiates for a watch: frames are JSON.
///
/// # Errors
/// 406 when the client does not accept JSON.
pub fn negotiate_watch(headers: &HeaderMap) -> Result<Representation, Failure> {
    clauses(headers)
        .iter()
        .filter(|clause| clause.matches("application", "json"))
        .find_map(shape)
        .map(|shape| Representation {
            encoding: Encoding::Json,
            shape,
        })
        .ok_or(Failure::NotAcceptable {
            accepted: ACCEPTED_WATCH,
        })
}

/// Nothing when the clause asks for a shape that does not exist.
fn shape(clause: &Clause<'_>) -> Option<Shape> {
    let Some(wanted) = clause.parameter("as") else {
        return Some(Shape::Object);
    };
    if clause.parameter("g").is_some_and(|group| group != "meta.k8s.io") {
        return None;
    }
    let version = match clause.parameter("v") {
        Some("v1") => MetaVersion::V1,
        Some("v1beta1") => MetaVersion::V1Beta1,
        Some(_) | None => return None,
    };
    match wanted {
        "Table" => Some(Shape::Table(version)),
        "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(Shape::Metadata(version)),
        _ => None,
    }
}

/// Upstream indents for curl, wget and browsers unless told otherwise; here only on request.
fn pretty(query: &Query) -> bool {
    query.text("pretty").is_some() && query.flag("pretty")
}

/// Whether the client takes gzip.
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
