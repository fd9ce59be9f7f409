//! Address of the node that only the node and its pods reach: for servers of pods whose ranges are
//! those of CNI plugins.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt as _;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::AddressScope;
use tokio::task::JoinSet;

use crate::Error;

/// The address: link-local, so that no router forwards packets to it.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 53);
const LOOPBACK: &str = "lo";

fn refused(cause: &dyn std::fmt::Display) -> Error {
    Error::Kernel {
        doing: "change the addresses of the loopback",
        cause: cause.to_string(),
    }
}

/// True if a firewall of nftables drops what pods send to the node.
pub fn is_shut() -> bool {
    crate::bridge::shuts_node()
}

/// Gives the address to the node. Succeeds if it has it.
pub fn hold() -> Result<(), Error> {
    with(async |handle, index| {
        let mut request = handle.address().add(index, IpAddr::V4(ADDRESS), 32);
        // With a wider scope it is the source towards interfaces that have no address, such as the
        // host's ends of some plugins' pods.
        request.message_mut().header.scope = AddressScope::Host;
        match request.execute().await {
            Err(rtnetlink::Error::NetlinkError(told)) if told.raw_code() == -(Errno::EEXIST as i32) => Ok(()),
            added => added,
        }
    })
}

/// Takes the address from the node. Succeeds if it does not have it.
pub fn release() -> Result<(), Error> {
    with(async |handle, index| {
        let all = handle.address().get().set_link_index_filter(index);
        let mut held = all.set_address_filter(IpAddr::V4(ADDRESS)).execute();
        while let Some(address) = held.try_next().await? {
            handle.address().del(address).execute().await?;
        }
        Ok(())
    })
}

fn with(work: impl AsyncFnOnce(&Handle, u32) -> Result<(), rtnetlink::Error>) -> Result<(), Error> {
    let index = if_nametoindex(LOOPBACK).map_err(|error| refused(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| refused(&error))?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| refused(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        work(&handle, index).await.map_err(|error| refused(&error))
    })
}
