//! Routes to other nodes' pods and the VXLAN interface, by rtnetlink.
//!
//! Routes are identified by their protocol and a metric derived from the state folder; the VXLAN
//! interface has the owner's mark, like the bridge. Objects of other programs or other clusters are
//! not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use agent_plan::network::node_routes::{Hop, Routes, Way};
use futures::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::{LinkUnspec, RouteMessageBuilder};

use super::super::{finish, note};
use super::ownership::name;
use super::tunnel::{Mark, is_vxlan};
use super::{Kernel, Socket, accept, refused, routes};
use crate::{Attachment, Cidr, Error, Ranges};

/// Protocol number of the routes that this program creates. Unassigned in iproute2's `rt_protos`.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(83);

impl Kernel {
    /// Routes of the host to addresses. Local ones and those through interfaces of this network are
    /// skipped.
    pub(in super::super) fn ways(
        &self,
        addresses: &BTreeSet<IpAddr>,
        own: [&str; 2],
    ) -> Result<BTreeMap<IpAddr, Way>, Error> {
        self.runtime.block_on(async {
            let mut links: BTreeMap<u32, Option<(u32, bool)>> = BTreeMap::new();
            let mut ways = BTreeMap::new();
            for address in addresses {
                let length = if address.is_ipv4() { 32 } else { 128 };
                let question = message(*address, length)?;
                let answer = self.host.handle.route().get(question).execute().try_next().await;
                // There is no route, or none of this family.
                let Ok(Some(route)) = answer else { continue };
                let Some(interface) = leads_to(&route) else { continue };
                let link = if let Some(known) = links.get(&interface) {
                    *known
                } else {
                    let link = self.host.by_index(interface).await?;
                    let usable = link.filter(|link| is_usable(link, own));
                    let has_neighbors = |link: &LinkMessage| !link.header.flags.contains(LinkFlags::Noarp);
                    let link = usable.and_then(|link| Some((routes::mtu(&link)?, has_neighbors(&link))));
                    links.insert(interface, link);
                    link
                };
                let on_link = gateway(&route).is_none() && !has_other_gateway(&route);
                let way = |(mtu, has_neighbors)| Way {
                    interface,
                    on_link,
                    has_neighbors,
                    mtu,
                };
                ways.extend(link.map(|link| (*address, way(link))));
            }
            Ok(ways)
        })
    }

    /// Destinations of this network's routes.
    pub(in super::super) fn routed(&self, metric: u32) -> Result<Vec<Cidr>, Error> {
        let known = self.runtime.block_on(self.host.known(metric))?;
        Ok(known.into_keys().collect())
    }

    /// Brings routes and tunnel to the wanted state. Direct routes come first: they need no tunnel.
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

    /// Removes routes and tunnel. Succeeds if there are none.
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

    /// MTU of pods: limited by the uplink of each family, the tunnel, and the routes to other
    /// nodes.
    pub(in super::super) fn mtu(
        &self,
        bridge: &str,
        ranges: Ranges,
        mark: &Mark,
        others: Option<u32>,
    ) -> Result<u32, Error> {
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
            if mtu.is_none() {
                // The default route may be away for a moment.
                mtu = self.host.link(bridge).await?.and_then(|link| routes::mtu(&link));
            }
            Ok(mtu.unwrap_or(1500))
        })
    }

    /// Sets an interface's MTU. Returns whether it has changed.
    pub(in super::super) fn set_mtu(&self, link: &str, mtu: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.host.set_mtu(link, mtu))
    }

    /// Sets the MTU of pods' interfaces. The pod's end comes before the host end, whose MTU
    /// indicates completion.
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

    /// Routes of this network by destination, with the next hop of each.
    async fn known(&self, metric: u32) -> Result<BTreeMap<Cidr, (RouteMessage, (IpAddr, u32))>, Error> {
        let mut known = BTreeMap::new();
        for v6 in [false, true] {
            let mut all = self.handle.route().get(routes::all(v6)).execute();
            while let Some(route) = all.try_next().await.map_err(|error| refused("list routes", &error))? {
                let ours = route.header.protocol == PROTOCOL
                    && route.header.table == RouteHeader::RT_TABLE_MAIN
                    && route.attributes.contains(&RouteAttribute::Priority(metric));
                if let Some(range) = destination(&route).filter(|_| ours) {
                    // A route without a next hop was not created by this network: it is replaced.
                    let next = gateway(&route).zip(interface(&route));
                    let next = next.unwrap_or((range.address, 0));
                    known.insert(range, (route, next));
                }
            }
        }
        Ok(known)
    }

    async fn set_route(&self, range: Cidr, (gateway, interface): (IpAddr, u32), metric: u32) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Kernel {
            doing: "add a route to another node's pods",
            cause: format!("{range} via {gateway}: {error}"),
        };
        let route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(range.address, range.prefix)
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

/// True if the next hop is a router of the other family.
fn has_other_gateway(route: &RouteMessage) -> bool {
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| matches!(attribute, RouteAttribute::Via(_)))
}

fn destination(route: &RouteMessage) -> Option<Cidr> {
    let address = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Destination(address) = attribute {
            ip(address)
        } else {
            None
        }
    })?;
    Cidr::new(address, route.header.destination_prefix_length).map(Cidr::network_range)
}
