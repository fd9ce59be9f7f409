//! Routes to the pods of other nodes, and notifications of the kernel about changes by others.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use agent_plan::network::node_routes::{self, Peer};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::unix::AsyncFd;

use super::firewall::masquerade;
use super::kernel::{self, Mark};
use super::{Inner, mending, names};
use crate::nft::conntrack;
use crate::{Cidr, Error};

// Multicast groups and message types, from `linux/rtnetlink.h`.
const ROUTES: u32 = 0x40 | 0x400;
const LINK: std::ops::RangeInclusive<u16> = 16..=17;
const ADDRESS: std::ops::RangeInclusive<u16> = 20..=21;
const ROUTE: std::ops::RangeInclusive<u16> = 24..=25;
/// Byte of a route's message with its table, and the table of the machine's own addresses, in which
/// each link has a route for multicast, too.
const TABLE: usize = 4;
const LOCAL: u8 = 255;

/// Nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// This node; the ranges of its pods are those that the network serves.
    pub own: Peer,
    /// All nodes; may include this one.
    pub peers: Vec<Peer>,
    /// VXLAN network identifier: the same on all nodes of the cluster, and unique to it; 24 bits,
    /// not 0.
    pub id: u32,
}

/// Notifications that routes should be checked.
#[derive(Debug)]
pub struct RouteNews(AsyncFd<OwnedFd>);

impl RouteNews {
    pub(super) fn open() -> std::io::Result<Self> {
        mending::listen(mending::LINKS | mending::ADDRESSES | ROUTES).map(Self)
    }

    /// Waits until links, addresses or routes of the machine have changed.
    pub async fn changed(&self) -> std::io::Result<()> {
        let mut buffer = vec![0_u8; conntrack::LARGEST];
        loop {
            let heard = self.0.async_io(tokio::io::Interest::READABLE, |socket| {
                Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?)
            });
            let length = match heard.await {
                Ok(length) => length,
                // Notifications were lost (`ENOBUFS`).
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut said = conntrack::messages(buffer.get(..length).unwrap_or_default());
            if said.any(|(kind, said)| matters(kind, said)) {
                return Ok(());
            }
        }
    }
}

/// True if routes may depend on the object of a message. Pods' own links, and what comes and goes
/// with them, do not matter; of the machine's addresses there are messages of their own.
fn matters(kind: u16, said: &[u8]) -> bool {
    if LINK.contains(&kind) {
        return !mending::name(said).is_some_and(|name| names::is_host_link(&name));
    }
    ADDRESS.contains(&kind) || (ROUTE.contains(&kind) && said.get(TABLE) != Some(&LOCAL))
}

impl Inner {
    /// Names of the objects for routes to other nodes.
    pub(super) fn mark(&self) -> Mark {
        let owner = self.owner();
        Mark {
            tunnel: names::tunnel(&self.config.bridge),
            metric: names::metric(&owner),
            owner,
        }
    }

    /// Ranges to which pods' packets are not masqueraded.
    pub(super) fn near(&self) -> Vec<Cidr> {
        let routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        self.config.direct.iter().chain(routed.iter()).copied().collect()
    }

    /// Records the routed ranges; returns whether they have changed.
    pub(super) fn note_routed(&self, ranges: &[Cidr]) -> bool {
        let mut routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        let other = *routed != ranges;
        *routed = ranges.to_vec();
        other
    }

    /// Sets the routes to the pods of other nodes. Returns the nodes whose pods are unreachable,
    /// with the error of each.
    pub(super) fn route(&self, nodes: &Nodes) -> Result<BTreeMap<String, String>, Error> {
        let (Some(mode), Some(ranges)) = (self.config.routes, self.records().ranges()) else {
            return Ok(BTreeMap::new());
        };
        let (bridge, mark) = (&self.config.bridge, self.mark());
        let own = Peer {
            ranges: ranges.iter().map(Cidr::network_range).collect(),
            ..nodes.own.clone()
        };
        kernel::with(|kernel| {
            let asked = node_routes::asked(&own, &nodes.peers);
            let ways = kernel.ways(&asked, [bridge, &mark.tunnel])?;
            let wanted = node_routes::plan(&own, &nodes.peers, &ways, mode);
            let near: Vec<Cidr> = wanted.routes.keys().copied().collect();
            // Before the routes: no connection that uses them may be masqueraded.
            if self.note_routed(&near) {
                masquerade::replace(bridge, ranges, &self.near())?;
            }
            let led = kernel.lead(&mark, nodes.id, &wanted);
            let mtu = kernel.mtu(bridge, ranges, &mark, wanted.mtu)?;
            let other = kernel.set_mtu(bridge, mtu)?;
            if other {
                // Existing slots have the earlier MTU.
                super::finish(self.remove_slots())?;
                self.filling.open();
            }
            if other || !self.fitted.swap(true, Ordering::Relaxed) {
                let done = kernel.fit(mtu, &self.records().links());
                self.fitted.store(done.is_ok(), Ordering::Relaxed);
                done?;
            }
            led.map(|()| wanted.unreached)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn routes_that_come_with_a_link_do_not_matter() {
        for (kind, table, expected) in [
            (24, 254, true),
            (25, 254, true),
            (24, 255, false),
            (25, 255, false),
            (20, 255, true),
            (28, 254, false),
        ] {
            let said = [10, 8, 0, 0, table, 2, 0, 5, 0, 0, 0, 0];
            assert_eq!(matters(kind, &said), expected, "{kind} {table}");
        }
    }
}
