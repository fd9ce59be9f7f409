//! Maintains the objects of flow control: the default ones, and the condition `Dangling` of schemas
//! whose level is missing.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Method;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use store::{Entry, Prefix};
use tokio::time::Instant;

use super::{GROUP, LEVELS, SCHEMAS, config, defaults};
use crate::server::bootstrap::Client;
use crate::server::shared::Shared;

/// The time between two looks at the objects that every cluster has (`ensureAPFBootstrapConfiguration` in
/// `pkg/registry/flowcontrol/rest/storage_flowcontrol.go`).
const RESYNC_INTERVAL: Duration = Duration::from_mins(1);
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Looks after them for as long as it is polled.
pub(crate) async fn run(shared: Arc<Shared>, router: Router) -> Infallible {
    let client = Client::new(router);
    let watch = |plural| shared.store.last_change(&Prefix::resource(GROUP, plural));
    let (mut schemas, mut levels) = (watch(SCHEMAS), watch(LEVELS));
    let mut next = Instant::now() + RESYNC_INTERVAL;
    loop {
        schemas.mark_unchanged();
        levels.mark_unchanged();
        for entry in shared.store.present(&Prefix::resource(GROUP, SCHEMAS)) {
            tell(&shared, &client, &entry).await;
        }
        let change = async {
            tokio::select! {
                changed = schemas.changed() => changed,
                changed = levels.changed() => changed,
            }
        };
        match tokio::time::timeout_at(next, change).await {
            Ok(Ok(())) => {}
            // The store is closed: nothing changes any more.
            Ok(Err(_closed)) => std::future::pending().await,
            Err(_elapsed) => {
                next = Instant::now() + RESYNC_INTERVAL;
                if let Err(error) = client.send_all(defaults::changes(&shared.store)).await {
                    tracing::warn!(%error, "objects of flow control cannot be kept up");
                }
            }
        }
    }
}

/// Names of the levels that requests can go to.
fn levels(shared: &Shared) -> BTreeSet<String> {
    let entries = shared.store.present(&Prefix::resource(GROUP, LEVELS)).into_iter();
    let whole = entries.filter(|entry| {
        let level = serde_json::from_slice::<PriorityLevelConfiguration>(&entry.bytes).ok();
        let spec = level.and_then(|level| level.spec);
        spec.is_some_and(|spec| config::is_whole(entry.key.name(), &spec))
    });
    whole.map(|entry| entry.key.name().to_owned()).collect()
}

/// Writes the condition of a schema if it has changed (`presyncFlowSchemaStatus`).
async fn tell(shared: &Shared, client: &Client, entry: &Entry) {
    let Ok(schema) = serde_json::from_slice::<FlowSchema>(&entry.bytes) else {
        return;
    };
    let Some(spec) = &schema.spec else { return };
    let (name, level) = (entry.key.name(), &spec.priority_level_configuration.name);
    let (status, reason, found) = if levels(shared).contains(level) {
        ("False", "Found", "it exists")
    } else {
        ("True", "NotFound", "there is no such object")
    };
    let link = if status == "True" { "but" } else { "and" };
    let message =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {link} {found}");
    let conditions = schema
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut conditions = conditions.filter(|condition| condition.type_.as_deref() == Some("Dangling"));
    let is_told = conditions.any(|condition| {
        let told = (&condition.status, &condition.reason, &condition.message);
        told == (
            &Some(status.to_owned()),
            &Some(reason.to_owned()),
            &Some(message.clone()),
        )
    });
    if is_told {
        return;
    }
    let condition = json!({
        "type": "Dangling", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": Time((shared.options.clock)()),
    });
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema", "metadata": {"name": name},
        "status": {"conditions": [condition]},
    });
    let path = format!("/apis/{GROUP}/v1/{SCHEMAS}/{name}/status?fieldManager={MANAGER}&force=true");
    let told = client.send_as(Method::PATCH, path, "application/apply-patch+yaml", object);
    if let Err(error) = told.await {
        // The schema may have been deleted meanwhile; otherwise the next change or round retries.
        tracing::debug!(name, %error, "the condition of a schema is not written");
    }
}
