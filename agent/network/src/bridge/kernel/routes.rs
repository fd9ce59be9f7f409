//! Netlink messages about links and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use rtnetlink::{LinkBridge, RouteMessageBuilder};

use crate::Cidr;

/// Metric of the blackhole route: any other route to the pods is preferred.
const LAST_RESORT: u32 = u32::MAX;
/// Metric of the IPv6 route that the kernel adds with an address (`IP6_RT_PRIO_ADDRCONF`).
const PREFIX_METRIC: u32 = 256;

/// Blackhole route for packets to a pod that is gone, or while the bridge is down, so that they do
/// not leave the machine.
pub(super) fn last_resort(range: Cidr) -> RouteMessage {
    match range.network() {
        IpAddr::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, range.prefix)
            .kind(RouteType::BlackHole)
            .priority(LAST_RESORT)
            .build(),
        IpAddr::V6(network) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(network, range.prefix)
            .kind(RouteType::BlackHole)
            .priority(LAST_RESORT)
            .build(),
    }
}

/// Route to the bridge's pods. The kernel adds it with the bridge's address, and not again when it
/// was deleted.
pub(super) fn connected(range: Cidr, bridge: u32) -> RouteMessage {
    match range.network() {
        IpAddr::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, range.prefix)
            .output_interface(bridge)
            .scope(RouteScope::Link)
            .protocol(RouteProtocol::Kernel)
            .build(),
        IpAddr::V6(network) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(network, range.prefix)
            .output_interface(bridge)
            .protocol(RouteProtocol::Kernel)
            .priority(PREFIX_METRIC)
            .build(),
    }
}

/// New bridge. Traffic between its pods passes the host's netfilter rules, too: replies must be
/// translated back to a Service's address.
pub(super) fn bridge(name: &str, hardware: &[u8]) -> LinkMessage {
    let bridge = LinkBridge::new(name).nf_call_iptables(true).nf_call_ip6tables(true);
    if hardware.is_empty() {
        return bridge.build();
    }
    // From the beginning: other programs, such as udev, replace an address of the kernel's choice.
    bridge.address(hardware.to_vec()).build()
}

/// Route of a pod to its gateway, the only address on its link.
pub(super) fn gateway_route(gateway: IpAddr, interface: u32) -> RouteMessage {
    match gateway {
        IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(gateway, 32)
            .output_interface(interface)
            .scope(RouteScope::Link)
            .build(),
        IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(gateway, 128)
            .output_interface(interface)
            .build(),
    }
}

/// Default route of a pod.
pub(super) fn default_route(gateway: IpAddr, interface: u32) -> RouteMessage {
    match gateway {
        IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new()
            .gateway(gateway)
            .output_interface(interface)
            .build(),
        IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new()
            .gateway(gateway)
            .output_interface(interface)
            .build(),
    }
}

/// Request for all routes of a family.
pub(super) fn all(v6: bool) -> RouteMessage {
    if v6 {
        RouteMessageBuilder::<Ipv6Addr>::new().build()
    } else {
        RouteMessageBuilder::<Ipv4Addr>::new().build()
    }
}

/// Output interface of a default route.
pub(super) fn uplink(route: &RouteMessage) -> Option<u32> {
    if route.header.destination_prefix_length != 0 || route.header.kind != RouteType::Unicast {
        return None;
    }
    route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Oif(index) = attribute {
            Some(*index)
        } else {
            None
        }
    })
}

/// Hardware address derived from the IP address: neighbor caches stay valid when an address is
/// reused.
pub(super) fn hardware_address(address: IpAddr) -> Vec<u8> {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        // The addresses of one range differ in their last bits.
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    vec![0x0a, 0x58, a, b, c, d]
}

/// Link-local address that the kernel derives from a link's hardware address once the link has
/// carrier. Without it, neighbor solicitations cannot be sent for forwarded packets.
pub(super) fn link_local(hardware: &[u8]) -> Cidr {
    let number = hardware
        .iter()
        .fold(0, |number, octet| number << 8 | u128::from(*octet));
    let (maker, own) = (number >> 24, number & 0x00ff_ffff);
    let interface = (maker << 40 | 0xff_fe00_0000 | own) ^ (2 << 56);
    Cidr {
        address: Ipv6Addr::from_bits(0xfe80 << 112 | interface).into(),
        prefix: 64,
    }
}

/// Bridge of which a link is a port.
pub(super) fn controller(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::Controller(index) = attribute {
            Some(*index).filter(|index| *index != 0)
        } else {
            None
        }
    })
}

pub(super) fn mtu(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::Mtu(mtu) = attribute {
            Some(*mtu)
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{hardware_address, link_local};

    #[test]
    fn addresses_follow_from_each_other() {
        let of = |address: &str| hardware_address(address.parse().unwrap());
        assert_eq!(of("10.244.0.1"), [0x0a, 0x58, 10, 244, 0, 1]);
        assert_eq!(of("fd00::1:2:3"), [0x0a, 0x58, 0, 2, 0, 3]);
        assert_eq!(link_local(&of("10.244.0.1")).to_string(), "fe80::858:aff:fef4:1/64");
    }
}
