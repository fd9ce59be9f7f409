//! exec, attach and portforward: a client's connection is handed through to the agent of the pod's node, which speaks the
//! protocols.

use std::fmt::Write as _;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use serde_json::Map;

use super::agent;
use crate::authz::Attributes;
use crate::node::agents::Answer;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::path::percent_encode;
use crate::transport::respond::Response;
use crate::transport::tunnel;
use crate::write::admission::webhooks::{self, Asked};

/// Requested connection to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Exec,
    Attach,
    PortForward,
}

/// Joins the client with the agent.
pub(crate) async fn connect(context: &mut Context, what: Wanted) -> Result<Response, Failure> {
    if context.query.all("dryRun").next().is_some() {
        return Err(Failure::bad_request("dryRun is not supported"));
    }
    may_create(context)?;
    admit(context, what).await?;
    let pod: Pod = context.decoded()?;
    let spec = pod.spec.unwrap_or_default();
    let path = path(context, what, &spec)?;
    let name = &context.info.name;
    let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
        return Err(Failure::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    };
    if !tunnel::is_wanted(&context.headers) {
        return Err(Failure::bad_request("Upgrade request required"));
    }
    let mut request = Request::new(Body::empty());
    *request.method_mut() = context.wire.method.clone();
    *request.uri_mut() = path.parse().map_err(Failure::internal)?;
    *request.headers_mut() = tunnel::headers(&context.headers);
    match context
        .server
        .network
        .ask(node, request, |_, error| agent::undialed(&error))
        .await?
    {
        Answer::Switched(head, back) => tunnel::open(context.wire.upgrade.take(), tunnel::headers(&head.headers), back),
        Answer::Whole(answer) => Ok(refusal(answer).await),
    }
}

/// Calls webhooks for the connection, whose options take the place of an object.
async fn admit(context: &Context, what: Wanted) -> Result<(), Failure> {
    if webhooks::are_idle(context) {
        return Ok(());
    }
    let kind = match what {
        Wanted::Exec => "PodExecOptions",
        Wanted::Attach => "PodAttachOptions",
        Wanted::PortForward => "PodPortForwardOptions",
    };
    let mut options = Map::new();
    options.insert("kind".to_owned(), kind.into());
    options.insert("apiVersion".to_owned(), "v1".into());
    if what == Wanted::PortForward {
        let ports: Vec<i64> = context
            .query
            .all("ports")
            .filter_map(|port| port.parse().ok())
            .collect();
        if !ports.is_empty() {
            options.insert("ports".to_owned(), ports.into());
        }
    } else {
        for flag in ["stdin", "stdout", "stderr", "tty"] {
            if context.query.flag(flag) {
                options.insert(flag.to_owned(), true.into());
            }
        }
        if let Some(container) = context.query.text("container") {
            options.insert("container".to_owned(), container.into());
        }
        let command: Vec<&str> = context.query.all("command").collect();
        if what == Wanted::Exec {
            options.insert("command".to_owned(), command.into());
        }
    }
    let asked = Asked::to_connect(context, kind, options.into());
    Box::pin(webhooks::admit(&asked)).await
}

/// A WebSocket is opened by GET, which must not allow more than the POST of a SPDY client.
fn may_create(context: &Context) -> Result<(), Failure> {
    if context.info.verb == "create" {
        return Ok(());
    }
    let mut info = context.info.clone();
    info.verb = "create";
    context
        .server
        .authorizer
        .check(&context.user, &Attributes::of(&info, ""))
}

/// The agent's path and query.
fn path(context: &Context, what: Wanted, spec: &PodSpec) -> Result<String, Failure> {
    let (namespace, name) = (&context.info.namespace, &context.info.name);
    let kind = match what {
        Wanted::Exec => "exec",
        Wanted::Attach => "attach",
        Wanted::PortForward => {
            let mut path = format!("/portForward/{namespace}/{name}?");
            for ports in context.query.all("ports") {
                write!(path, "port={}&", percent_encode(ports)).map_err(Failure::internal)?;
            }
            return Ok(path);
        }
    };
    let container = agent::container(spec, name, context.query.text("container"))?;
    let mut path = format!("/{kind}/{namespace}/{name}/{container}?");
    for (flag, parameter) in [
        ("stdin", "input"),
        ("stdout", "output"),
        ("stderr", "error"),
        ("tty", "tty"),
    ] {
        if context.query.flag(flag) {
            write!(path, "{parameter}=1&").map_err(Failure::internal)?;
        }
    }
    if what == Wanted::Exec {
        for word in context.query.all("command") {
            write!(path, "command={}&", percent_encode(word)).map_err(Failure::internal)?;
        }
    }
    Ok(path)
}

/// The agent's own message, with its status.
async fn refusal(answer: Response) -> Response {
    let status = answer.status();
    let text = agent::words(answer).await;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
