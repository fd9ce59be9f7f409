//! Upstream servers for names outside of the cluster, as the operator configures them.

use std::sync::PoisonError;

use agent_plan::network::dns::Forwarding;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher::{Config, Event};
use tracing::{debug, warn};

use super::{Context, Forwarder, upstreams};
use crate::client::events::Kind;
use crate::client::requests::watch;

/// `ConfigMap` with the servers.
const PLACE: (&str, &str) = ("kube-system", "kube-dns");

/// Follows it without end.
pub(super) async fn follow(context: &Context, forwarder: &Forwarder) {
    let api: Api<ConfigMap> = Api::namespaced(context.parts.client.clone(), PLACE.0);
    let only = Config::default().fields(&format!("metadata.name={}", PLACE.1));
    let mut changes = std::pin::pin!(watch(api, only));
    let mut listed = None;
    while let Some(change) = changes.next().await {
        match change {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(found)) => listed = Some(found),
            Ok(Event::InitDone) => take(context, forwarder, listed.take().as_ref()),
            Ok(Event::Apply(found)) => take(context, forwarder, Some(&found)),
            Ok(Event::Delete(_)) => take(context, forwarder, None),
            Err(error) => debug!(
                error = image::chain(&error),
                "the choice of name servers is not followed"
            ),
        }
    }
}

fn take(context: &Context, forwarder: &Forwarder, found: Option<&ConfigMap>) {
    let data = found.and_then(|found| found.data.clone()).unwrap_or_default();
    let (wanted, faults) = Forwarding::parse(&data);
    if !faults.is_empty() {
        let message = format!("ConfigMap {}/{}: {}", PLACE.0, PLACE.1, faults.join("; "));
        warn!(message, "some name servers are not asked");
        context.node_event(Kind::Warning, "InvalidNameServers", message);
    }
    let own = context.names.servers.get().cloned().unwrap_or_default();
    *context.names.forwarding.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    forwarder.set(upstreams(context, &own));
    context.names.changed.notify_one();
}
