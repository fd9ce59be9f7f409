//! Addresses by which other machines reach this one.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

/// Address that every virtual machine has behind the NAT of `VirtualBox` or QEMU.
const NAT: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Router of that NAT, 10.0.2.2, as in `/proc/net/route`.
const NAT_ROUTER: &str = "0202000A";

/// Returns the addresses of a cluster's first node: those of [`of_default_route`], but instead of
/// one that other machines have as well that of another interface, and so where there is none.
pub(super) fn choose(pod_cidr: Option<&str>) -> Vec<IpAddr> {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    with_another(of_default_route(pod_cidr), &routes, another)
}

fn with_another(mut chosen: Vec<IpAddr>, routes: &str, another: impl FnOnce() -> Option<IpAddr>) -> Vec<IpAddr> {
    let is_alone = chosen.iter().all(IpAddr::is_loopback);
    if (is_alone || chosen.first().is_some_and(|first| is_nats(*first, routes)))
        && let Some(other) = another()
    {
        chosen.retain(|own| !is_nats(*own, routes));
        chosen.insert(0, other);
    }
    chosen
}

/// True for addresses that were chosen although the default route has others, or is not there. The
/// agent finds those of the default route itself, and follows when they change.
pub(in crate::cluster) fn are_of_another(own: &[IpAddr], pod_cidr: &str) -> bool {
    own != of_default_route(Some(pod_cidr)) && own == choose(Some(pod_cidr))
}

/// Returns the source address of the default route, also of IPv6 if pods have such addresses or the
/// machine has no other route, and loopback. Nothing is sent: connecting a UDP socket only looks up
/// the route.
fn of_default_route(pod_cidr: Option<&str>) -> Vec<IpAddr> {
    let towards = |own: &str, target: &str| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let v6 = pod_cidr.is_some_and(|range| range.contains(':'));
    known_as(v6, towards("0.0.0.0:0", "192.0.2.1:9"), || {
        towards("[::]:0", "[2001:db8::1]:9")
    })
}

fn known_as(wants_v6: bool, v4: Option<IpAddr>, v6: impl FnOnce() -> Option<IpAddr>) -> Vec<IpAddr> {
    let v4 = v4.filter(|address| !address.is_loopback());
    let v6 = if wants_v6 || v4.is_none() { v6() } else { None };
    v4.into_iter()
        .chain(v6.filter(|address| !address.is_loopback()))
        .chain([IpAddr::V4(Ipv4Addr::LOCALHOST)])
        .collect()
}

/// True if the machine has an address.
pub(in crate::cluster) fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// True for the NAT's address; `routes` is `/proc/net/route`.
fn is_nats(address: IpAddr, routes: &str) -> bool {
    let is_its = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some("00000000") && words.next() == Some(NAT_ROUTER)
    };
    address == NAT && routes.lines().any(is_its)
}

/// Returns an IPv4 address of an interface that is no bridge.
fn another() -> Option<IpAddr> {
    let is_bridge = |held: &InterfaceAddress| {
        let interface = Path::new("/sys/class/net").join(&held.interface_name);
        interface.join("bridge").exists()
    };
    let held = getifaddrs().ok()?.filter(|held| !is_bridge(held));
    let addresses = held.filter_map(|held| {
        let has_one_peer = held.flags.contains(InterfaceFlags::IFF_POINTOPOINT);
        Some((held.address?.as_sockaddr_in()?.ip(), has_one_peer))
    });
    first(addresses).map(IpAddr::V4)
}

/// The first address that other machines may reach. Those of links with one peer, such as tunnels
/// of a VPN, which come and go, are the last choice.
fn first(addresses: impl Iterator<Item = (Ipv4Addr, bool)>) -> Option<Ipv4Addr> {
    let others = addresses.filter(|(own, _)| !own.is_loopback() && !own.is_link_local() && *own != NAT);
    let (chosen, _) = others.min_by_key(|(_, has_one_peer)| *has_one_peer)?;
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_leads_anywhere_by_ipv6_alone_is_known_by_that() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6, own) = (parse("192.0.2.7"), parse("2001:db8::7"), parse("127.0.0.1"));
        assert_eq!(known_as(false, None, || Some(v6)), [v6, own]);
        assert_eq!(known_as(false, Some(v4), || Some(v6)), [v4, own]);
        assert_eq!(known_as(true, Some(v4), || Some(v6)), [v4, v6, own]);
        assert_eq!(known_as(false, None, || None), [own]);
    }

    #[test]
    fn a_machine_without_a_default_route_is_known_by_another_interface() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6, own, nat) = (
            parse("192.0.2.7"),
            parse("2001:db8::7"),
            parse("127.0.0.1"),
            parse("10.0.2.15"),
        );
        let routes = "Iface\tDestination\tGateway\neth0\t00000000\t0202000A\t0003\n";
        for (chosen, other, expected) in [
            (vec![own], Some(v4), vec![v4, own]),
            (vec![own], None, vec![own]),
            (vec![nat, v6, own], Some(v4), vec![v4, v6, own]),
            (vec![nat, own], None, vec![nat, own]),
            (vec![v6, own], Some(v4), vec![v6, own]),
        ] {
            assert_eq!(with_another(chosen.clone(), routes, || other), expected, "{chosen:?}");
        }
    }

    #[test]
    fn a_tunnel_gives_the_address_where_no_other_interface_has_one() {
        let [lan, other, vpn] = [[192, 0, 2, 7], [192, 0, 2, 8], [100, 64, 0, 1]].map(Ipv4Addr::from);
        for (held, expected) in [
            (vec![(vpn, true), (lan, false), (other, false)], Some(lan)),
            (vec![(NAT, false), (vpn, true)], Some(vpn)),
            (
                vec![(Ipv4Addr::LOCALHOST, false), (Ipv4Addr::new(169, 254, 0, 1), false)],
                None,
            ),
        ] {
            assert_eq!(first(held.clone().into_iter()), expected, "{held:?}");
        }
    }

    #[test]
    fn the_address_that_every_virtual_machine_has_is_told_by_its_router() {
        let through = |router: &str| {
            format!(
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 eth0\t00000000\t{router}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                 eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
            )
        };
        for (address, router, expected) in [
            ("10.0.2.15", "0202000A", true),
            ("10.0.2.15", "0102000A", false),
            ("10.0.2.16", "0202000A", false),
            ("192.168.56.10", "0202000A", false),
        ] {
            let found = is_nats(address.parse().unwrap(), &through(router));
            assert_eq!(found, expected, "{address} {router}");
        }
    }
}
