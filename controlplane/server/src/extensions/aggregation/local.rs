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
use crate::discovery::groups;
use crate::server::bootstrap::Client;
use crate::server::shared::Shared;

/// The label of those that the server looks after, and its values.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const ON_START: &str = "onstart";
const ALWAYS: &str = "true";

/// Priorities of groups and of their versions (`cmd/kube-apiserver/app/aggregator.go`).
const PRIORITIES: [(&str, &str, i32, i32); 23] = [
    ("", "v1", 18_000, 1),
    ("apps", "v1", 17_800, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("autoscaling", "v2", 17_500, 30),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1beta1", 16_700, 12),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("resource.k8s.io", "v1", 16_200, 21),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
    ("admissionregistration.k8s.io", "v1alpha1", 16_700, 9),
];
/// Priorities of groups from `CustomResourceDefinitions` (`crdregistration_controller.go`).
const DEFINED: (i32, i32) = (1000, 100);
/// Priorities of groups that have no `APIService`: this one, which always comes first, and that of measures, as
/// metrics-server registers it.
const UNREGISTERED: [(&str, (i32, i32)); 2] = [(GROUP, (20_000, 0)), ("metrics.k8s.io", (100, 100))];

/// Priorities of a group version that is served here, and of its group.
pub(crate) fn priority(group: &str, version: &str) -> (i32, i32) {
    let of_program = PRIORITIES.iter().find(|own| (own.0, own.1) == (group, version));
    let of_program = of_program.map(|(_, _, group, version)| (*group, *version));
    let unregistered = || UNREGISTERED.iter().find(|own| own.0 == group).map(|own| own.1);
    of_program.or_else(unregistered).unwrap_or(DEFINED)
}

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
            let of_program = PRIORITIES.iter().find(|own| (own.0, own.1) == (group, version.name));
            let (managed, (group_priority, version_priority)) = match of_program {
                Some((_, _, group, version)) => (ON_START, (*group, *version)),
                None if version.is_defined => (ALWAYS, DEFINED),
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
