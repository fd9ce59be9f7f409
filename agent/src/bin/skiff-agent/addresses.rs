//! The machine's own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// Documentation addresses (RFC 5737, RFC 3849): routed by the default route.
pub(crate) const ANYWHERE: &str = "192.0.2.1:9";
pub(crate) const ANYWHERE_V6: &str = "[2001:db8::1]:9";

/// Returns the local address for a target; sends nothing.
pub(crate) fn source(target: &str) -> Option<IpAddr> {
    let mut targets: Vec<SocketAddr> = target.to_socket_addrs().ok()?.collect();
    targets.sort_by_key(SocketAddr::is_ipv6);
    targets.into_iter().find_map(|target| {
        let any: IpAddr = if target.is_ipv6() {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}
