//! Routes to the pods of other nodes: direct to a node on the same link, through a VXLAN tunnel to
//! one behind a router or a VPN.
//!
//! ```text
//! Nodes ──► believable ones ──► same family, on link? ──► route by the node's address
//!                                      └── else ──► route by the node's end of the tunnel + neighbor + forwarding entry
//! ```
//!
//! Every node derives the others' tunnel endpoints from the Nodes alone: the first address of the
//! pod CIDR, and a MAC address that follows from it. There is no learning or discovery on the wire.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::Node;

use crate::Timestamp;

/// UDP port of the tunnel, VXLAN's own (RFC 7348).
pub const PORT: u16 = 4789;

/// VXLAN's overhead in bytes, by the family of the nodes' addresses: Ethernet, IP, UDP and its own
/// header.
const OVERHEAD: [u32; 2] = [50, 70];
/// The minimum MTU of IPv6 (RFC 8200).
const SMALLEST_MTU: u32 = 1280;

/// Nodes without routes that are named; more are counted.
const NAMED: usize = 3;

/// State of this node's routes, for the Node's conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Routed {
    /// Routes are managed by another program.
    #[default]
    Elsewhere,
    /// Not known yet.
    Pending,
    /// Complete.
    Done,
    /// Complete but for some nodes, which it names with the reasons.
    Partly(String),
    /// The kernel rejected some.
    Failed,
}

impl Routed {
    /// State after an update that left these nodes out, each for a reason.
    pub fn of(unreached: &BTreeMap<String, String>) -> Self {
        if unreached.is_empty() {
            return Self::Done;
        }
        let named = unreached
            .iter()
            .take(NAMED)
            .map(|(node, why)| format!("{node} ({why})"));
        let more = unreached.len().checked_sub(NAMED).filter(|more| *more > 0);
        let all: Vec<String> = named.chain(more.map(|more| format!("{more} more"))).collect();
        Self::Partly(format!("pods are not reached from this node on: {}", all.join(", ")))
    }
}

/// The parts of a Node that routes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Its addresses of type `InternalIP`.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`, from their first addresses.
    pub ranges: Vec<Cidr>,
}

impl Peer {
    /// Reads a Node.
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let several = spec
            .and_then(|spec| spec.pod_cidrs.as_ref())
            .filter(|all| !all.is_empty());
        let single = spec.and_then(|spec| spec.pod_cidr.as_ref());
        let range = |text: &String| text.parse().ok().map(Cidr::network_range);
        let ranges = match several {
            Some(several) => several.iter().filter_map(range).collect(),
            None => single.and_then(range).into_iter().collect(),
        };
        let status = node.status.iter();
        let addresses = status.flat_map(|status| status.addresses.iter().flatten());
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
            addresses: internal.filter_map(|address| address.address.parse().ok()).collect(),
            ranges,
        }
    }

    fn address(&self, v6: bool) -> Option<IpAddr> {
        self.addresses.iter().find(|address| address.is_ipv6() == v6).copied()
    }
}

/// Routes that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Direct routes, and the tunnel.
    Auto,
    /// Direct routes only, also through a VPN, which then has to know the pods' ranges.
    Direct,
    /// The tunnel only, for networks that drop packets of addresses that no machine has. All nodes
    /// need it then.
    Tunnel,
}

/// The machine's route to an address of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Index of the outgoing interface.
    pub interface: u32,
    /// True if the address is on the interface's own link, without a router.
    pub on_link: bool,
    /// True if the interface has neighbors by link-layer addresses. One of a VPN, such as `WireGuard`,
    /// sends a packet to the peer that its destination, a pod, would have to belong to.
    pub has_neighbors: bool,
    /// The interface's MTU.
    pub mtu: u32,
}

/// The next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The other node itself.
    Direct {
        /// Its address.
        gateway: IpAddr,
        /// Index of the outgoing interface.
        interface: u32,
    },
    /// The node's tunnel endpoint.
    Tunnel {
        /// The endpoint's address.
        gateway: IpAddr,
    },
}

/// This node's tunnel endpoint, and those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The node's source address.
    pub local: IpAddr,
    /// MAC address of this endpoint.
    pub hardware: [u8; 6],
    /// Addresses of this endpoint, one for each pod CIDR.
    pub addresses: Vec<IpAddr>,
    /// The tunnel's MTU.
    pub mtu: u32,
    /// MAC addresses of the other endpoints, and the nodes' addresses behind them.
    pub forwarding: BTreeMap<[u8; 6], IpAddr>,
    /// Addresses of the other endpoints, with their MAC addresses.
    pub neighbors: BTreeMap<IpAddr, [u8; 6]>,
}

/// All routes to pods of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// By destination.
    pub routes: BTreeMap<Cidr, Hop>,
    /// The tunnel, if any route needs it.
    pub tunnel: Option<Tunnel>,
    /// The largest packet that fits all routes; `None` where there are none.
    pub mtu: Option<u32>,
    /// Nodes whose pods cannot be reached, with the reason.
    pub unreached: BTreeMap<String, String>,
}

/// Addresses whose routes must be looked up.
pub fn asked(own: &Peer, peers: &[Peer]) -> BTreeSet<IpAddr> {
    let others = peers.iter().filter(|peer| peer.name != own.name);
    others.flat_map(|peer| peer.addresses.iter().copied()).collect()
}

