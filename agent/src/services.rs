//! The Services as the API shows them: containers are told of them, and the server's own is made reachable.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::environment::Surroundings;
use agent_plan::{pods, services};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use tracing::{debug, info, warn};

use crate::Error;
use crate::context::Context;

/// How long a container waits for the first list of Services.
const PATIENCE: Duration = Duration::from_secs(5);

/// By namespace and name, in that order.
pub(crate) type Services = BTreeMap<(String, String), Arc<Service>>;

/// What is kept of a Service.
fn trimmed(service: Service) -> ((String, String), Arc<Service>) {
    let place = (
        service.metadata.namespace.unwrap_or_default(),
        service.metadata.name.unwrap_or_default(),
    );
    let spec = service.spec.unwrap_or_default();
    let port = |port: ServicePort| ServicePort {
        name: port.name,
        port: port.port,
        protocol: port.protocol,
        ..ServicePort::default()
    };
    let kept = Service {
        metadata: ObjectMeta {
            namespace: Some(place.0.clone()),
            name: Some(place.1.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: spec.cluster_ip,
            ports: spec.ports.map(|ports| ports.into_iter().map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    (place, Arc::new(kept))
}

/// Follows the Services for ever.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    let api: Api<Service> = Api::all(context.parts.client.clone());
    let mut changes = pin!(watch(api, watcher::Config::default()).default_backoff());
    let mut listed = Services::new();
    let mut reached = None;
    while let Some(change) = changes.next().await {
        match change {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(service)) => listed.extend([trimmed(service)]),
            Ok(Event::InitDone) => {
                let all = std::mem::take(&mut listed);
                context.services.send_replace(Some(Arc::new(all)));
            }
            Ok(Event::Apply(service)) => alter(&context, |all| all.extend([trimmed(service)])),
            Ok(Event::Delete(service)) => {
                let (place, _) = trimmed(service);
                alter(&context, |all| drop(all.remove(&place)));
            }
            Err(error) => debug!(error = image::chain(&error), "the watch of Services is interrupted"),
        }
        reach_server(&context, &mut reached).await;
    }
    Err(Error::WatchEnded)
}

fn alter(context: &Context, change: impl FnOnce(&mut Services)) {
    context.services.send_modify(|services| {
        change(Arc::make_mut(services.get_or_insert_default()));
    });
}

/// Leads the address of the Service `kubernetes` to where the server really is.
async fn reach_server(context: &Context, reached: &mut Option<SocketAddrV4>) {
    let Some(server) = server(context) else { return };
    let place = ("default".to_owned(), "kubernetes".to_owned());
    let service = context
        .services
        .borrow()
        .as_ref()
        .and_then(|all| all.get(&place).cloned());
    let wanted = service.and_then(|service| {
        let address: Ipv4Addr = services::address(&service)?.parse().ok()?;
        let port = service.spec.as_ref()?.ports.as_ref()?.first()?.port;
        Some(SocketAddrV4::new(address, u16::try_from(port).ok()?))
    });
    let Some(wanted) = wanted.filter(|wanted| *reached != Some(*wanted)) else {
        return;
    };
    match context.parts.network.redirect(wanted, server).await {
        Ok(led) => {
            info!(led, service = %wanted, %server, "the address of the server's Service");
            *reached = Some(wanted);
        }
        Err(error) => warn!(
            error = image::chain(&error),
            "the server is not reachable by its Service"
        ),
    }
}

/// Where pods reach the server. They have a loopback address of their own: the machine's is another one for them.
fn server(context: &Context) -> Option<SocketAddrV4> {
    let server = context.config.server?;
    if !server.ip().is_loopback() {
        return Some(server);
    }
    let own = context.config.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) if !address.is_loopback() => Some(*address),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    });
    own.map(|own| SocketAddrV4::new(own, server.port()))
}

/// What the node contributes to the environment of a pod's containers; the text says why it cannot be told.
pub(crate) async fn surroundings(context: &Context, pod: &Pod, addresses: &[IpAddr]) -> Result<Surroundings, String> {
    let mut listed = context.services.subscribe();
    let known = tokio::time::timeout(PATIENCE, listed.wait_for(Option::is_some)).await;
    let all = known.ok().and_then(Result::ok).and_then(|all| all.clone());
    let unread = || "services have not yet been read at least once, cannot construct envs".to_owned();
    let all = all.ok_or_else(unread)?;
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links);
    let all = all.values().map(Arc::as_ref);
    let mut surroundings = context.surroundings(addresses);
    surroundings.services = services::variables(all, pods::namespace(pod), links.unwrap_or(true));
    Ok(surroundings)
}
