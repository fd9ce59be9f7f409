//! Announcement of load balancers' addresses that this node was chosen for.
//!
//! The control plane chooses another node when this one fails. A node that is only cut off from the
//! API server would go on: it gives way once another host announces the address.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use network::services::announce::{self, Announcer, Claim};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::services::slices::Services;
use crate::Error;
use crate::context::Context;

/// Interval of looks at the node's links.
const LOOK: Duration = Duration::from_secs(10);
/// Time between two attempts after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Value of the Node's annotation with the ranges of its links, by which the control plane chooses.
pub(crate) fn links(context: &Context) -> Option<String> {
    context.config.service_proxy.as_ref()?;
    let bridge = context.parts.network.served().map(|served| served.interface);
    let ranges = announce::ranges(bridge.as_deref().as_slice());
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

/// Announces without end.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    if context.config.service_proxy.is_none() {
        return std::future::pending().await;
    }
    let mut services = context.services.subscribe();
    let mut announcer: Option<Announcer> = None;
    let mut given_up: BTreeSet<IpAddr> = BTreeSet::new();
    let mut told = (BTreeSet::new(), Vec::new());
    let mut claimed = BTreeSet::new();
    loop {
        // A clone that is held would be the reason to copy the whole map at the next change.
        let mut wanted = services
            .borrow_and_update()
            .as_deref()
            .map_or_else(BTreeSet::new, |all| wanted(&context.config.node_name, all));
        let gateways = gateways();
        wanted.retain(|address| !given_up.contains(address) && !gateways.contains(address));
        let lost = match apply(&context, &mut announcer, &wanted) {
            Ok(lost) => lost,
            Err(error) => {
                warn!(
                    error = image::chain(&error),
                    "addresses of load balancers are not announced"
                );
                announcer = None;
                sleep(RETRY).await;
                Vec::new()
            }
        };
        if (&told.0, &told.1) != (&wanted, &lost) {
            info!(addresses = ?wanted, "addresses of load balancers that this node announces");
            if !lost.is_empty() {
                warn!(addresses = ?lost, "announced addresses are on no link of this node");
            }
            told = (wanted, lost);
        }
        let look = Instant::now() + LOOK;
        loop {
            tokio::select! {
                changed = services.changed() => {
                    changed.map_err(|_ended| Error::WatchEnded)?;
                    // The API server answers again: it knows who announces them.
                    given_up.clear();
                    break;
                }
                heard = claims(announcer.as_mut()) => match heard {
                    Ok(Claim { address, by }) => {
                        let gives_way = context.is_cut_off();
                        if claimed.insert(address) || gives_way {
                            warn!(%address, ?by, gives_way, "another host claims an announced address");
                        }
                        if gives_way {
                            given_up.insert(address);
                            break;
                        }
                    }
                    Err(error) => {
                        warn!(%error, "questions for announced addresses are not heard");
                        announcer = None;
                        sleep(RETRY).await;
                        break;
                    }
                },
                () = sleep_until(look) => {
                    claimed.clear();
                    break;
                }
            }
        }
    }
}

/// Addresses that a node was chosen for.
fn wanted(node: &str, services: &Services) -> BTreeSet<IpAddr> {
    let external = services.values().filter_map(|service| service.external.as_deref());
    let own = external.filter(|external| external.announcer.as_deref() == Some(node));
    own.flat_map(|external| external.balancers.iter().copied()).collect()
}

/// Gateways of the machine's IPv4 routes, which no node may take over.
fn gateways() -> BTreeSet<IpAddr> {
    let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let fields = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2));
    let bits = fields.filter_map(|field| u32::from_str_radix(field, 16).ok());
    bits.filter(|bits| *bits != 0)
        .map(|bits| IpAddr::from(bits.to_ne_bytes()))
        .collect()
}

/// Announces these addresses; returns those that are on no link of this node.
fn apply(
    context: &Context,
    announcer: &mut Option<Announcer>,
    wanted: &BTreeSet<IpAddr>,
) -> Result<Vec<IpAddr>, network::Error> {
    if wanted.is_empty() {
        *announcer = None;
        return Ok(Vec::new());
    }
    let open = match announcer.take() {
        Some(open) => open,
        None => Announcer::open()?,
    };
    let bridge = context.parts.network.served().map(|served| served.interface);
    announcer.insert(open).set(wanted, bridge.as_deref().as_slice())
}

async fn claims(announcer: Option<&mut Announcer>) -> std::io::Result<Claim> {
    match announcer {
        Some(announcer) => announcer.run().await,
        None => std::future::pending().await,
    }
}