/// Plans the routes of node `own`. `ways` holds the machine's routes to the other nodes' addresses,
/// without those that are unreachable or local.
pub fn plan(own: &Peer, peers: &[Peer], ways: &BTreeMap<IpAddr, Way>, mode: Mode) -> Routes {
    let mut routes = Routes::default();
    let mut taken = own.ranges.clone();
    let mut others: Vec<&Peer> = peers.iter().filter(|peer| peer.name != own.name).collect();
    // Of two nodes with the same range the older one keeps it.
    others.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
    for peer in &others {
        for range in &peer.ranges {
            let led = refusal(*range, &taken, own, &others).map_or_else(|| hop(own, peer, *range, ways, mode), Err);
            match led {
                Ok(found) => {
                    taken.push(*range);
                    if let Some(found) = found {
                        routes.add(own, peer, *range, found);
                    }
                }
                Err(why) => {
                    routes.unreached.insert(peer.name.clone(), format!("{range}: {why}"));
                }
            }
        }
    }
    routes
}

/// Returns the reason for which a range cannot be a node's pod CIDR: a node may write anything to
/// its own Node.
fn refusal(range: Cidr, taken: &[Cidr], own: &Peer, others: &[&Peer]) -> Option<&'static str> {
    if taken.iter().any(|other| other.covers(range) || range.covers(*other)) {
        return Some("another node has addresses of it");
    }
    let mut nodes = others.iter().copied().chain([own]).flat_map(|node| &node.addresses);
    if nodes.any(|address| range.contains(*address)) {
        return Some("it has addresses of nodes themselves");
    }
    let first = range.address;
    (first.is_loopback() || first.is_multicast() || first.is_unspecified()).then_some("it is no range of pods")
}

/// The next hop, and the interface's MTU there; `None` if others make the route.
fn hop(
    own: &Peer,
    peer: &Peer,
    range: Cidr,
    ways: &BTreeMap<IpAddr, Way>,
    mode: Mode,
) -> Result<Option<(Hop, IpAddr, u32)>, &'static str> {
    let way = |address: &IpAddr| Some((*address, *ways.get(address)?));
    let of_family = |v6: bool| peer.addresses.iter().filter(move |address| address.is_ipv6() == v6);
    let may_be_straight = |way: &Way| match mode {
        Mode::Auto => way.has_neighbors,
        Mode::Direct => true,
        Mode::Tunnel => false,
    };
    let straight = of_family(range.address.is_ipv6())
        .filter_map(way)
        .find(|(_, way)| way.on_link && may_be_straight(way));
    if let Some((gateway, way)) = straight {
        let interface = way.interface;
        return Ok(Some((Hop::Direct { gateway, interface }, gateway, way.mtu)));
    }
    if peer.addresses.is_empty() {
        return Err("the node has no address yet");
    }
    if mode == Mode::Direct {
        return Ok(None);
    }
    let v6 = is_tunnel_v6(own).ok_or("this node has no address")?;
    let behind = of_family(v6).find_map(way);
    let (address, way) = behind.ok_or("this node has no way to its address")?;
    Ok(Some((Hop::Tunnel { gateway: range.address }, address, way.mtu)))
}

/// Returns the IP family of the tunnel's outer packets.
fn is_tunnel_v6(own: &Peer) -> Option<bool> {
    if own.address(false).is_some() {
        return Some(false);
    }
    own.address(true).map(|_| true)
}

impl Routes {
    fn add(&mut self, own: &Peer, peer: &Peer, range: Cidr, (hop, address, mtu): (Hop, IpAddr, u32)) {
        let mut mtu = mtu;
        if let Hop::Tunnel { gateway } = hop
            && let Some(local) = own.address(address.is_ipv6())
            && let (Some(hardware), Some(other)) = (hardware(own), hardware(peer))
        {
            let [v4, v6] = OVERHEAD;
            let overhead = if address.is_ipv6() { v6 } else { v4 };
            mtu = mtu.saturating_sub(overhead).max(SMALLEST_MTU);
            let tunnel = self.tunnel.get_or_insert_with(|| Tunnel {
                local,
                hardware,
                addresses: own.ranges.iter().map(|range| range.address).collect(),
                mtu,
                forwarding: BTreeMap::new(),
                neighbors: BTreeMap::new(),
            });
            tunnel.mtu = tunnel.mtu.min(mtu);
            tunnel.forwarding.insert(other, address);
            tunnel.neighbors.insert(gateway, other);
        }
        self.mtu = Some(self.mtu.map_or(mtu, |known| known.min(mtu)));
        self.routes.insert(range, hop);
    }
}

/// Returns the MAC address of a node's tunnel endpoint, derived from its pod CIDR: the IPv4 one if
/// there is one, as that fits completely.
fn hardware(node: &Peer) -> Option<[u8; 6]> {
    let first = node.ranges.iter().find(|range| range.address.is_ipv4());
    let [a, b, c, d] = match first.or(node.ranges.first())?.address {
        IpAddr::V4(address) => address.octets(),
        // FNV-1a.
        IpAddr::V6(address) => {
            let mix = |hash: u32, octet: &u8| (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193);
            address.octets().iter().fold(0x811c_9dc5, mix).to_be_bytes()
        }
    };
    // A locally administered address.
    Some([0x0a, 0x58, a, b, c, d])
}
