//! Routes to other nodes' pods and the end of the tunnel, as the kernel has them.
//!
//! Routes are ours by their protocol and a metric that follows from the state folder; the tunnel's interface has the owner's mark,
//! as the bridge has. Whatever another program or another cluster made is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use agent_plan::node_routes::{Hop, Range, Routes, Way};
use futures::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::{LinkUnspec, RouteMessageBuilder};

use super::super::{finish, note, routes};
use super::ownership::name;
use super::tunnel::is_vxlan;
use super::{Kernel, Socket, accept, refused};
use crate::{Attachment, Cidr, Error, Ranges};

/// The protocol of routes: which program made them. Free in iproute2's `rt_protos`.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(83);

/// Things of one state folder among those that lead to other nodes.
#[derive(Clone, Debug)]
pub(in super::super) struct Mark {
    /// Name of the tunnel's interface.
    pub(in super::super) tunnel: String,
    /// The owner's mark on it.
    pub(in super::super) owner: String,
    /// The metric of routes.
    pub(in super::super) metric: u32,
}

impl Kernel {
    /// The machine's ways to addresses. Those of the machine itself, and those that lead through our own interfaces, are none.
    pub(in super::super) fn ways(
        &self,
        addresses: &BTreeSet<IpAddr>,
        own: [&str; 2],
    ) -> Result<BTreeMap<IpAddr, Way>, Error> {
        self.runtime.block_on(async {
            let mut links: BTreeMap<u32, Option<u32>> = BTreeMap::new();
            let mut ways = BTreeMap::new();
            for address in addresses {
                let length = if address.is_ipv4() { 32 } else { 128 };
                let question = message(*address, length)?;
                let answer = self.host.handle.route().get(question).execute().try_next().await;
                // There is no way, or not by this family.
                let Ok(Some(route)) = answer else { continue };
                let Some(interface) = leads_to(&route) else { continue };
                let mtu = if let Some(known) = links.get(&interface) {
                    *known
                } else {
                    let link = self.host.by_index(interface).await?;
                    let usable = link.filter(|link| is_usable(link, own));
                    let mtu = usable.and_then(|link| routes::mtu(&link));
                    links.insert(interface, mtu);
                    mtu
                };
                let on_link = gateway(&route).is_none() && !has_other_gateway(&route);
                ways.extend(mtu.map(|mtu| {
                    (
                        *address,
                        Way {
                            interface,
                            on_link,
                            mtu,
                        },
                    )
                }));
            }
            Ok(ways)
        })
    }

    /// Ranges that routes of ours lead to.
    pub(in super::super) fn routed(&self, metric: u32) -> Result<Vec<Cidr>, Error> {
        let known = self.runtime.block_on(self.host.known(metric))?;
        let cidr = |range: &Range| Cidr {
            address: range.address,
            prefix: range.length,
        };
        Ok(known.keys().map(cidr).collect())
    }

    /// Makes routes and tunnel what they should be. Straight routes come first: they need no tunnel.
    pub(in super::super) fn lead(&self, mark: &Mark, id: u32, wanted: &Routes) -> Result<(), Error> {
        self.runtime.block_on(async {
            let host = &self.host;
            let known = host.known(mark.metric).await?;
            let mut failures = Vec::new();
            let mut tunnel = None;
            for pass in ["straight", "tunnel"] {
                if let Some(wanted) = wanted.tunnel.as_ref().filter(|_| pass == "tunnel") {
                    match host.tunnel(mark, id, wanted).await {
                        Ok(index) => tunnel = Some(index),
                        Err(error) => note(&mut failures, Err(error)),
                    }
                }
                for (range, hop) in &wanted.routes {
                    let next = match *hop {
                        Hop::Direct { gateway, interface } if pass == "straight" => Some((gateway, interface)),
                        Hop::Tunnel { gateway } => tunnel.map(|index| (gateway, index)),
                        Hop::Direct { .. } => None,
                    };
                    if let Some(next) = next.filter(|next| known.get(range).map(|(_, hop)| hop) != Some(next)) {
                        note(&mut failures, host.set_route(*range, next, mark.metric).await);
                    }
                }
            }
            for (range, (route, _)) in known {
                if !wanted.routes.contains_key(&range) {
                    note(&mut failures, host.remove_route(route).await);
                }
            }
            if wanted.tunnel.is_none() {
                note(&mut failures, host.remove_tunnel(mark).await);
            }
            finish(failures)
        })
    }

    /// Removes all that leads to other nodes. Success when there is nothing.
    pub(in super::super) fn unlead(&self, mark: &Mark) -> Result<(), Error> {
        self.runtime.block_on(async {
            let mut failures = Vec::new();
            for (route, _) in self.host.known(mark.metric).await?.into_values() {
                note(&mut failures, self.host.remove_route(route).await);
            }
            note(&mut failures, self.host.remove_tunnel(mark).await);
            finish(failures)
        })
    }

    /// The largest packet of pods: what fits the uplink of each family, the tunnel that there is, and the ways to other nodes.
    pub(in super::super) fn mtu(&self, ranges: Ranges, mark: &Mark, others: Option<u32>) -> Result<u32, Error> {
        self.runtime.block_on(async {
            let tunnel = self.host.link(&mark.tunnel).await?.filter(is_vxlan);
            let mut mtu = others
                .into_iter()
                .chain(tunnel.and_then(|link| routes::mtu(&link)))
                .min();
            for range in ranges.iter() {
                let own = self.host.uplink_mtu(range.is_ipv6()).await?;
                mtu = mtu.into_iter().chain(own).min();
            }
            Ok(mtu.unwrap_or(1500))
        })
    }

