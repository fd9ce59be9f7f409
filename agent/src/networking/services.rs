//! Services and EndpointSlices, followed in one place for the containers' environment and the
//! service proxy.

mod health;
mod kernel;
mod known;
pub(crate) mod programmed;
mod proxy_health;
pub(crate) mod slices;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::container::environment::Surroundings;
use agent_plan::container::services;
use agent_plan::pod::pods;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tracing::debug;

use crate::Error;
use crate::client::requests::watch;
use crate::context::Context;
use kernel::Kernel;
use known::Known;
use slices::Services;

/// Longest time that a container waits for the first list of Services.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Number of objects in a page of a list. Their kept parts lie in the heap among freed ones, whose
/// pages cannot be returned to the kernel.
const PAGE: u32 = 100;

/// Event of a watch.
enum Heard {
    Service(Box<Event<Service>>),
    Slice(Event<EndpointSlice>),
    Range(Event<ServiceCIDR>),
}

type Watched = BoxStream<'static, Result<Heard, watcher::Error>>;

fn changes<K>(client: &Client, heard: fn(Event<K>) -> Heard) -> Watched
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    let changes = watch(api, watcher::Config::default().page_size(PAGE));
    changes.map(move |change| change.map(heard)).boxed()
}

/// Follows the Services without end.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    let client = &context.parts.client;
    let mut all = SelectAll::from_iter([changes(client, |change| Heard::Service(Box::new(change)))]);
    let mut kernel = Kernel::open(&context);
    if kernel.is_some() || context.names.is_served() {
        all.push(changes(client, Heard::Slice));
    }
    if kernel.is_some() {
        all.push(changes(client, Heard::Range));
    }
    let mut node = context.node.subscribe();
    let mut known = Known::default();
    loop {
        let mut next = match &mut kernel {
            Some(kernel) => tokio::select! {
                change = all.next() => Some(change),
                () = kernel.disturbed() => None,
                // Its zone decides which endpoints are near.
                Ok(()) = node.changed() => None,
                // The default route led to Services, too.
                () = context.rerouted.notified() => {
                    kernel.reach().await;
                    None
                }
            },
            None => Some(all.next().await),
        };
        // Changes that are queued become one transaction.
        while let Some(change) = next {
            match change {
                Some(Ok(change)) => known.hear(&context, change),
                Some(Err(error)) => debug!(error = image::chain(&error), "a watch of Services is interrupted"),
                None => return Err(Error::WatchEnded),
            }
            next = all.next().now_or_never();
        }
        if let Some(kernel) = &mut kernel {
            kernel.program(&context, &mut known).await;
        }
    }
}

/// Returns the node's part of the environment of a pod's containers; the error says why it is not
/// available.
pub(crate) async fn surroundings(context: &Context, pod: &Pod, addresses: &[IpAddr]) -> Result<Surroundings, String> {
    let mut listed = context.services.subscribe();
    let known = tokio::time::timeout(TIMEOUT, listed.wait_for(Option::is_some)).await;
    let all = known.ok().and_then(Result::ok).and_then(|all| all.clone());
    let unread = || "services have not yet been read at least once, cannot construct envvars".to_owned();
    let all = all.ok_or_else(unread)?;
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links);
    let mut surroundings = context.surroundings(addresses);
    surroundings.services = variables(&all, pod, links);
    Ok(surroundings)
}

/// Returns the Services' environment variables of a pod.
pub(crate) fn variables(all: &Services, pod: &Pod, links: Option<bool>) -> Vec<(String, String)> {
    let all = all.iter().map(|(name, service)| (name, &**service));
    services::variables(all, pods::namespace(pod), links.unwrap_or(true))
}
