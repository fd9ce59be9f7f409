//! Availability of the servers behind Services (`pkg/controllers/status/remote/remote_available_controller.go`), and the
//! resources that they have.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use api::kinds::api_service::{GROUP, available, set_available};
use axum::Router;
use http::Method;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::Value;
use store::{Key, Prefix};

use super::proxy::{Get, get};
use super::{PLURAL, Remote, prefix};
use crate::authn::identity::{MASTERS, User};
use crate::node::proxy::endpoints::{self, ready};
use crate::server::bootstrap::Client;
use crate::server::shared::Shared;

/// The time between two looks at servers that answer, and at those that do not.
const LOOK: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The time that a server has.
const LIMIT: Duration = Duration::from_secs(5);
/// Requests before it counts as unavailable, each to a random endpoint.
const ATTEMPTS: usize = 5;
/// Bytes of the list of its resources.
const BYTES: usize = 1 << 20;

/// The condition: whether it is true, its reason and its message.
type Condition = (bool, &'static str, String);

/// Looks at them for as long as it is polled.
pub(crate) async fn run(shared: &Arc<Shared>, router: &Router) -> Infallible {
    let client = Client::new(router.clone());
    let mut own = shared.store.last_change(&prefix());
    let mut slices = shared
        .store
        .last_change(&Prefix::resource("discovery.k8s.io", "endpointslices"));
    loop {
        own.mark_unchanged();
        slices.mark_unchanged();
        let remotes = shared.aggregation.remotes();
        shared.aggregation.forget_others(&remotes);
        let looks = remotes.iter().map(|remote| look(shared, &client, remote));
        let all_answer = futures::future::join_all(looks)
            .await
            .into_iter()
            .all(|answers| answers);
        let pause = if all_answer { LOOK } else { LOOK_AGAIN };
        let gone = if remotes.is_empty() {
            own.changed().await.is_err()
        } else {
            // Changes of all Services come in crowds.
            tokio::time::sleep(LOOK_AGAIN / 4).await;
            tokio::select! {
                changed = own.changed() => changed.is_err(),
                changed = slices.changed() => changed.is_err(),
                () = tokio::time::sleep(pause) => false,
            }
        };
        if gone {
            // The store is closed: nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Probes one backend and writes its condition; returns whether it is available.
async fn look(shared: &Shared, client: &Client, remote: &Remote) -> bool {
    let (is_available, reason, message) = check(shared, remote).await;
    let entry = Key::new(GROUP, PLURAL, "", &remote.name).ok();
    let entry = entry.and_then(|key| shared.store.get(&key));
    let Some(mut own) = entry.and_then(|entry| serde_json::from_slice::<APIService>(&entry.bytes).ok()) else {
        return is_available;
    };
    let was_available = available(&own).is_some_and(|condition| condition.status == "True");
    if set_available(&mut own, is_available, reason, &message, (shared.options.clock)()) {
        tracing::info!(name = remote.name, is_available, reason, message, "an APIService");
        if was_available && !is_available {
            shared.metrics.aggregator.lost(&remote.name, reason);
        }
        let path = format!("/apis/{GROUP}/v1/{PLURAL}/{}/status", remote.name);
        let body = serde_json::to_value(&own).unwrap_or_default();
        if let Err(error) = client.send(Method::PUT, path, body).await {
            tracing::debug!(name = remote.name, %error, "the status of an APIService cannot be written");
        }
    }
    is_available
}

async fn check(shared: &Shared, remote: &Remote) -> Condition {
    let (namespace, name, port) = (&remote.namespace, &remote.service, remote.port);
    let entry = Key::new("", "services", namespace, name).ok();
    let entry = entry.and_then(|key| shared.store.get(&key));
    let service = entry.and_then(|entry| serde_json::from_slice::<Service>(&entry.bytes).ok());
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return (false, "ServiceNotFound", message);
    };
    let spec = service.spec.unwrap_or_default();
    if matches!(spec.type_.as_deref(), None | Some("ClusterIP")) {
        let Some(own) = spec.ports.iter().flatten().find(|own| own.port == port) else {
            let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
            return (false, "ServicePortError", message);
        };
        if !endpoints::has_slices(&shared.store, namespace, name) {
            let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
            return (false, "EndpointsNotFound", message);
        }
        let port_name = own.name.as_deref().unwrap_or_default();
        if !ready(&shared.store, namespace, name, port_name).is_ok_and(|found| !found.is_empty()) {
            let message = format!(
                "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
            );
            return (false, "MissingEndpoints", message);
        }
    }
    let host = spec
        .cluster_ip
        .filter(|address| !address.is_empty() && address != "None");
    let host = host.unwrap_or_else(|| remote.host());
    let url = format!("https://{host}:{port}/apis/{}/{}", remote.group, remote.version);
    let mut told = resources(shared, remote, &url).await;
    if told.is_err() {
        // One endpoint that does not answer leaves the others.
        let again = (1..ATTEMPTS).map(|_attempt| Box::pin(resources(shared, remote, &url)));
        told = futures::future::select_ok(again)
            .await
            .map(|(resources, _others)| resources);
    }
    match told {
        Ok(resources) => {
            let mut told = shared.aggregation.told.write().unwrap_or_else(PoisonError::into_inner);
            told.insert(remote.name.clone(), Arc::new(resources));
            (true, "Passed", "all checks passed".to_owned())
        }
        Err(because) => {
            let message = format!("failing or missing response from {url}: {because}");
            (false, "FailedDiscoveryCheck", message)
        }
    }
}

/// Requests the list of resources as a user that always has the right to.
async fn resources(shared: &Shared, remote: &Remote, url: &str) -> Result<Value, String> {
    let user = User {
        name: "system:kube-aggregator".to_owned(),
        groups: vec![MASTERS.to_owned()],
        ..User::default()
    };
    let asked = Get {
        path: &format!("/apis/{}/{}", remote.group, remote.version),
        user: &user,
        tag: None,
        limits: (LIMIT, BYTES),
    };
    let answer = get(shared, remote, asked).await;
    let answer = answer.map_err(|because| format!("Get {url:?}: {because}"))?;
    if !answer.status().is_success() {
        return Err(format!("bad status from {url}: {}", answer.status().as_u16()));
    }
    Ok(serde_json::from_slice(answer.body()).unwrap_or_default())
}