    /// Sets an interface's MTU. Answers whether it was another one.
    pub(in super::super) fn set_mtu(&self, link: &str, mtu: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.host.set_mtu(link, mtu))
    }

    /// Has pods, by their links, send no larger packets. A pod's own end comes before the machine's, which tells whether it is
    /// done.
    pub(in super::super) fn fit(&self, mtu: u32, pods: &BTreeMap<String, Attachment>) -> Result<(), Error> {
        let mut failures = Vec::new();
        for (link, attachment) in pods {
            let found = self.runtime.block_on(self.host.link(link))?;
            if found.is_none_or(|found| routes::mtu(&found) == Some(mtu)) {
                continue;
            }
            let done = self.inside(attachment).and_then(|inside| {
                self.runtime.block_on(async {
                    inside.set_mtu(&attachment.interface, mtu).await?;
                    self.host.set_mtu(link, mtu).await.map(drop)
                })
            });
            note(&mut failures, done);
        }
        finish(failures)
    }

    fn inside(&self, attachment: &Attachment) -> Result<Socket, Error> {
        let join = || super::namespace::join(&attachment.netns);
        self.enter_by(&attachment.netns, join).map(|(socket, _)| socket)
    }
}

impl Socket {
    async fn by_index(&self, index: u32) -> Result<Option<LinkMessage>, Error> {
        let found = self.handle.link().get().match_index(index).execute().try_next().await;
        found.map_err(|error| refused("look up an interface", &error))
    }

    async fn set_mtu(&self, link: &str, mtu: u32) -> Result<bool, Error> {
        let found = self.existing(link).await?;
        if routes::mtu(&found) == Some(mtu) {
            return Ok(false);
        }
        let change = LinkUnspec::new_with_index(found.header.index).mtu(mtu).build();
        let changed = self.handle.link().set(change).execute().await;
        changed.map_err(|error| refused("set an interface's MTU", &error))?;
        Ok(true)
    }

    /// Our routes by destination, with the next hop of each.
    async fn known(&self, metric: u32) -> Result<BTreeMap<Range, (RouteMessage, (IpAddr, u32))>, Error> {
        let mut known = BTreeMap::new();
        for v6 in [false, true] {
            let mut all = self.handle.route().get(routes::all(v6)).execute();
            while let Some(route) = all.try_next().await.map_err(|error| refused("list routes", &error))? {
                let ours = route.header.protocol == PROTOCOL
                    && route.header.table == RouteHeader::RT_TABLE_MAIN
                    && route.attributes.contains(&RouteAttribute::Priority(metric));
                if let Some(range) = destination(&route).filter(|_| ours) {
                    // One without a next hop is none that we would make: it is replaced.
                    let next = gateway(&route).zip(interface(&route));
                    let next = next.unwrap_or((range.address, 0));
                    known.insert(range, (route, next));
                }
            }
        }
        Ok(known)
    }

    async fn set_route(&self, range: Range, (gateway, interface): (IpAddr, u32), metric: u32) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Kernel {
            doing: "add a route to another node's pods",
            cause: format!("{}/{} via {gateway}: {error}", range.address, range.length),
        };
        let route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(range.address, range.length)
            .and_then(|route| route.gateway(gateway))
            .map_err(|error| failed(&error))?;
        let route = route.output_interface(interface).priority(metric);
        let route = route.protocol(PROTOCOL).onlink().build();
        let made = self.handle.route().add(route).replace().execute().await;
        made.map_err(|error| failed(&error))
    }

    async fn remove_route(&self, route: RouteMessage) -> Result<(), Error> {
        let gone = self.handle.route().del(route).execute().await;
        accept(gone, Errno::ESRCH, "delete a route to another node's pods")
    }
}

fn message(address: IpAddr, length: u8) -> Result<RouteMessage, Error> {
    let asked = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, length);
    let asked = asked.map_err(|error| Error::Kernel {
        doing: "ask for a route",
        cause: error.to_string(),
    })?;
    Ok(asked.build())
}

fn leads_to(route: &RouteMessage) -> Option<u32> {
    interface(route).filter(|_| route.header.kind == RouteType::Unicast)
}

fn is_usable(link: &LinkMessage, own: [&str; 2]) -> bool {
    !link.header.flags.contains(LinkFlags::Loopback) && name(link).is_some_and(|name| !own.contains(&name))
}

fn interface(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Oif(index) = attribute {
            Some(*index)
        } else {
            None
        }
    })
}

fn gateway(route: &RouteMessage) -> Option<IpAddr> {
    route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Gateway(address) = attribute {
            ip(address)
        } else {
            None
        }
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(address) = address {
        return Some((*address).into());
    }
    if let RouteAddress::Inet6(address) = address {
        return Some((*address).into());
    }
    None
}

/// Tells whether a router of the other family is between.
fn has_other_gateway(route: &RouteMessage) -> bool {
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| matches!(attribute, RouteAttribute::Via(_)))
}

fn destination(route: &RouteMessage) -> Option<Range> {
    let address = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Destination(address) = attribute {
            ip(address)
        } else {
            None
        }
    })?;
    Range::new(address, route.header.destination_prefix_length)
}
