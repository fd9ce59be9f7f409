//! Conversion of errors to Kubernetes `Status` objects, with upstream's reasons, codes and messages
//! (apimachinery's `pkg/api/errors`).

mod parts;

use std::borrow::Cow;

use api::managed::{Conflict, conflict_message};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status, StatusCause, StatusDetails};
use thiserror::Error;

pub(crate) use parts::shown;
pub use parts::{Cause, GroupResource, Target};
use parts::{aggregate, told};

/// Prefix of upstream's message about an existing object that is being deleted.
const GOING: &str = "object is being deleted: ";
const DRAWN: &str = ", the server was not able to generate a unique name for the object";

/// Error of a request. [`Failure::status`] gives the answer's body, `code()` its HTTP status.
#[derive(Debug, Clone, Error)]
pub enum Failure {
    /// 400
    #[error("{message}")]
    BadRequest {
        /// The whole message.
        message: Cow<'static, str>,
    },
    /// 401
    #[error("Unauthorized")]
    Unauthorized,
    /// 403 by the authorizer or by admission.
    #[error("{}{because}", forbidden_prefix(target.as_ref()))]
    Forbidden {
        /// Object that the request is for; `None` for a path that names no resource.
        target: Option<Target>,
        /// Text after `x is forbidden: `.
        because: String,
        /// Machine-readable causes.
        causes: Vec<Cause>,
    },
    /// 404 for an object.
    #[error("{} {:?} not found", target.resource, target.name)]
    NotFound {
        /// The object.
        target: Target,
    },
    /// 404 that a node's agent answered when it was asked for a part of an object.
    #[error("the server could not find the requested resource ( {} {})", target.resource, target.name)]
    NotFoundByNode {
        /// The object, its resource with the part behind a slash.
        target: Target,
    },
    /// 404 for a path inside a known group and version.
    #[error("the server could not find the requested resource")]
    NoSuchResource,
    /// 404 for a path that nothing serves; plain text.
    #[error("404 page not found")]
    NoSuchPath,
    /// 405
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    /// 406
    #[error("{message}")]
    NotAcceptable {
        /// The whole message.
        message: Cow<'static, str>,
    },
    /// 409 reason `AlreadyExists`
    #[error(
        "{}{} {:?} already exists{}",
        if *going { GOING } else { "" },
        target.resource,
        target.name,
        if *drawn { DRAWN } else { "" }
    )]
    AlreadyExists {
        /// The object.
        target: Target,
        /// True if the existing object is being deleted.
        going: bool,
        /// True if the new object has a `generateName`, be it used or not (`CheckGeneratedNameError`
        /// of `staging/src/k8s.io/apiserver/pkg/registry/rest/create.go`).
        drawn: bool,
    },
    /// 409 reason Conflict
    #[error("Operation cannot be fulfilled on {} {:?}: {because}", target.resource, target.name)]
    Conflict {
        /// The object.
        target: Target,
        /// Text after the colon.
        because: Cow<'static, str>,
    },
    /// 409 reason Conflict: other managers own applied fields.
    #[error("{}", conflict_message(conflicts))]
    ApplyConflict {
        /// The fields.
        conflicts: Vec<Conflict>,
    },
    /// 410 reason Expired
    #[error("{message}")]
    Expired {
        /// The whole message.
        message: Cow<'static, str>,
        /// A continue token for the inconsistent remainder.
        remainder: Option<String>,
    },
    /// 413
    #[error("Request entity too large: limit is {limit}")]
    TooLarge {
        /// Bytes.
        limit: usize,
    },
    /// 413 for other limits (such as the operations of a patch).
    #[error("{message}")]
    TooManyParts {
        /// The whole message.
        message: String,
    },
    /// 415
    #[error("the body of the request was in an unknown format - accepted media types include: {accepted}")]
    UnsupportedMediaType {
        /// Accepted media types, joined.
        accepted: &'static str,
    },
    /// 422
    #[error("{} {name:?} is invalid: {}", kind, aggregate(causes))]
    Invalid {
        /// Group and kind, with the kind in `resource`.
        kind: GroupResource,
        /// Name of the object.
        name: String,
        /// Validation errors, at least one.
        causes: Vec<Cause>,
    },
    /// 422 for a patch that cannot be applied.
    #[error("the server rejected our request due to an error in our request")]
    Unprocessable,
    /// 429
    #[error("{message}")]
    TooManyRequests {
        /// The whole message.
        message: Cow<'static, str>,
        /// Seconds to wait.
        retry_after: i32,
        /// Machine-readable causes.
        causes: Vec<Cause>,
    },
    /// 429 before the request was examined; plain text.
    #[error("Too many requests, please try again later.")]
    Overloaded {
        /// Seconds to wait.
        retry_after: i32,
    },
    /// 500
    #[error("Internal error occurred: {message}")]
    Internal {
        /// Text after the colon.
        message: String,
    },
    /// 500 without a reason, as upstream answers unexpected errors.
    #[error("{message}")]
    Unexpected {
        /// The whole message.
        message: String,
    },
    /// 503
    #[error("{message}")]
    Unavailable {
        /// The whole message.
        message: Cow<'static, str>,
    },
    /// Any code and reason: those of an admission webhook, or of the failure to call it.
    #[error("{}", status.message.as_deref().unwrap_or_default())]
    Told {
        /// The whole answer.
        status: Box<Status>,
    },
    /// 504 for an answer that was not ready in time.
    #[error("Timeout: request did not complete within requested timeout - context deadline exceeded")]
    Late,
    /// 504 for a resource version that the server has not reached.
    #[error("Timeout: Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// Asked for.
        requested: u64,
        /// Reached.
        current: u64,
    },
}

