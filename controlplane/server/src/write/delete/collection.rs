//! DELETE of all objects that selectors choose.

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use crate::read::list;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::options::Deletion;
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::delete::{remove, warn_of_orphans};

/// Number of objects that are deleted concurrently, so that they share commits.
const AT_ONCE: usize = 64;

/// Deletes the selected objects and answers with their list.
pub(crate) async fn delete_collection(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let body = body::read(body).await?;
    context.notes.request = Some(body.clone()).filter(|body| !body.is_empty());
    let deletion = Deletion::read(&context.headers, &context.query, body)?;
    warn_of_orphans(context, &deletion);
    let page = list::page(context).await?;
    let names: Vec<String> = page
        .entries
        .iter()
        .map(|live| live.entry().key.name().to_owned())
        .collect();
    let removed: Vec<Option<Bytes>> = futures::stream::iter(names)
        .map(|name| one(context, name, &deletion))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let items: Vec<Bytes> = removed.into_iter().flatten().collect();
    let head = shape::Head {
        revision: context.store().revision(),
        remainder: None,
        remaining: None,
    };
    shape::list(context, representation, &head, items).await
}

/// Deletes one object; one that is gone already is not an error.
async fn one(context: &Context, name: String, deletion: &Deletion) -> Result<Option<Bytes>, Failure> {
    match remove(context, &name, deletion).await {
        Ok(removed) => Ok(Some(removed.bytes)),
        Err(Failure::NotFound { .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}
