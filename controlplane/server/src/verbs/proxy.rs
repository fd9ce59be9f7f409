//! HTTP to what is behind a pod, a service or a node: `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`, and a path.
//!
//! Pods are reached through the agent of their node, which knows their addresses; nobody's word about an address opens a
//! connection to anything else.

mod forward;
mod target;

use axum::body::Body;
use http::header::LOCATION;
use http::{HeaderValue, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use super::agent;
use crate::agents::{Answer, Stream};
use crate::context::Context;
use crate::exchange::exchange;
use crate::failure::Failure;
use crate::respond::Response;
use crate::tunnel;
use target::{Behind, Target};

/// Hands a request on and the answer back.
pub(crate) async fn proxy(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let target = Target::read(context)?;
    let (prefix, path) = forward::split(context);
    if path.is_empty() && matches!(context.wire.method.as_str(), "GET" | "HEAD") && !tunnel::is_wanted(&context.headers)
    {
        return redirect(context, &prefix);
    }
    let request = forward::request(context, &path, body)?;
    let answer = match &target.behind {
        Behind::Agent { node } => agent::ask(context, node, request).await?,
        Behind::Pod { namespace, name, port } => {
            let stream = dial(context, namespace, name, *port).await?;
            let stream = if target.secure {
                forward::secure(stream).await
            } else {
                Ok(stream)
            };
            let answer = match stream {
                Ok(stream) => exchange(stream, request, None).await,
                Err(error) => Err(error),
            };
            answer.map_err(|error| unreachable(&error.to_string()))?
        }
    };
    match answer {
        Answer::Switched(head, back) => {
            tunnel::open(context.wire.upgrade.take(), forward::switched(&head.headers), back)
        }
        Answer::Whole(answer) => Ok(forward::answer(answer, &prefix)),
    }
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

fn unreachable(because: &str) -> Failure {
    Failure::Unavailable {
        message: format!("error trying to reach service: {because}").into(),
    }
}

/// A connection to a pod's port, through the agent of its node.
async fn dial(context: &Context, namespace: &str, name: &str, port: u16) -> Result<Box<dyn Stream>, Failure> {
    let pod: Pod = target::find(context, "pods", namespace, name)?;
    let node = pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
    let node = node.ok_or_else(|| Failure::bad_request(format!("pod {name} does not have a host assigned")))?;
    let request = Request::get(format!("/dial/{namespace}/{name}/{port}"))
        .header("connection", "Upgrade")
        .header("upgrade", "tcp")
        .body(Body::empty())
        .map_err(Failure::internal)?;
    match agent::ask(context, &node, request).await? {
        Answer::Switched(_, stream) => Ok(stream),
        Answer::Whole(answer) => Err(unreachable(&agent::words(answer).await)),
    }
}
