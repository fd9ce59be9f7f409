//! The operator's private socket: images.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRef, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::TryStreamExt;
use image::{Credentials, ExportError, Images};
use serde::Deserialize;
use serde_json::json;
use tokio::net::UnixListener;
use tokio_util::io::{ReaderStream, StreamReader};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::context::Context;

/// State of the operator's requests.
#[derive(Clone)]
struct Operator {
    images: Images,
    context: Arc<Context>,
}

impl FromRef<Operator> for Images {
    fn from_ref(operator: &Operator) -> Self {
        operator.images.clone()
    }
}

impl FromRef<Operator> for Arc<Context> {
    fn from_ref(operator: &Operator) -> Self {
        Self::clone(&operator.context)
    }
}

type Parameters = Query<BTreeMap<String, String>>;

/// Serves on `path`, accessible to its owner only, until it is cancelled.
pub async fn serve(path: &Path, images: Images, context: Arc<Context>, cancel: CancellationToken) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(Error::File {
                path: path.to_owned(),
                source,
            });
        }
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/images", get(list).delete(remove))
        .route("/images/import", post(import))
        .route("/images/pull", post(pull))
        .route("/images/export", get(export))
        .route("/images/prune", post(prune))
        .with_state(Operator { images, context });
    axum::serve(listener, router)
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await?;
    Ok(())
}

fn failure(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

async fn list(State(images): State<Images>) -> Json<serde_json::Value> {
    let shown: Vec<_> = images.list().iter().map(|image| image.to_json()).collect();
    Json(json!({"images": shown}))
}

async fn remove(State(images): State<Images>, Query(parameters): Parameters) -> Response {
    let Some(name) = parameters.get("name") else {
        return failure(StatusCode::BAD_REQUEST, "the parameter name is missing");
    };
    match images.remove(name).await {
        Ok(true) => Json(json!({})).into_response(),
        Ok(false) => failure(StatusCode::NOT_FOUND, &format!("image {name:?} not found")),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &image::chain(&error)),
    }
}

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

/// Pulls an image; the body has credentials for the registry, or null.
async fn pull(
    State(images): State<Images>,
    Query(parameters): Parameters,
    Json(login): Json<Option<Login>>,
) -> Response {
    let Some(name) = parameters.get("name") else {
        return failure(StatusCode::BAD_REQUEST, "the parameter name is missing");
    };
    let credentials: Vec<Credentials> = login
        .into_iter()
        .map(|Login { username, password }| Credentials { username, password })
        .collect();
    match images.pull(name, &credentials).await {
        Ok(image) => Json(json!({"names": image.names})).into_response(),
        Err(error) => failure(StatusCode::UNPROCESSABLE_ENTITY, &error.message()),
    }
}

/// Exports an image as an archive, created before the response begins so that errors can be
/// reported.
async fn export(State(images): State<Images>, Query(parameters): Parameters) -> Response {
    let Some(name) = parameters.get("name") else {
        return failure(StatusCode::BAD_REQUEST, "the parameter name is missing");
    };
    match images.export(name).await {
        Ok(file) => {
            let parts = ReaderStream::with_capacity(tokio::fs::File::from_std(file), 128 << 10);
            ([(CONTENT_TYPE, "application/x-tar")], Body::from_stream(parts)).into_response()
        }
        Err(error @ ExportError::NotFound(_)) => failure(StatusCode::NOT_FOUND, &image::chain(&error)),
        Err(error @ (ExportError::Reference(_) | ExportError::Content(_) | ExportError::Store(_))) => {
            failure(StatusCode::UNPROCESSABLE_ENTITY, &image::chain(&error))
        }
    }
}

/// Removes unused images; with `all` also those that were imported.
async fn prune(State(context): State<Arc<Context>>, Query(parameters): Parameters) -> Response {
    let all = parameters.get("all").is_some_and(|all| all == "true");
    match crate::node::pressure::prune(&context, all).await {
        Ok(removed) => {
            let bytes = removed.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
            let images = removed.iter().map(|(image, _)| image.to_json());
            Json(json!({"images": images.collect::<Vec<_>>(), "bytes": bytes})).into_response()
        }
        Err(message) => failure(StatusCode::INTERNAL_SERVER_ERROR, &message),
    }
}

async fn import(State(images): State<Images>, Query(parameters): Parameters, body: Body) -> Response {
    let name = parameters.get("name").map(String::as_str);
    let imported = match parameters.get("path") {
        Some(path) if path.starts_with('/') => images.import_as(&PathBuf::from(path), name).await,
        Some(path) => return failure(StatusCode::BAD_REQUEST, &format!("{path:?} is not an absolute path")),
        None => {
            let stream = body.into_data_stream().map_err(std::io::Error::other);
            images
                .import_stream(std::pin::pin!(StreamReader::new(stream)), name)
                .await
        }
    };
    match imported {
        Ok(imported) => {
            let names: Vec<&String> = imported.images.iter().flat_map(|image| &image.names).collect();
            Json(json!({"names": names, "leftOut": imported.left_out})).into_response()
        }
        Err(error) => failure(StatusCode::UNPROCESSABLE_ENTITY, &image::chain(&error)),
    }
}
