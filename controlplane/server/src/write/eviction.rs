//! POST of an Eviction: deletes a pod with its grace period, if its disruption budget allows that. The budget is charged
//! by the commit that marks the pod, so that no two evictions share one allowance.

mod budget;

use api::kinds::subresources::EVICTION;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::options::{Deletion, FieldValidation, WriteOptions};
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{self, Response, encode};
use crate::write::admission::webhooks;
use crate::write::binding::set_condition;
use crate::write::create::check_namespace;
use crate::write::delete::remove_with;

/// `POST pods/NAME/eviction`
pub(crate) async fn create(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let body = body::read(body).await?;
    let mut decoded = body::to_json(
        &context.headers,
        body,
        EVICTION.kind,
        options.field_validation != FieldValidation::Ignore,
    )?;
    decoded.json = as_v1(decoded.json);
    let eviction: Eviction = context.read_part(&EVICTION, decoded, options.field_validation)?;
    let name = context.info.name.clone();
    if eviction.metadata.name.as_deref().unwrap_or_default() != name {
        return Err(Failure::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    check_namespace(context, eviction.metadata.namespace.as_deref())?;
    let eviction = webhooks::admit_part(context, &EVICTION, eviction).await?;
    let mut deletion = match &eviction.delete_options {
        Some(options) => {
            let json = serde_json::to_vec(options).map_err(Failure::internal)?;
            Deletion::read(&http::HeaderMap::new(), &context.query, json.into())?
        }
        None => Deletion::default(),
    };
    deletion.dry_run |= options.dry_run;
    let now = context.now();
    remove_with(context, &name, &deletion, &mut |_entry, object| {
        let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
            return Ok(Vec::new());
        };
        let charge = budget::charge(context, pod, now)?;
        if pod.metadata.deletion_timestamp.is_none() {
            let condition = evicted(pod.metadata.generation, Time(now));
            set_condition(pod, condition);
        }
        Ok(charge.into_iter().collect())
    })
    .await?;
    let answer = respond::success(201, None);
    context.notes.response = Some(answer.clone());
    respond::status(representation.encoding, StatusCode::CREATED, &answer)
}

fn evicted(generation: Option<i64>, now: Time) -> PodCondition {
    PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("EvictionByEvictionAPI".to_owned()),
        message: Some("Eviction API: evicting".to_owned()),
        last_transition_time: Some(now),
        observed_generation: generation,
        ..PodCondition::default()
    }
}

/// `policy/v1` and `policy/v1beta1` have the same shape.
fn as_v1(json: Bytes) -> Bytes {
    let mut members: Map<String, Value> = serde_json::from_slice(&json).unwrap_or_default();
    match members.get_mut("apiVersion") {
        Some(version) if *version == "policy/v1beta1" => {
            *version = EVICTION.api_version().into();
            encode(&members)
        }
        _ => json,
    }
}
