//! Kinds that are only asked or done, never stored: the body is the question, the answer the same object with its status.

use axum::body::Body;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::authn;
use crate::authn::tokens::{Refused, Used};
use crate::authz::access_review;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use crate::request::options::WriteOptions;
use crate::transport::body;
use crate::transport::negotiation::negotiate_review;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::admission::webhooks;
use crate::write::binding;

/// `POST` of a kind that is created only.
pub(crate) async fn create(context: &mut Context, body: Body) -> Result<Response, Failure> {
    if context.registration.kind == "Binding" {
        return binding::create_by_body(context, body).await;
    }
    let representation = negotiate_review(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let body = body::read(body).await?;
    let mut read = object::read(&context.registration, &context.headers, body, options.field_validation)?;
    context.warnings.extend(read.warnings);
    context.notes.request = Some(read.json);
    read.object.metadata_mut().managed_fields = None;
    read.object = webhooks::admit_unstored(context, &context.registration, read.object).await?;
    let asked = read.object.as_any_mut();
    if let Some(review) = asked.downcast_mut::<TokenReview>() {
        context.notes.used = review_token(context, review).await?;
    } else if let Some(review) = asked.downcast_mut::<SelfSubjectReview>() {
        review.metadata.creation_timestamp = Some(Time(context.now()));
        review.status = Some(SelfSubjectReviewStatus {
            user_info: Some(context.user.info()),
        });
    } else if !access_review::review(context, &mut *read.object)? {
        return Err(Failure::MethodNotAllowed);
    }
    let bytes = object::unstored(&mut *read.object, None, "");
    context.notes.response = Some(bytes.clone());
    shape::one(context, StatusCode::CREATED, representation, bytes).await
}

async fn review_token(context: &Context, review: &mut TokenReview) -> Result<Option<Used>, Failure> {
    if review.spec.token.is_empty() {
        return Err(Failure::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let wanted = review.spec.audiences.clone().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.unwrap_or_else(|| authn::audiences(&context.server).to_vec());
    let server = &context.server;
    let proven = server
        .tokens
        .authenticate(&server.store, &review.spec.token, &wanted, context.now());
    let proven = proven.await;
    let used = match &proven {
        Ok(proven) => proven.used.clone(),
        Err(Refused::Marked(used)) => Some(Used::clone(used)),
        Err(_) => None,
    };
    review.status = Some(match proven {
        Ok(proven) => TokenReviewStatus {
            authenticated: Some(true),
            user: Some(proven.user.info()),
            audiences: Some(proven.audiences),
            error: None,
        },
        Err(refused) => TokenReviewStatus {
            error: Some(refused.to_string()),
            user: Some(UserInfo::default()),
            ..TokenReviewStatus::default()
        },
    });
    Ok(used)
}
