//! This node's VXLAN interface, and its entries for other nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent_plan::network::node_routes::{PORT, Tunnel};
use futures::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::AddressFlags;
use rtnetlink::packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::{LinkUnspec, LinkVxlan};

use super::ownership::refuse_owner;
use super::{Socket, accept, refused, routes, settings};
use crate::nft::message::octets;
use crate::{Cidr, Error};

/// Names of the objects of one state folder for routes to other nodes.
#[derive(Clone, Debug)]
pub(in super::super) struct Mark {
    /// Name of the VXLAN interface.
    pub(in super::super) tunnel: String,
    /// Owner's mark of the interface.
    pub(in super::super) owner: String,
    /// Metric of the routes.
    pub(in super::super) metric: u32,
}

/// Neighbor or FDB entry of the VXLAN interface.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

impl Socket {
    /// Creates or updates this node's VXLAN interface and its entries for other nodes; returns its
    /// index.
    pub(super) async fn tunnel(&self, mark: &Mark, id: u32, wanted: &Tunnel) -> Result<u32, Error> {
        if let Some(link) = self.link(&mark.tunnel).await? {
            refuse_owner(&link, &mark.tunnel, &mark.owner, is_vxlan(&link))?;
            if !is_as(&link, id, wanted) {
                self.remove(link.header.index).await?;
            }
        }
        let link = match self.link(&mark.tunnel).await? {
            Some(link) => link,
            None => self.make_tunnel(mark, id, wanted).await?,
        };
        let index = link.header.index;
        // The kernel reports a change of nothing too, which would be a reason to look again.
        if !is_set_up(&link, mark, wanted.mtu) {
            let change = LinkUnspec::new_with_index(index)
                .mtu(wanted.mtu)
                .alias(&mark.owner)
                .up();
            let changed = self.handle.link().set(change.build()).execute().await;
            changed.map_err(|error| refused("set up the VXLAN interface", &error))?;
        }
        for address in &wanted.addresses {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            let held = Cidr {
                address: *address,
                prefix,
            };
            let given = self.give(index, held, AddressFlags::empty()).await;
            accept(given, Errno::EEXIST, "give the VXLAN interface its address")?;
        }
        self.teach(index, wanted).await?;
        Ok(index)
    }

    async fn make_tunnel(&self, mark: &Mark, id: u32, wanted: &Tunnel) -> Result<LinkMessage, Error> {
        let made = LinkVxlan::new(&mark.tunnel, id).port(PORT).learning(false);
        let made = match wanted.local {
            IpAddr::V4(local) => made.local(local),
            IpAddr::V6(local) => made.local6(local),
        };
        let made = made.address(wanted.hardware.to_vec()).mtu(wanted.mtu);
        let made = self.handle.link().add(made.build()).execute().await;
        made.map_err(|error| refused("create the VXLAN interface", &error))?;
        let link = self.existing(&mark.tunnel).await?;
        self.keep_from_linking(link.header.index).await?;
        settings::of_bridge(&mark.tunnel, wanted.addresses.iter().any(IpAddr::is_ipv6))?;
        Ok(link)
    }

    /// Sets the static FDB and neighbor entries: hardware addresses of the other VXLAN interfaces,
    /// and their nodes.
    async fn teach(&self, index: u32, wanted: &Tunnel) -> Result<(), Error> {
        let forwarding = wanted.forwarding.iter();
        let forwarding: Entries = forwarding
            .map(|(hardware, node)| (hardware.to_vec(), octets(*node)))
            .collect();
        let neighbors = wanted.neighbors.iter();
        let neighbors: Entries = neighbors
            .map(|(end, hardware)| (octets(*end), hardware.to_vec()))
            .collect();
        for family in [AddressFamily::Bridge, AddressFamily::Inet, AddressFamily::Inet6] {
            let is_bridge = family == AddressFamily::Bridge;
            let wanted = if is_bridge { &forwarding } else { &neighbors };
            let mut missing = wanted.clone();
            for message in self.entries(index, family).await? {
                let permanent = message.header.state == NeighbourState::Permanent;
                let (address, hardware) = said(&message);
                let (key, value) = if is_bridge {
                    (hardware, address)
                } else {
                    (address, hardware)
                };
                if permanent && key.is_some() && key.as_ref().and_then(|key| wanted.get(key)) == value.as_ref() {
                    key.and_then(|key| missing.remove(&key));
                } else if permanent || is_bridge {
                    let gone = self.handle.neighbours().del(message).execute().await;
                    accept(gone, Errno::ENOENT, "delete an entry of the VXLAN interface")?;
                }
            }
            for (key, value) in missing {
                let (hardware, address) = if is_bridge { (key, value) } else { (value, key) };
                let Some(address) = address_of(&address).filter(|address| is_bridge || is_of(*address, family)) else {
                    continue;
                };
                let table = self.handle.neighbours();
                let entry = if is_bridge {
                    let entry = table.add_bridge(index, &hardware).destination(address);
                    entry.flags(NeighbourFlags::Own)
                } else {
                    table.add(index, address).link_layer_address(&hardware)
                };
                let added = entry.state(NeighbourState::Permanent).replace().execute().await;
                added.map_err(|error| refused("add an entry to the VXLAN interface", &error))?;
            }
        }
        Ok(())
    }

