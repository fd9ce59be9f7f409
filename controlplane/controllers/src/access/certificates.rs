//! Controllers of certificate signing requests: approve those of nodes' agents, sign approved ones,
//! and delete old ones.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane_plan::access::certificates::{self, Act, Right};
use controlplane_plan::objects::target;
use controlplane_plan::step::{ACCESS_REVIEWS, SIGNING_REQUESTS};
use http::Method;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};
use tracing::debug;

use crate::Certify;
use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON};

/// Delay before a failed request to the server is retried.
const RETRY: Duration = Duration::from_secs(5);
/// Interval at which authorization is checked again for an unapproved request.
const ASK_AGAIN: Duration = Duration::from_mins(1);

/// Wakes new and changed requests.
pub(crate) fn listen(caches: &Caches) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("certificate");
    caches.signing_requests.wake_if(&queue, |_| true);
    queue
}

/// Runs the controllers forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>, certify: Certify, names: Arc<[String]>) {
    context.caches.synced().await;
    loop {
        let key = queue.next().await;
        let looked = look_after(&context, &certify, &names, &key).await;
        queue.done(&key);
        match looked {
            Ok(Some(again)) => queue.push_after(key, again),
            Ok(None) => {}
            Err(error) => {
                debug!(request = %key, error = &error as &dyn std::error::Error, "not looked after");
                queue.push_after(key, RETRY);
            }
        }
    }
}

/// Processes a request; returns the time of the next look, unless a change comes earlier.
async fn look_after(
    context: &Context,
    certify: &Certify,
    names: &[String],
    key: &Key,
) -> Result<Option<Duration>, Error> {
    let object: Value = match request::get(&context.client, &SIGNING_REQUESTS, "", &key.name).await {
        Err(error) if error.code() == 404 => return Ok(None),
        object => object?,
    };
    let Some(asked) = read(&object) else { return Ok(None) };
    let now = (context.clock)();
    let (act, left) = certificates::plan(&asked, names, now);
    match act {
        Act::Rest => return Ok(left),
        Act::Delete => {
            let target = target(SIGNING_REQUESTS, &asked);
            request::delete(&context.client, &target, target_version(&asked), None, None).await?;
        }
        Act::Approve(rights) => {
            for right in rights {
                if is_allowed(context, &object, right).await? {
                    let condition = condition("Approved", "AutoApproved", right.message);
                    put(context, key, "approval", with_condition(object, condition)).await?;
                    return Ok(left);
                }
            }
            return Ok(Some(left.unwrap_or(ASK_AGAIN).min(ASK_AGAIN)));
        }
        Act::Sign(wanted) => {
            let spec = &asked.spec;
            let usages = spec.usages.as_deref().unwrap_or_default();
            let Some(signed) = certify(&wanted, usages, spec.expiration_seconds) else {
                return Ok(Some(RETRY));
            };
            let mut object = object;
            if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
                status.insert("certificate".to_owned(), STANDARD.encode(signed).into());
            }
            put(context, key, "status", object).await?;
        }
        Act::Fail(unfit) => {
            let condition = condition("Failed", "SignerValidationFailure", &unfit.to_string());
            put(context, key, "status", with_condition(object, condition)).await?;
        }
    }
    Ok(left)
}

/// Decodes the object with the API's own decoder.
fn read(object: &Value) -> Option<CertificateSigningRequest> {
    let registration = api::find(
        SIGNING_REQUESTS.group,
        SIGNING_REQUESTS.version,
        SIGNING_REQUESTS.plural,
    )?;
    let decoded = registration.decode(object.to_string().as_bytes()).ok()?;
    decoded.as_any().downcast_ref().cloned()
}

fn target_version(request: &CertificateSigningRequest) -> Option<&str> {
    request.metadata.resource_version.as_deref()
}

/// Checks whether the requester has a permission.
async fn is_allowed(context: &Context, object: &Value, right: Right) -> Result<bool, Error> {
    let asker = |field: &str| object.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
    let review = json!({
        "apiVersion": ACCESS_REVIEWS.api_version(),
        "kind": ACCESS_REVIEWS.kind,
        "spec": {
            "user": asker("username"),
            "uid": asker("uid"),
            "groups": asker("groups"),
            "extra": asker("extra"),
            "resourceAttributes": {
                "group": SIGNING_REQUESTS.group,
                "resource": SIGNING_REQUESTS.plural,
                "subresource": right.subresource,
                "verb": "create",
            },
        },
    });
    let path = request::path(&ACCESS_REVIEWS, "", "", "");
    let body = review.to_string().into_bytes();
    let answer: Value = request::send(&context.client, Method::POST, path, JSON, body).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true))
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": reason, "message": message })
}

fn with_condition(mut object: Value, further: Value) -> Value {
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.push(further);
        }
    }
    object
}

/// Writes a subresource of a request, unless the request has changed meanwhile.
async fn put(context: &Context, key: &Key, part: &str, object: Value) -> Result<(), Error> {
    let path = request::path(&SIGNING_REQUESTS, "", &key.name, part);
    let body = object.to_string().into_bytes();
    request::send::<Value>(&context.client, Method::PUT, path, JSON, body).await?;
    Ok(())
}
