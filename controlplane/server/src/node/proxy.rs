//! HTTP proxy to a pod, a service or a node: `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`, and a path.
//!
//! Pods are reached through the agent of their node, which knows their addresses, and so are the
//! node's own ports; an address that a client or object names opens no connection to anything else
//! (SSRF).

pub(crate) mod endpoints;
pub(crate) mod forward;
mod links;
mod target;

use axum::body::Body;
use http::header::LOCATION;
use http::{HeaderValue, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use serde_json::json;

use super::agent;
use crate::node::agents::{AgentError, Answer, Stream};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::transport::connection::exchange;
use crate::transport::dialer;
use crate::transport::respond::Response;
use crate::transport::tunnel;
use crate::write::admission::webhooks::{self, Asked};
use links::Place;
use target::{Behind, Target};

/// Hands a request on and the answer back.
pub(crate) async fn proxy(context: &mut Context, body: Body) -> Result<Response, Failure> {
    admit(context).await?;
    let target = Target::read(context)?;
    let (prefix, path) = forward::split(context);
    if path.is_empty() && matches!(context.wire.method.as_str(), "GET" | "HEAD") && !tunnel::is_wanted(&context.headers)
    {
        return redirect(context, &prefix);
    }
    let request = forward::request(context, &prefix, body)?;
    let upgrade = tunnel::is_wanted(&context.headers);
    let mut place = Place::new(context, prefix);
    let answer = match &target.behind {
        Behind::Agent { node } => {
            context
                .server
                .network
                .ask(node, request, |_, error| unanswered(&error, upgrade))
                .await?
        }
        Behind::Nowhere { because } => return Err(unreachable(because, upgrade)),
        Behind::Node { node, port } => {
            let stream = dial(context, node, &format!("/dial/{port}"), upgrade).await?;
            behind(stream, target.secure, request, upgrade).await?
        }
        Behind::Pod { namespace, name, port } => {
            let pod: Pod = target::find(context, "pods", namespace, name)?;
            place.is_of(&pod, *port);
            let node = pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
            let node = node.ok_or_else(|| Failure::bad_request(format!("pod {name} does not have a host assigned")))?;
            let stream = dial(context, &node, &format!("/dial/{namespace}/{name}/{port}"), upgrade).await?;
            behind(stream, target.secure, request, upgrade).await?
        }
    };
    match answer {
        Answer::Switched(head, back) => {
            tunnel::open(context.wire.upgrade.take(), forward::switched(&head.headers), back)
        }
        Answer::Whole(answer) => Ok(forward::answer(answer, &place).await),
    }
}

/// Calls webhooks for the connection, whose options take the place of an object.
async fn admit(context: &Context) -> Result<(), Failure> {
    if webhooks::are_idle(context) {
        return Ok(());
    }
    let kind = format!("{}ProxyOptions", context.registration.kind);
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    let path = context.info.rest.join("/");
    if let (Some(members), false) = (options.as_object_mut(), path.is_empty()) {
        members.insert("path".to_owned(), path.into());
    }
    let asked = Asked::to_connect(context, &kind, options);
    Box::pin(webhooks::admit(&asked)).await
}

/// A page's own links are relative to a directory.
fn redirect(context: &Context, prefix: &str) -> Result<Response, Failure> {
    let query = context
        .wire
        .uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let location = HeaderValue::from_str(&format!("{prefix}/{query}")).map_err(Failure::internal)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

/// Error for a target without an address; upgrade requests get the error that exec does.
fn unreachable(because: &str, upgrade: bool) -> Failure {
    if upgrade {
        let because = because.to_owned();
        return agent::undialed(&AgentError::Unreachable { because });
    }
    Failure::Unavailable {
        message: format!("error trying to reach service: {because}").into(),
    }
}

fn unanswered(error: &AgentError, upgrade: bool) -> Failure {
    if upgrade {
        return agent::undialed(error);
    }
    unreachable(&error.to_string(), false)
}

/// A connection to a port of a pod or of a node, through the node's agent.
async fn dial(context: &Context, node: &str, path: &str, upgrade: bool) -> Result<Box<dyn Stream>, Failure> {
    let request = Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "tcp")
        .body(Body::empty())
        .map_err(Failure::internal)?;
    match context
        .server
        .network
        .ask(node, request, |_, error| unreachable(&error.to_string(), upgrade))
        .await?
    {
        Answer::Switched(_, stream) => Ok(stream),
        Answer::Whole(answer) => Err(unreachable(&agent::words(answer).await, upgrade)),
    }
}

/// Proxies to the server at the end of a connection.
async fn behind(
    stream: Box<dyn Stream>,
    secure: bool,
    request: Request<Body>,
    upgrade: bool,
) -> Result<Answer, Failure> {
    let stream = if secure {
        let secured = forward::secure(stream).await;
        secured.map_err(|error| unreachable(&dialer::unsecured(&error), upgrade))?
    } else {
        stream
    };
    exchange(stream, request, None).await.map_err(|error| {
        let because = error.to_string();
        unanswered(&AgentError::Silent { because }, upgrade)
    })
}
