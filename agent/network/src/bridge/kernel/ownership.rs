//! Ownership of interfaces: those of this network, and those of others.

use std::collections::BTreeSet;
use std::path::Path;

use futures::TryStreamExt as _;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};

use super::super::{finish, names, note};
use super::{Kernel, Socket, accept, is_index_of, last_resort, refused, routes};
use crate::{Cidr, Error, Ranges};

impl Kernel {
    /// Refuses a bridge of another network, and ranges with an address that another interface has.
    /// `known` is true if the records mention a range: a bridge without a mark is then from an
    /// attempt that crashed, or from a version without marks.
    pub(in super::super) fn refuse_others(
        &self,
        bridge: &str,
        owner: &str,
        known: bool,
        ranges: Ranges,
    ) -> Result<(), Error> {
        self.runtime.block_on(async {
            if let Some(link) = self.host.link(bridge).await? {
                refuse_owner(&link, bridge, owner, known)?;
            }
            let mut all = self.host.handle.address().get().execute();
            let failed = |error| refused("list addresses", &error);
            while let Some(held) = all.try_next().await.map_err(failed)? {
                let Some(range) = ranges.iter().find(|range| is_in(&held, *range)) else {
                    continue;
                };
                let interface = self.host.name(held.header.index).await?;
                if interface != bridge && interface != names::tunnel(bridge) {
                    return Err(Error::RangeTaken { range, interface });
                }
            }
            Ok(())
        })
    }

    /// Deletes an interface and its peer. Succeeds if there is none. An interface on another bridge
    /// is not deleted.
    pub(in super::super) fn remove_link(&self, bridge: &str, name: &str) -> Result<(), Error> {
        self.runtime.block_on(async {
            let Some(link) = self.host.link(name).await? else {
                return Ok(());
            };
            if routes::controller(&link).is_some_and(|other| !is_index_of(other, bridge)) {
                tracing::warn!(link = name, bridge, "a link is left alone: it hangs on another bridge");
                return Ok(());
            }
            self.host.remove(link.header.index).await
        })
    }

    /// Names of the bridge's ports; empty if there is no bridge.
    pub(in super::super) fn ports(&self, bridge: &str) -> Result<Option<BTreeSet<String>>, Error> {
        let Ok(index) = if_nametoindex(bridge) else {
            return Ok(None);
        };
        let ports = self.runtime.block_on(self.host.ports(index))?;
        Ok(Some(ports.into_iter().map(|(name, _)| name).collect()))
    }

    /// Deletes the bridge, its remaining ports, and the blackhole routes.
    pub(in super::super) fn dismantle(&self, bridge: &str, owner: &str, ranges: Option<Ranges>) -> Result<(), Error> {
        self.runtime.block_on(async {
            let mut failures = Vec::new();
            if let Some(link) = self.host.link(bridge).await? {
                refuse_owner(&link, bridge, owner, ranges.is_some())?;
                for (name, index) in self.host.ports(link.header.index).await? {
                    if names::is_host_link(&name) {
                        note(&mut failures, self.host.remove(index).await);
                    }
                }
                note(&mut failures, self.host.remove(link.header.index).await);
            }
            for range in ranges.iter().flat_map(Ranges::iter) {
                let gone = self.host.handle.route().del(last_resort(range)).execute().await;
                note(&mut failures, accept(gone, Errno::ESRCH, "delete the blackhole route"));
            }
            finish(failures)
        })
    }
}

impl Socket {
    /// Names and indexes of a bridge's ports.
    async fn ports(&self, bridge: u32) -> Result<Vec<(String, u32)>, Error> {
        let mut links = self.handle.link().get().execute();
        let mut ports = Vec::new();
        let failed = |error| refused("list interfaces", &error);
        while let Some(link) = links.try_next().await.map_err(failed)? {
            if routes::controller(&link) == Some(bridge) {
                ports.extend(name(&link).map(|name| (name.to_owned(), link.header.index)));
            }
        }
        Ok(ports)
    }

    async fn name(&self, index: u32) -> Result<String, Error> {
        let found = self.handle.link().get().match_index(index).execute().try_next().await;
        let link = found.map_err(|error| refused("look up an interface", &error))?;
        let named = link.as_ref().and_then(name).map(str::to_owned);
        Ok(named.unwrap_or_else(|| format!("interface {index}")))
    }
}

fn is_in(held: &AddressMessage, range: Cidr) -> bool {
    held.attributes.iter().any(|attribute| {
        matches!(attribute, AddressAttribute::Address(address) | AddressAttribute::Local(address)
            if range.contains(*address))
    })
}

pub(super) fn refuse_owner(link: &LinkMessage, bridge: &str, owner: &str, known: bool) -> Result<(), Error> {
    let mark = link.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::IfAlias(mark) = attribute {
            Some(mark.as_str())
        } else {
            None
        }
    });
    // The owner's state folder was deleted without removing the bridge.
    let abandoned = |mark: &str| Path::new(mark).is_absolute() && !Path::new(mark).exists();
    if mark.map_or(known, |mark| mark == owner || abandoned(mark)) {
        return Ok(());
    }
    Err(Error::BridgeTaken {
        bridge: bridge.to_owned(),
        owner: mark.unwrap_or("something else than Skiff").to_owned(),
    })
}

pub(super) fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::IfName(name) = attribute {
            Some(name.as_str())
        } else {
            None
        }
    })
}
