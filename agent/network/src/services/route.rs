//! Route of the node to the Service CIDR. Packets are translated before they take it, but the
//! kernel sends none without a route.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::RouteMessage;
use tokio::task::JoinSet;

use crate::{Cidr, Error};

/// Adds a route to the range through an interface, unless the node has a route already, such as its
/// default route.
pub(super) fn reach(range: Cidr, interface: &str) -> Result<(), Error> {
    let refused = |cause: &dyn std::fmt::Display| Error::Kernel {
        doing: "make a route to Services",
        cause: cause.to_string(),
    };
    if has_way(range.at(1).address) {
        return Ok(());
    }
    let index = if_nametoindex(interface).map_err(|error| refused(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| refused(&error))?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| refused(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        match handle.route().add(route(range, index)).execute().await {
            Err(rtnetlink::Error::NetlinkError(told)) if told.raw_code() == -(Errno::EEXIST as i32) => Ok(()),
            made => made.map_err(|error| refused(&error)),
        }
    })
}

fn has_way(to: IpAddr) -> bool {
    let any: IpAddr = if to.is_ipv6() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    // Connecting a UDP socket only looks up a route; nothing is sent.
    let asked = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(SocketAddr::from((to, 9))));
    !asked.is_err_and(|error| matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable))
}

fn route(range: Cidr, interface: u32) -> RouteMessage {
    match range.network() {
        IpAddr::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, range.prefix)
            .output_interface(interface)
            .scope(rtnetlink::packet_route::route::RouteScope::Link)
            .build(),
        IpAddr::V6(network) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(network, range.prefix)
            .output_interface(interface)
            .build(),
    }
}
