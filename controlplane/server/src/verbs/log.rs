//! GET of a container's output, streamed from the agent of the pod's node.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use store::Key;

use crate::context::Context;
use crate::failure::Failure;
use crate::logs::LogRequest;
use crate::object;
use crate::query::Query;
use crate::respond::{self, Response};

/// Where an agent listens unless its Node says otherwise.
const AGENT_PORT: u16 = 10250;
/// Bytes of an agent's failure that are passed on.
const FAILURE_LIMIT: usize = 10 * 1024;

/// Answers plain text.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let name = context.info.name.clone();
    let options = options(&context.query, &name)?;
    let entry = context.entry()?;
    let object = object::stored(context.registration, &entry)?;
    let pod = object
        .as_any()
        .downcast_ref::<Pod>()
        .cloned()
        .ok_or(Failure::NoSuchResource)?;
    drop(object);
    let spec = pod.spec.clone().unwrap_or_default();
    let container = container(&spec, &name, context.query.text("container"))?;
    let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
        // Not on any node yet: there is no output.
        return Ok(respond::with_type(StatusCode::OK, "text/plain", ""));
    };
    let Some(source) = context.server.options.logs.clone() else {
        return Err(Failure::Unavailable {
            message: "this server has no way to the nodes' agents".into(),
        });
    };
    let (node_address, port) = address(context, node)?;
    let path_and_query = format!("/containerLogs/{}/{name}/{container}{options}", context.info.namespace);
    let request = LogRequest {
        node_name: node.to_owned(),
        node_address,
        port,
        path_and_query,
    };
    let answer = source.logs(request).await.map_err(Failure::internal)?;
    pass_on(answer).await
}

async fn pass_on(answer: Response) -> Result<Response, Failure> {
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
    let text = match Limited::new(body, FAILURE_LIMIT).collect().await {
        Ok(collected) => String::from_utf8_lossy(&collected.to_bytes()).trim().to_owned(),
        Err(_too_long) => String::new(),
    };
    Err(match parts.status {
        StatusCode::BAD_REQUEST => Failure::bad_request(text),
        StatusCode::NOT_FOUND => Failure::NoSuchResource,
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
        found.push(api::Invalid::forbidden("", detail));
    }
    if let Some(text) = since_time
        && let Err(error) = text.parse::<k8s_openapi::jiff::Timestamp>()
    {
        return Err(Failure::bad_request(format!("parsing time {text:?}: {error}")));
    }
    if !found.is_empty() {
        return Err(Failure::invalid("", "PodLogOptions", name, &found));
    }
    let mut pairs = Vec::new();
    let numbers = [("tailLines", tail), ("limitBytes", bytes), ("sinceSeconds", since)];
    pairs.extend(
        numbers
            .into_iter()
            .filter_map(|(field, value)| Some(format!("{field}={}", value?))),
    );
    pairs.extend(since_time.map(|text| format!("sinceTime={}", text.replace('+', "%2B"))));
    let flags = ["follow", "previous", "timestamps"];
    pairs.extend(
        flags
            .into_iter()
            .filter(|flag| query.flag(flag))
            .map(|flag| format!("{flag}=true")),
    );
    Ok(if pairs.is_empty() {
        String::new()
    } else {
        format!("?{}", pairs.join("&"))
    })
}

/// The container that is meant: the one named, or the only one.
fn container(spec: &PodSpec, pod: &str, wanted: Option<&str>) -> Result<String, Failure> {
    let names = |containers: &[Container]| containers.iter().map(|own| own.name.clone()).collect::<Vec<_>>();
    let (plain, init) = (
        names(&spec.containers),
        names(spec.init_containers.as_deref().unwrap_or_default()),
    );
    let Some(wanted) = wanted else {
        return match plain.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(Failure::bad_request(format!(
                "a container name must be specified for pod {pod}"
            ))),
            several => {
                let mut text = format!(
                    "a container name must be specified for pod {pod}, choose one of: [{}]",
                    several.join(" ")
                );
                if !init.is_empty() {
                    text.extend([" or one of the init containers: [", &init.join(" "), "]"]);
                }
                Err(Failure::bad_request(text))
            }
        };
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|own| own.name == wanted);
    if ephemeral || plain.iter().chain(&init).any(|own| own == wanted) {
        return Ok(wanted.to_owned());
    }
    Err(Failure::bad_request(format!(
        "container {wanted} is not valid for pod {pod}"
    )))
}

/// Where the node's agent listens.
fn address(context: &Context, node: &str) -> Result<(String, u16), Failure> {
    let missing = || Failure::NotFound {
        target: crate::failure::Target {
            resource: crate::failure::GroupResource::new("", "nodes"),
            name: node.to_owned(),
        },
    };
    let key = Key::new("", "nodes", "", node).map_err(|_error| missing())?;
    let entry = context.store().get(&key).ok_or_else(missing)?;
    let status = serde_json::from_slice::<Node>(&entry.bytes)
        .map_err(Failure::internal)?
        .status
        .unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default();
    let preferred = ["InternalIP", "Hostname", "InternalDNS", "ExternalIP", "ExternalDNS"];
    let address = preferred
        .iter()
        .find_map(|kind| addresses.iter().find(|address| address.type_ == *kind))
        .map(|address| address.address.clone())
        .ok_or_else(|| {
            Failure::internal(format!(
                "no preferred addresses found; known addresses: []; node {node}"
            ))
        })?;
    let port = status
        .daemon_endpoints
        .and_then(|endpoints| endpoints.kubelet_endpoint)
        .map(|endpoint| endpoint.port);
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .unwrap_or(AGENT_PORT);
    Ok((address, port))
}