    async fn entries(&self, index: u32, family: AddressFamily) -> Result<Vec<NeighbourMessage>, Error> {
        let mut all = self.handle.neighbours().get().set_address_family(family).execute();
        let mut own = Vec::new();
        while let Some(entry) = all
            .try_next()
            .await
            .map_err(|error| refused("list neighbors", &error))?
        {
            if entry.header.ifindex == index && entry.header.family == family {
                own.push(entry);
            }
        }
        Ok(own)
    }

    pub(super) async fn remove_tunnel(&self, mark: &Mark) -> Result<(), Error> {
        let Some(link) = self.link(&mark.tunnel).await? else {
            return Ok(());
        };
        // Another owner's interface of this name is kept.
        if refuse_owner(&link, &mark.tunnel, &mark.owner, is_vxlan(&link)).is_err() {
            return Ok(());
        }
        self.remove(link.header.index).await
    }
}

fn vxlan(link: &LinkMessage) -> Option<&[InfoVxlan]> {
    let mut attributes = link.attributes.iter();
    let infos = attributes.find_map(|attribute| {
        if let LinkAttribute::LinkInfo(infos) = attribute {
            Some(infos)
        } else {
            None
        }
    })?;
    infos.iter().find_map(|info| {
        if let LinkInfo::Data(InfoData::Vxlan(all)) = info {
            Some(all.as_slice())
        } else {
            None
        }
    })
}

pub(super) fn is_vxlan(link: &LinkMessage) -> bool {
    vxlan(link).is_some()
}

/// True if an interface is the wanted VXLAN interface. Its MTU and entries may differ, since they
/// can be changed.
fn is_as(link: &LinkMessage, id: u32, wanted: &Tunnel) -> bool {
    let local = match wanted.local {
        IpAddr::V4(local) => InfoVxlan::Local(local),
        IpAddr::V6(local) => InfoVxlan::Local6(local),
    };
    let is = |info: &InfoVxlan| vxlan(link).is_some_and(|all| all.contains(info));
    let hardware = LinkAttribute::Address(wanted.hardware.to_vec());
    is(&InfoVxlan::Id(id)) && is(&local) && is(&InfoVxlan::Port(PORT)) && link.attributes.contains(&hardware)
}

/// True if an interface is up, with its owner's mark and this MTU.
fn is_set_up(link: &LinkMessage, mark: &Mark, mtu: u32) -> bool {
    let alias = LinkAttribute::IfAlias(mark.owner.clone());
    let is_up = link.header.flags.contains(LinkFlags::Up);
    is_up && routes::mtu(link) == Some(mtu) && link.attributes.contains(&alias)
}

/// Address and hardware address of an entry.
fn said(entry: &NeighbourMessage) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let (mut address, mut hardware) = (None, None);
    for attribute in &entry.attributes {
        if let NeighbourAttribute::LinkLayerAddress(found) = attribute {
            hardware = Some(found.clone());
        } else if let NeighbourAttribute::Destination(found) = attribute {
            address = address_in(found);
        }
    }
    (address, hardware)
}

fn address_in(found: &NeighbourAddress) -> Option<Vec<u8>> {
    if let NeighbourAddress::Inet(found) = found {
        return Some(found.octets().to_vec());
    }
    if let NeighbourAddress::Inet6(found) = found {
        return Some(found.octets().to_vec());
    }
    // Link-layer address of an FDB entry.
    if let NeighbourAddress::Other(found) = found {
        return Some(found.clone());
    }
    None
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

fn is_of(address: IpAddr, family: AddressFamily) -> bool {
    address.is_ipv4() == (family == AddressFamily::Inet)
}
