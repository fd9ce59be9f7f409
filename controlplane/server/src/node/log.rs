//! GET of a container's output, streamed from the agent of the pod's node.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use super::agent;
use crate::node::agents::{Agent, AgentError, Answer};
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};
use crate::request::path::percent_encode;
use crate::request::query::Query;
use crate::transport::respond::{self, Response};
use crate::transport::tunnel;

/// Answers plain text.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let name = context.info.name.clone();
    let options = options(&context.query, &name)?;
    let pod: Pod = context.decoded()?;
    let spec = pod.spec.unwrap_or_default();
    let container = agent::container(&spec, &name, context.query.text("container"))?;
    let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
        // Not on any node yet: there is no output.
        return Ok(respond::with_type(StatusCode::OK, "text/plain", ""));
    };
    let path = format!("/containerLogs/{}/{name}/{container}{options}", context.info.namespace);
    let request = http::Request::get(&path).body(axum::body::Body::empty());
    let mut request = request.map_err(Failure::internal)?;
    // A client of WebSocket gets the output in messages.
    if tunnel::is_wanted(&context.headers) {
        *request.headers_mut() = tunnel::headers(&context.headers);
    }
    let told = |agent: &Agent, error: AgentError| {
        let host = if agent.address.contains(':') {
            format!("[{}]:{}", agent.address, agent.port)
        } else {
            format!("{}:{}", agent.address, agent.port)
        };
        Failure::Unexpected {
            message: format!("Get \"https://{host}{path}\": {error}"),
        }
    };
    match context.server.network.ask(node, request, told).await? {
        Answer::Whole(answer) => pass_on(answer, &name).await,
        Answer::Switched(head, back) => tunnel::open(context.wire.upgrade.take(), tunnel::headers(&head.headers), back),
    }
}

async fn pass_on(answer: Response, pod: &str) -> Result<Response, Failure> {
    let (mut parts, body) = answer.into_parts();
    if parts.status.is_success() {
        let content_type = parts
            .headers
            .remove(CONTENT_TYPE)
            .unwrap_or(HeaderValue::from_static("text/plain"));
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        return Ok(response);
    }
    let text = agent::words(Response::new(body)).await;
    Err(match parts.status {
        StatusCode::BAD_REQUEST => Failure::bad_request(text),
        StatusCode::NOT_FOUND => Failure::NotFoundByNode {
            target: Target {
                resource: GroupResource::new("", "pods/log"),
                name: pod.to_owned(),
            },
        },
        _ => Failure::internal(text),
    })
}

/// The agent's query, after upstream's checks.
fn options(query: &Query, name: &str) -> Result<String, Failure> {
    let mut found = Vec::new();
    let mut at_least = |field: &'static str, least: i64, detail: &str| -> Result<Option<i64>, Failure> {
        let value = query.number(field)?;
        if let Some(value) = value.filter(|value| *value < least) {
            found.push(api::Invalid::value(field, value, detail));
        }
        Ok(value)
    };
    let tail = at_least("tailLines", 0, "must be greater than or equal to 0")?;
    let bytes = at_least("limitBytes", 1, "must be greater than 0")?;
    let since = at_least("sinceSeconds", 1, "must be greater than 0")?;
    let since_time = query.text("sinceTime");
    if since.is_some() && since_time.is_some() {
        let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        found.push(api::Invalid::forbidden("[]", detail));
    }
    if let Some(text) = since_time
        && let Err(error) = text.parse::<k8s_openapi::jiff::Timestamp>()
    {
        return Err(Failure::bad_request(format!("parsing time {text:?}: {error}")));
    }
    // Choosing one of the two outputs is an alpha feature, which is off.
    if query.get("stream").is_some() {
        found.push(api::Invalid::forbidden("stream", "may not be specified"));
    }
    if !found.is_empty() {
        return Err(Failure::invalid("", "PodLogOptions", name, &found));
    }
    let flag = |name: &str| query.flag(name).then(|| "true".to_owned());
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    let mut pairs = String::new();
    // In the order in which Go writes them.
    for (field, value) in [
        ("follow", flag("follow")),
        ("limitBytes", number(bytes)),
        ("previous", flag("previous")),
        ("sinceSeconds", number(since)),
        ("sinceTime", since_time.map(|text| percent_encode(text).to_uppercase())),
        ("tailLines", number(tail)),
        ("timestamps", flag("timestamps")),
    ] {
        if let Some(value) = value {
            let mark = if pairs.is_empty() { '?' } else { '&' };
            pairs.extend([mark.to_string().as_str(), field, "=", &value]);
        }
    }
    Ok(pairs)
}
