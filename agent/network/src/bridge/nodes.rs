//! Pods of other nodes: routes to them, and news of the kernel that others may have changed those.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use agent_plan::node_routes::{self, Peer, Range};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::unix::AsyncFd;

use super::kernel::{self, Mark};
use super::{Inner, flows, masquerade, mending, names};
use crate::{Cidr, Error};

// Groups of news and kinds of messages, from linux/rtnetlink.h.
const LINKS: u32 = 1;
const ADDRESSES: u32 = 0x10 | 0x100;
const ROUTES: u32 = 0x40 | 0x400;
const LINK: std::ops::RangeInclusive<u16> = 16..=17;
const ADDRESS: std::ops::RangeInclusive<u16> = 20..=21;
const ROUTE: std::ops::RangeInclusive<u16> = 24..=25;

/// The nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// This one; the ranges of its pods are those that the network serves.
    pub own: Peer,
    /// All of them; this one may be among them.
    pub peers: Vec<Peer>,
    /// A number that all nodes of the cluster know, and no other cluster's: 24 bits, not 0.
    pub id: u32,
}

/// Tells when routes should be looked at again.
#[derive(Debug)]
pub struct RouteNews(AsyncFd<OwnedFd>);

impl RouteNews {
    pub(super) fn open() -> std::io::Result<Self> {
        mending::listen(LINKS | ADDRESSES | ROUTES).map(Self)
    }

    /// Returns when links, addresses or routes of the machine have changed.
    pub async fn changed(&self) -> std::io::Result<()> {
        let mut buffer = vec![0_u8; flows::LARGEST];
        loop {
            let heard = self.0.async_io(tokio::io::Interest::READABLE, |socket| {
                Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?)
            });
            let length = match heard.await {
                Ok(length) => length,
                // More was said than there was room for.
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut said = flows::messages(buffer.get(..length).unwrap_or_default());
            if said.any(|(kind, said)| matters(kind, said)) {
                return Ok(());
            }
        }
    }
}

/// Tells whether routes may depend on what a message tells. Pods' own links come and go without that.
fn matters(kind: u16, said: &[u8]) -> bool {
    if LINK.contains(&kind) {
        return !mending::name(said).is_some_and(|name| names::is_host_link(&name));
    }
    ADDRESS.contains(&kind) || ROUTE.contains(&kind)
}

impl Inner {
    /// Names of what leads to other nodes.
    pub(super) fn mark(&self) -> Mark {
        let owner = self.owner();
        Mark {
            tunnel: names::tunnel(&self.config.bridge),
            metric: names::metric(&owner),
            owner,
        }
    }

    /// Ranges that pods reach under their own address.
    pub(super) fn near(&self) -> Vec<Cidr> {
        let routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        self.config.direct.iter().chain(routed.iter()).copied().collect()
    }

    /// Takes over which ranges are routed; whether it is news.
    pub(super) fn note_routed(&self, ranges: &[Cidr]) -> bool {
        let mut routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        let other = *routed != ranges;
        *routed = ranges.to_vec();
        other
    }

    /// Leads to the pods of other nodes. Answers which nodes' pods are not reached, and why not.
    pub(super) fn route(&self, nodes: &Nodes) -> Result<BTreeMap<String, String>, Error> {
        let (Some(mode), Some(ranges)) = (self.config.routes, self.records().ranges()) else {
            return Ok(BTreeMap::new());
        };
        let (bridge, mark) = (&self.config.bridge, self.mark());
        let own = Peer {
            ranges: ranges
                .iter()
                .filter_map(|range| Range::new(range.address, range.prefix))
                .collect(),
            ..nodes.own.clone()
        };
        kernel::with(|kernel| {
            let asked = node_routes::asked(&own, &nodes.peers);
            let ways = kernel.ways(&asked, [bridge, &mark.tunnel])?;
            let wanted = node_routes::plan(&own, &nodes.peers, &ways, mode);
            let near = wanted.routes.keys().map(|range| Cidr {
                address: range.address,
                prefix: range.length,
            });
            // No connection is masqueraded that finds its route.
            if self.note_routed(&near.collect::<Vec<_>>()) {
                masquerade::replace(bridge, ranges, &self.near())?;
            }
            let led = kernel.lead(&mark, nodes.id, &wanted);
            let mtu = kernel.mtu(ranges, &mark, wanted.mtu)?;
            let other = kernel.set_mtu(bridge, mtu)?;
            if other {
                // Those that were made ahead go by the earlier one.
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
