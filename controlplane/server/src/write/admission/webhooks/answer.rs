//! Answers of webhooks as reviews, of admission and of conversion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::Answer;
use crate::transport::body::syntax;

/// Bytes of an unstructured answer that are quoted (`maxUnstructuredResponseTextBytes` of
/// client-go).
const TOLD: usize = 2048;

/// A version of reviews: of `AdmissionReview` and of `ConversionReview`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Version {
    V1,
    V1Beta1,
}

impl Version {
    /// The first version that a webhook takes and that is known.
    pub(crate) fn of(versions: &[String]) -> Option<Self> {
        versions.iter().find_map(|version| match version.as_str() {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    /// The `apiVersion` of a group's review.
    pub(crate) fn in_group(self, group: &str) -> String {
        let version = match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        };
        format!("{group}/{version}")
    }
}

/// A review as a webhook returns it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reviewed<R> {
    api_version: Option<String>,
    kind: Option<String>,
    pub(crate) response: Option<R>,
}

impl<R> Reviewed<R> {
    /// Checks type and version of the review.
    ///
    /// # Errors
    /// Upstream's message, if it is another one.
    pub(crate) fn check(&self, version: &str, kind: &str) -> Result<(), String> {
        let given = self.api_version.as_deref().unwrap_or_default();
        let given_kind = self.kind.as_deref().unwrap_or_default();
        if given == version && given_kind == kind {
            return Ok(());
        }
        let slash = if given.contains('/') { "" } else { "/" };
        Err(format!(
            "expected webhook response of {version}, Kind={kind}, got {slash}{given}, Kind={given_kind}"
        ))
    }
}

/// Decodes an answer as a review of the given type. The error is in client-go's words, with a code
/// for metrics.
pub(crate) fn read_answer<T: DeserializeOwned>(answer: &Answer) -> Result<T, (String, u16)> {
    let code = answer.status.as_u16();
    if !(200..=206).contains(&code) {
        return Err((failed(answer), code));
    }
    if answer.body.is_empty() {
        let kind = text(answer, "content-type");
        let because = format!("0-length response with status code: {code} and content type: {kind}");
        return Err((because, 503));
    }
    serde_json::from_slice(&answer.body).map_err(|error| {
        let words = syntax::words(&answer.body, &error);
        (format!("couldn't get version/kind; json parse error: {words}"), 503)
    })
}

/// Decodes a `Status`, ignoring its type metadata.
pub(super) fn status(mut json: Value) -> Option<Status> {
    let members = json.as_object_mut()?;
    members.remove("apiVersion");
    members.remove("kind");
    serde_json::from_value(json).ok()
}

fn text<'a>(answer: &'a Answer, header: &str) -> &'a str {
    let header = answer.headers.get(header).and_then(|value| value.to_str().ok());
    header.unwrap_or_default()
}

/// client-go's message for an unsuccessful answer: that of a `Status`, or one by the code
/// (`NewGenericServerResponse` in apimachinery's `pkg/api/errors/errors.go`).
fn failed(answer: &Answer) -> String {
    let own = serde_json::from_slice(&answer.body).ok().and_then(status);
    if let Some(message) = own
        .filter(|own| own.status.as_deref() == Some("Failure"))
        .and_then(|own| own.message)
    {
        return message;
    }
    let kind = text(answer, "content-type");
    let said = if kind.is_empty() || kind.starts_with("text/") {
        let told = answer.body.get(..TOLD).unwrap_or(&answer.body);
        String::from_utf8_lossy(told).trim().to_owned()
    } else {
        "unknown".to_owned()
    };
    let words = match answer.status.as_u16() {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 406 | 415 => return said,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => return format!("an error on the server ({said:?}) has prevented the request from succeeding"),
        code => {
            return format!("the server responded with the status code {code} but did not return more information");
        }
    };
    words.to_owned()
}