fn forbidden_prefix(target: Option<&Target>) -> String {
    match target {
        None => "forbidden: ".to_owned(),
        Some(target) if target.name.is_empty() => format!("{} is forbidden: ", target.resource),
        Some(target) => format!("{} {:?} is forbidden: ", target.resource, target.name),
    }
}

impl Failure {
    /// 429 for lack of resources.
    pub(crate) const OVERLOADED: Self = Self::Overloaded { retry_after: 1 };

    /// 400 with a message.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::BadRequest {
            message: message.into(),
        }
    }

    /// 406 for a client that accepts none of the served types.
    pub fn accepts_only(types: &str) -> Self {
        Self::NotAcceptable {
            message: format!("only the following media types are accepted: {types}").into(),
        }
    }

    /// 500 with the error's message.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::Internal {
            message: error.to_string(),
        }
    }

    /// 410 for a list or watch.
    pub fn expired(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Expired {
            message: message.into(),
            remainder: None,
        }
    }

    /// 422 from validation's findings.
    pub fn invalid(group: &'static str, kind: &'static str, name: &str, found: &[api::Invalid]) -> Self {
        Self::Invalid {
            kind: GroupResource::new(group, kind),
            name: name.to_owned(),
            causes: told(found),
        }
    }

    /// HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Self::BadRequest { .. } => 400,
            Self::Unauthorized => 401,
            Self::Forbidden { .. } => 403,
            Self::NotFound { .. } | Self::NotFoundByNode { .. } | Self::NoSuchResource | Self::NoSuchPath => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable { .. } => 406,
            Self::AlreadyExists { .. } | Self::Conflict { .. } | Self::ApplyConflict { .. } => 409,
            Self::Expired { .. } => 410,
            Self::TooLarge { .. } | Self::TooManyParts { .. } => 413,
            Self::UnsupportedMediaType { .. } => 415,
            Self::Invalid { .. } | Self::Unprocessable => 422,
            Self::TooManyRequests { .. } | Self::Overloaded { .. } => 429,
            Self::Internal { .. } | Self::Unexpected { .. } => 500,
            Self::Unavailable { .. } => 503,
            Self::TooLargeResourceVersion { .. } | Self::Late => 504,
            Self::Told { status } => status.code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
        }
    }

    /// `StatusReason`
    pub fn reason(&self) -> &str {
        match self {
            Self::BadRequest { .. } => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden { .. } => "Forbidden",
            Self::NotFound { .. } | Self::NotFoundByNode { .. } | Self::NoSuchResource | Self::NoSuchPath => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable { .. } => "NotAcceptable",
            Self::AlreadyExists { .. } => "AlreadyExists",
            Self::Conflict { .. } | Self::ApplyConflict { .. } => "Conflict",
            Self::Expired { .. } => "Expired",
            Self::TooLarge { .. } | Self::TooManyParts { .. } => "RequestEntityTooLarge",
            Self::UnsupportedMediaType { .. } => "UnsupportedMediaType",
            Self::Invalid { .. } | Self::Unprocessable => "Invalid",
            Self::TooManyRequests { .. } | Self::Overloaded { .. } => "TooManyRequests",
            Self::Internal { .. } => "InternalError",
            Self::Unexpected { .. } => "",
            Self::Unavailable { .. } => "ServiceUnavailable",
            Self::TooLargeResourceVersion { .. } | Self::Late => "Timeout",
            Self::Told { status } => status.reason.as_deref().unwrap_or_default(),
        }
    }

    /// Seconds after which a client should try again.
    pub fn retry_after(&self) -> Option<i32> {
        match self {
            Self::TooManyRequests { retry_after, .. } | Self::Overloaded { retry_after } => {
                Some(*retry_after).filter(|seconds| *seconds > 0)
            }
            Self::TooLargeResourceVersion { .. } | Self::AlreadyExists { drawn: true, .. } => Some(1),
            Self::Told { status } => {
                let details = status.details.as_ref();
                details
                    .and_then(|details| details.retry_after_seconds)
                    .filter(|seconds| *seconds > 0)
            }
            Self::Late
            | Self::BadRequest { .. }
            | Self::Unauthorized
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::NotFoundByNode { .. }
            | Self::NoSuchResource
            | Self::NoSuchPath
            | Self::MethodNotAllowed
            | Self::NotAcceptable { .. }
            | Self::AlreadyExists { .. }
            | Self::Conflict { .. }
            | Self::ApplyConflict { .. }
            | Self::Expired { .. }
            | Self::TooLarge { .. }
            | Self::TooManyParts { .. }
            | Self::UnsupportedMediaType { .. }
            | Self::Invalid { .. }
            | Self::Unprocessable
            | Self::Internal { .. }
            | Self::Unexpected { .. }
            | Self::Unavailable { .. } => None,
        }
    }

    fn details(&self) -> Option<StatusDetails> {
        let of = |target: &Target| StatusDetails {
            name: some(&target.name),
            group: some(&target.resource.group),
            kind: some(&target.resource.resource),
            ..StatusDetails::default()
        };
        match self {
            Self::Forbidden { target, causes, .. } => {
                let mut details = target.as_ref().map(of).unwrap_or_default();
                details.causes = some_causes(causes);
                Some(details)
            }
            Self::NotFound { target }
            | Self::NotFoundByNode { target }
            | Self::AlreadyExists { target, .. }
            | Self::Conflict { target, .. } => Some(StatusDetails {
                retry_after_seconds: self.retry_after(),
                ..of(target)
            }),
            Self::Invalid { kind, name, causes } => Some(StatusDetails {
                name: some(name),
                group: some(&kind.group),
                kind: some(&kind.resource),
                causes: some_causes(causes),
                ..StatusDetails::default()
            }),
            Self::Internal { message } => Some(StatusDetails {
                causes: Some(vec![StatusCause {
                    message: Some(message.clone()),
                    ..StatusCause::default()
                }]),
                ..StatusDetails::default()
            }),
            Self::TooManyRequests {
                retry_after, causes, ..
            } => Some(StatusDetails {
                causes: some_causes(causes),
                retry_after_seconds: Some(*retry_after).filter(|seconds| *seconds > 0),
                ..StatusDetails::default()
            }),
            Self::TooLargeResourceVersion { .. } => Some(StatusDetails {
                causes: Some(vec![StatusCause {
                    reason: Some("ResourceVersionTooLarge".to_owned()),
                    message: Some("Too large resource version".to_owned()),
                    field: None,
                }]),
                retry_after_seconds: Some(1),
                ..StatusDetails::default()
            }),
            Self::ApplyConflict { conflicts } => Some(StatusDetails {
                causes: Some(conflicts.iter().map(conflicting).collect()),
                ..StatusDetails::default()
            }),
            Self::Told { status } => status.details.clone(),
            Self::NoSuchResource | Self::MethodNotAllowed | Self::Unprocessable | Self::Late => {
                Some(StatusDetails::default())
            }
            Self::BadRequest { .. }
            | Self::Unauthorized
            | Self::NoSuchPath
            | Self::NotAcceptable { .. }
            | Self::Expired { .. }
            | Self::TooLarge { .. }
            | Self::TooManyParts { .. }
            | Self::UnsupportedMediaType { .. }
            | Self::Unexpected { .. }
            | Self::Overloaded { .. }
            | Self::Unavailable { .. } => None,
        }
    }

    /// The answer's body.
    pub fn status(&self) -> Status {
        if let Self::Told { status } = self {
            return Status::clone(status);
        }
        let remainder = if let Self::Expired { remainder, .. } = self {
            remainder.clone()
        } else {
            None
        };
        Status {
            code: Some(i32::from(self.code())),
            details: self.details(),
            message: Some(self.to_string()),
            metadata: ListMeta {
                continue_: remainder,
                ..ListMeta::default()
            },
            reason: some(self.reason()),
            status: Some("Failure".to_owned()),
        }
    }
}

fn conflicting(conflict: &Conflict) -> StatusCause {
    StatusCause {
        reason: Some("FieldManagerConflict".to_owned()),
        message: Some(format!("conflict with {}", conflict.manager)),
        field: Some(conflict.field.clone()),
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn some_causes(causes: &[Cause]) -> Option<Vec<StatusCause>> {
    (!causes.is_empty()).then(|| {
        causes
            .iter()
            .map(|cause| StatusCause {
                reason: some(&cause.reason),
                field: some(&cause.field),
                message: some(&cause.message),
            })
            .collect()
    })
}
