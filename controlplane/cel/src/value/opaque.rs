//! Opaque types: values of the libraries' own.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::Value;

/// A parsed URL.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    pub(crate) text: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) query: String,
}

/// A semantic version; build metadata does not affect the order.
#[derive(Debug)]
pub struct Semver {
    pub(crate) numbers: [u64; 3],
    pub(crate) pre: Vec<String>,
}

impl Semver {
    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self
                    .pre
                    .iter()
                    .zip(&other.pre)
                    .map(|(left, right)| part(left, right))
                    .find(|order| order.is_ne())
                    .unwrap_or_else(|| self.pre.len().cmp(&other.pre.len())),
            })
    }
}

fn part(left: &str, right: &str) -> Ordering {
    let numeric = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    match (numeric(left), numeric(right)) {
        (true, true) => left.len().cmp(&right.len()).then_with(|| left.cmp(right)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => left.cmp(right),
    }
}

/// A format and its check.
#[derive(Debug)]
pub struct NamedFormat {
    pub(crate) name: &'static str,
    /// Length of upstream's pattern, which determines the cost.
    pub(crate) pattern: u64,
    pub(crate) check: fn(&str) -> Vec<String>,
}

/// Authorizer of requests.
pub trait Authorizer: Sync {
    /// Decides for the user of the request, or for the service account in the question.
    fn authorize(&self, question: &Question) -> Decision;
}

/// Attributes of an authorization check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Namespace and name of a service account; `None` for the user of the request.
    pub service_account: Option<(String, String)>,
    /// Non-resource path.
    pub path: Option<String>,
    /// The verb.
    pub verb: String,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Field selector.
    pub field_selector: String,
    /// Label selector.
    pub label_selector: String,
}

/// Decision of the authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The request is allowed.
    pub allowed: bool,
    /// Reason of the decision.
    pub reason: String,
    /// Error of the authorizer.
    pub error: Option<String>,
}

/// Stage of building a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

/// A check that is being built, or its decision.
#[derive(Clone)]
pub struct Check<'a>(pub(crate) Form<'a>);

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "each one stands behind an `Arc` of its own")]
pub(crate) enum Form<'a> {
    Question(&'a dyn Authorizer, Stage, Question),
    Answer(Decision),
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.type_name())
    }
}

impl<'a> Check<'a> {
    /// The variable `authorizer`.
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Value<'a> {
        Value::Check(Arc::new(Self(Form::Question(
            authorizer,
            Stage::Authorizer,
            Question::default(),
        ))))
    }

    /// The variable `authorizer.requestResource`.
    pub fn resource(authorizer: &'a dyn Authorizer, question: Question) -> Value<'a> {
        Value::Check(Arc::new(Self(Form::Question(authorizer, Stage::Resource, question))))
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match &self.0 {
            Form::Question(_, Stage::Authorizer, _) => "kubernetes.authorization.Authorizer",
            Form::Question(_, Stage::Path, _) => "kubernetes.authorization.PathCheck",
            Form::Question(_, Stage::Group, _) => "kubernetes.authorization.GroupCheck",
            Form::Question(_, Stage::Resource, _) => "kubernetes.authorization.ResourceCheck",
            Form::Answer(_) => "kubernetes.authorization.Decision",
        }
    }
}
