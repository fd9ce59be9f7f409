//! GET of `ComponentStatus`, computed on request. Store, controllers and scheduler are parts of the
//! process that answers, which ends when one of them fails: the only open question is whether it
//! has started up.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::core::v1::{ComponentCondition, ComponentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::selection::Selection;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{Response, encode};
use crate::transport::shape::{self, Head};

/// Names of the components that clients know.
const COMPONENTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

/// Answers one component.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    if !COMPONENTS.contains(&context.info.name.as_str()) {
        return Err(Failure::NotFound {
            target: context.own_target(),
        });
    }
    let bytes = component(context, &context.info.name);
    shape::one(context, StatusCode::OK, representation, bytes).await
}

/// Answers all components that the selectors match.
pub(crate) async fn list(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let selection = Selection::read(&context.registration, &context.query)?;
    let named = COMPONENTS
        .into_iter()
        .filter(|name| selection.is_everything() || selection.name() == Some(name));
    let items = named.map(|name| component(context, name)).collect();
    let head = Head {
        revision: context.store().revision(),
        remainder: None,
        remaining: None,
    };
    shape::list(context, representation, &head, items).await
}

fn component(context: &Context, name: &str) -> Bytes {
    let healthy = context.server.ready.load(Ordering::Acquire);
    let condition = ComponentCondition {
        type_: "Healthy".to_owned(),
        status: if healthy { "True" } else { "False" }.to_owned(),
        message: healthy.then(|| "ok".to_owned()),
        error: (!healthy).then(|| "not started yet".to_owned()),
    };
    encode(&ComponentStatus {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        conditions: Some(vec![condition]),
    })
}
