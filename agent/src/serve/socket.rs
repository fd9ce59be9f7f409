//! The operator's private socket: images.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::TryStreamExt;
use image::{Credentials, Images};
use serde::Deserialize;
use serde_json::json;
use tokio::net::UnixListener;
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use super::Error;

type Parameters = Query<BTreeMap<String, String>>;

/// Answers on `path`, which only the owner may open, until cancelled.
pub async fn serve(path: &Path, images: Images, cancel: CancellationToken) -> Result<(), Error> {
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
        .with_state(images);
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
    match images.remove(name) {
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

/// Pulls an image; the body is who to be for the registry, or null.
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

async fn import(State(images): State<Images>, Query(parameters): Parameters, body: Body) -> Response {
    let imported = match parameters.get("path") {
        Some(path) if path.starts_with('/') => images.import(&PathBuf::from(path)).await,
        Some(path) => return failure(StatusCode::BAD_REQUEST, &format!("{path:?} is not an absolute path")),
        None => {
            let stream = body.into_data_stream().map_err(std::io::Error::other);
            images.import_stream(std::pin::pin!(StreamReader::new(stream))).await
        }
    };
    match imported {
        Ok(imported) => {
            let names: Vec<&String> = imported.iter().flat_map(|image| &image.names).collect();
            Json(json!({"names": names})).into_response()
        }
        Err(error) => failure(StatusCode::UNPROCESSABLE_ENTITY, &image::chain(&error)),
    }
}
