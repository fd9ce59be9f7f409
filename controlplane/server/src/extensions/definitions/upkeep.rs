//! Controllers of definitions: freed names are given to definitions that wait for them, and a
//! deleted definition's objects are removed before it (`pkg/controller/{status,finalizer}`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::Row;
use api::kinds::custom_resource_definition::{FINALIZER, GROUP, names};
use api::managed::Conversions;
use axum::Router;
use axum::body::Body;
use futures::StreamExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Uri};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use store::{Entry, Key, Prefix};
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::{PLURAL, prefix};
use crate::authn::identity::{MASTERS, User, assume};
use crate::request::context::{Context, Gathered, Notes, Wire};
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::options::Deletion;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::write::delete::remove;

/// Objects that are deleted at a time, so that they share commits.
const AT_ONCE: usize = 32;
/// The time that the deletion of one object may take.
const DEADLINE: Duration = Duration::from_mins(1);
/// Time that one definition's turn waits for objects with finalizers.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Looks after the definitions for as long as it is polled.
pub(crate) async fn run(shared: Arc<Shared>, router: Router) -> Infallible {
    let mut changed = shared.store.last_change(&prefix());
    loop {
        changed.mark_unchanged();
        let mut is_waiting = false;
        for name in shared.definitions.current().pending() {
            let entry = Key::new(GROUP, PLURAL, "", &name)
                .ok()
                .and_then(|key| shared.store.get(&key));
            if let Some(entry) = entry {
                is_waiting |= !look_after(&shared, &router, &entry).await;
            }
        }
        let change = async {
            if changed.changed().await.is_err() {
                // The store is closed: nothing changes any more.
                std::future::pending::<()>().await;
            }
        };
        if is_waiting {
            // Either there is news or it is time to look again.
            drop(tokio::time::timeout(LOOK_AGAIN, change).await);
        } else {
            change.await;
        }
    }
}

/// Reconciles a definition; returns whether it is done.
async fn look_after(shared: &Arc<Shared>, router: &Router, entry: &Entry) -> bool {
    let Ok(definition) = serde_json::from_slice::<CustomResourceDefinition>(&entry.bytes) else {
        return true;
    };
    let finalizers = definition.metadata.finalizers.as_deref().unwrap_or_default();
    if definition.metadata.deletion_timestamp.is_some() && finalizers.iter().any(|own| own == FINALIZER) {
        return terminate(shared, router, definition).await;
    }
    let mut settled = definition.clone();
    let taken = shared.definitions.current().taken(&settled);
    names::settle(&mut settled, &taken, (shared.options.clock)());
    settled.status == definition.status || update(router, &definition).await
}

/// Deletes the objects of a definition; once there are none, removes its finalizer.
async fn terminate(shared: &Arc<Shared>, router: &Router, mut definition: CustomResourceDefinition) -> bool {
    let spec = &definition.spec;
    let table = shared.definitions.current();
    let stored = table
        .made(&spec.group, &spec.names.plural)
        .and_then(|made| made.stored.clone());
    let is_built_in = api::KINDS
        .iter()
        .any(|row| row.storage.group == spec.group && row.storage.plural == spec.names.plural);
    let objects = Prefix::resource(&spec.group, &spec.names.plural);
    let condition = match stored {
        _ if is_built_in => ended(
            "OverlappingBuiltInResource",
            "instances overlap with built-in resources in storage",
        ),
        None => ended("NeverEstablished", "resource was never established"),
        Some(row) => {
            delete_all(shared, &Row::Defined(row), &objects).await;
            if shared.store.has_any(&objects) {
                let message = "CustomResource deletion is in progress";
                let condition = names::condition("Terminating", true, "InstanceDeletionInProgress", message);
                let before = definition.status.clone();
                let status = definition.status.get_or_insert_default();
                names::set(status, condition, (shared.options.clock)());
                if before != definition.status {
                    update(router, &definition).await;
                }
                return false;
            }
            ended("InstanceDeletionCompleted", "removed all instances")
        }
    };
    let status = definition.status.get_or_insert_default();
    names::set(status, condition, (shared.options.clock)());
    let finalizers = definition.metadata.finalizers.get_or_insert_default();
    finalizers.retain(|own| own != FINALIZER);
    update(router, &definition).await
}

fn ended(reason: &str, message: &str) -> CustomResourceDefinitionCondition {
    names::condition("Terminating", false, reason, message)
}

/// Deletes objects as the server itself: the version that is stored need not be one that is served.
async fn delete_all(shared: &Arc<Shared>, row: &Row, objects: &Prefix) {
    let context = |namespace: &str| Context {
        server: Arc::clone(shared),
        table: shared.definitions.current(),
        user: User::new("system:apiserver", [MASTERS]),
        fence: None,
        info: RequestInfo {
            is_resource: true,
            verb: "delete",
            group: row.group.to_owned(),
            version: row.version.to_owned(),
            namespace: namespace.to_owned(),
            resource: row.plural.to_owned(),
            ..RequestInfo::default()
        },
        query: Query::default(),
        headers: HeaderMap::new(),
        wire: Wire {
            method: Method::DELETE,
            uri: Uri::default(),
            source: None,
            upgrade: None,
        },
        registration: row.clone(),
        as_of: None,
        deadline: Instant::now() + DEADLINE,
        warnings: Gathered::default(),
        annotations: Gathered::default(),
        notes: Notes::default(),
        latencies: Gathered::default(),
        conversions: Conversions::default(),
    };
    let deletion = Deletion::default();
    let entries = shared.store.present(objects);
    let removals = futures::stream::iter(entries).map(|entry| {
        let (context, deletion) = (context(entry.key.namespace()), &deletion);
        async move {
            let removed = remove(&context, entry.key.name(), deletion).await;
            (entry, removed)
        }
    });
    let mut removals = removals.buffer_unordered(AT_ONCE);
    while let Some((entry, removed)) = removals.next().await {
        match removed {
            Ok(_) | Err(Failure::NotFound { .. }) => {}
            Err(error) => tracing::debug!(key = %entry.key, %error, "not deleted with its definition"),
        }
    }
}

/// Writes a definition's status, as a client of the server; whether it could be.
async fn update(router: &Router, definition: &CustomResourceDefinition) -> bool {
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let body = serde_json::to_string(definition).unwrap_or_default();
    let request = Request::builder()
        .method(Method::PUT)
        .uri(format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status"))
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body));
    let Ok(request) = request else { return true };
    let user = User::new("system:apiserver", [MASTERS]);
    let agent = concat!("kube-apiserver/v", env!("CARGO_PKG_VERSION"));
    let code = match assume(user, agent, router.clone()).oneshot(request).await {
        Ok(response) => response.status(),
        Err(never) => match never {},
    };
    if !code.is_success() && code != http::StatusCode::CONFLICT && code != http::StatusCode::NOT_FOUND {
        tracing::warn!(name, %code, "the status of a definition cannot be written");
    }
    code.is_success()
}
