//! `APIServices` of the group versions that are served here (`pkg/controlplane/apiserver/aggregator.go`,
//! `pkg/controlplane/controller/crdregistration`, `staging/src/k8s.io/kube-aggregator/pkg/controllers/autoregister`).
//!
//! `APIServices` of the program's kinds are made, or brought back to what they were, when the server starts; those of definitions
//! follow these.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use api::Object;
use api::kinds::api_service::{GROUP, set_available};
use axum::Router;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec};

use super::{PLURAL, prefix};
use crate::discovery::{groups, priorities};
use crate::server::bootstrap::Client;
use crate::server::shared::Shared;

/// The label of those that the server looks after, and its values.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const ON_START: &str = "onstart";
const ALWAYS: &str = "true";

/// Marks a group version that is served here as available with the commit that creates it (`PrepareForCreate` of
/// `pkg/registry/apiservice/strategy.go`).
pub(crate) fn settle(object: &mut dyn Object, now: Timestamp) {
    if let Some(own) = object.as_any_mut().downcast_mut::<APIService>()
        && own.spec.as_ref().is_none_or(|spec| spec.service.is_none())
    {
        set_available(own, true, "Local", "Local APIServices are always available", now);
    }
}

/// Looks after them for as long as it is polled.
pub(crate) async fn run(shared: &Arc<Shared>, router: &Router) -> Infallible {
    let client = Client::new(router.clone());
    let mut definitions = shared.store.last_change(&crate::extensions::definitions::prefix());
    let mut own = shared.store.last_change(&prefix());
    let mut is_first = true;
    loop {
        definitions.mark_unchanged();
        own.mark_unchanged();
        sync(shared, &client, is_first).await;
        is_first = false;
        let gone = tokio::select! {
            changed = definitions.changed() => changed.is_err(),
            changed = own.changed() => changed.is_err(),
        };
        if gone {
            // The store is closed: nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

/// The group versions that are served here, as `APIServices`.
fn wanted(shared: &Shared) -> BTreeMap<String, APIService> {
    let table = shared.definitions.current();
    let mut wanted = BTreeMap::new();
    for (group, versions) in groups(&table.kinds) {
        for version in versions {
            let (managed, (group_priority, version_priority)) = match priorities::of_program(group, version.name) {
                Some(own) => (ON_START, own),
                None if version.is_defined => (ALWAYS, priorities::DEFINED),
                // The group of APIServices itself, and measures, which others may serve.
                None => continue,
            };
            let name = format!("{}.{group}", version.name);
            let own = APIService {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    labels: Some(BTreeMap::from([(MANAGED.to_owned(), managed.to_owned())])),
                    ..ObjectMeta::default()
                },
                spec: Some(APIServiceSpec {
                    group: (!group.is_empty()).then(|| group.to_owned()),
                    version: Some(version.name.to_owned()),
                    group_priority_minimum: group_priority,
                    version_priority,
                    ..APIServiceSpec::default()
                }),
                status: None,
            };
            wanted.insert(name, own);
        }
    }
    wanted
}

fn managed(own: &APIService) -> &str {
    let labels = own.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED)).map_or("", String::as_str)
}

async fn sync(shared: &Shared, client: &Client, is_first: bool) {
    let all = format!("/apis/{GROUP}/v1/{PLURAL}");
    let entries = shared.store.present(&prefix()).into_iter();
    let mut existing: BTreeMap<String, APIService> = entries
        .filter_map(|entry| Some((entry.key.name().to_owned(), serde_json::from_slice(&entry.bytes).ok()?)))
        .collect();
    let mut requests = Vec::new();
    for (name, own) in wanted(shared) {
        let is_due = is_first || managed(&own) == ALWAYS;
        match existing.remove(&name) {
            None if is_due => requests.push((Method::POST, all.clone(), own)),
            Some(mut found) if is_due && !managed(&found).is_empty() && found.spec != own.spec => {
                found.spec = own.spec;
                requests.push((Method::PUT, format!("{all}/{name}"), found));
            }
            Some(_) | None => {}
        }
    }
    let over = existing.into_iter().filter(|(_, own)| managed(own) == ALWAYS);
    requests.extend(over.map(|(name, own)| (Method::DELETE, format!("{all}/{name}"), own)));
    let sent = requests.into_iter().map(|(method, path, own)| {
        let body = match method {
            Method::DELETE => serde_json::Value::Object(serde_json::Map::new()),
            _ => serde_json::to_value(own).unwrap_or_default(),
        };
        async move {
            if let Err(error) = client.send(method, path.clone(), body).await {
                tracing::debug!(path, %error, "an APIService is not as it should be");
            }
        }
    });
    futures::future::join_all(sent).await;
}
