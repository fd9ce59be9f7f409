//! Anti-spoofing: each pod may send from its own addresses only, even with `CAP_NET_ADMIN` in its
//! network namespace.
//!
//! A table of the bridge family filters what the ports send before any host learns from it:
//! hardware addresses, ARP senders, source addresses of both families, targets of neighbor
//! advertisements; router advertisements are dropped. Packets between pods' link-local addresses
//! are dropped, too, since network policies do not cover them. The chains are created by nft, the
//! elements of each port by netlink, before the port exists.

use std::sync::atomic::Ordering;

use super::masquerade;
use crate::bridge::{Inner, chain, kernel};
use crate::nft::message::{Batch, Family, Item, Kind, Lists, octets};
use crate::nft::socket::Socket;
use crate::{Attachment, Error, nft};

/// Length of an interface's name in a key.
const NAME: usize = 16;

/// Name of the table.
fn table(bridge: &str) -> String {
    format!("{}_guard", nft::table(bridge))
}

/// Creates the table, or empties the existing one.
fn script(bridge: &str) -> String {
    let table = table(bridge);
    format!(
        "add table bridge {table}
         delete table bridge {table}
         table bridge {table} {{
             set ports {{ type ifname; }}
             set hardware {{ type ifname . ether_addr; }}
             set own4 {{ type ifname . ipv4_addr; }}
             set own6 {{ type ifname . ipv6_addr; }}
             set targets {{ typeof iifname . @th,64,128; }}
             chain sent {{
                 type filter hook prerouting priority -300; policy accept;
                 iifname @ports goto check
             }}
             chain check {{
                 iifname . ether saddr != @hardware drop
                 ether type ip iifname . ip saddr @own4 accept
                 ether type arp iifname . arp saddr ip @own4 accept
                 ether type arp arp saddr ip 0.0.0.0 accept
                 ether type ip6 goto check6
                 drop
             }}
             chain check6 {{
                 icmpv6 type {{ nd-router-advert, nd-redirect }} drop
                 icmpv6 type nd-neighbor-advert iifname . @th,64,128 != @targets drop
                 iifname . ip6 saddr @own6 accept
                 ip6 saddr :: meta l4proto icmpv6 accept
                 drop
             }}
             chain passed {{
                 type filter hook forward priority -300; policy accept;
                 iifname != @ports accept
                 ip6 saddr fe80::/10 goto near
                 ip6 daddr fe80::/10 goto near
             }}
             chain near {{
                 icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
                 icmpv6 type {{ mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report }} accept
                 drop
             }}
         }}\n"
    )
}

/// Removes the table. Succeeds if there is none.
pub(in crate::bridge) fn remove(bridge: &str) -> Result<(), Error> {
    let table = table(bridge);
    masquerade::nft(&format!("add table bridge {table}\ndelete table bridge {table}\n"))
}

/// Set elements of a port.
fn elements(link: &str, attachment: &Attachment) -> Vec<(&'static str, Item)> {
    let mut name = link.as_bytes().to_vec();
    name.resize(NAME, 0);
    let keyed = |rest: &[u8]| Item::new([name.as_slice(), rest].concat());
    let hardware = kernel::hardware(attachment).unwrap_or_default();
    let mut padded = hardware.clone();
    padded.resize(hardware.len().next_multiple_of(4), 0);
    let mut all = vec![("ports", keyed(&[])), ("hardware", keyed(&padded))];
    let mut six = kernel::link_local(attachment, &hardware);
    for held in &attachment.addresses {
        if held.is_ipv6() {
            six.push(held.address);
        } else {
            all.push(("own4", keyed(&octets(held.address))));
        }
    }
    for address in six {
        all.push(("own6", keyed(&octets(address))));
        all.push(("targets", keyed(&octets(address))));
    }
    all
}

impl Inner {
    /// Allows exactly these ports to send. Without nftables' bridge family in the kernel, it only
    /// logs a warning.
    pub(in crate::bridge) fn guard(&self) {
        if !self.config.guarded {
            return;
        }
        let made = masquerade::nft(&script(&self.config.bridge))
            .and_then(|()| self.change_guard(Kind::NewElement, &self.held()));
        if let Err(error) = &made {
            tracing::warn!(
                error = chain(error),
                "pods may send from addresses that are not their own"
            );
        }
        self.is_guarded.store(made.is_ok(), Ordering::Relaxed);
    }

    /// Creates the table again if it is missing in the output of `nft list chains`: another program
    /// has removed it.
    pub(in crate::bridge) fn keep_guard(&self, listed: &str) {
        let own = format!("table bridge {} {{", table(&self.config.bridge));
        if self.is_guarded() && !listed.lines().any(|line| line == own) {
            tracing::warn!("somebody else removed the table of pods' addresses; it is made again");
            self.guard();
        }
    }

    fn is_guarded(&self) -> bool {
        self.is_guarded.load(Ordering::Relaxed)
    }

    /// Host ends of all veth pairs, including those of free slots.
    pub(in crate::bridge) fn held(&self) -> Vec<(String, Attachment)> {
        let records = self.records();
        let made_ahead = records.slots.links(&self.config.state_dir);
        records.links().into_iter().chain(made_ahead).collect()
    }

    /// Allows a port to send, before it exists.
    pub(in crate::bridge) fn admit(&self, link: &str, attachment: &Attachment) -> Result<(), Error> {
        if !self.is_guarded() {
            return Ok(());
        }
        let own = [(link.to_owned(), attachment.clone())];
        self.change_guard(Kind::NewElement, &own).or_else(|_removed| {
            self.guard();
            self.change_guard(Kind::NewElement, &own)
        })
    }

    /// Removes the elements and the neighbor entries of a deleted port.
    pub(in crate::bridge) fn dismiss(&self, link: &str, attachment: &Attachment) {
        let own = [(link.to_owned(), attachment.clone())];
        let neighbors = kernel::with(|kernel| kernel.remove_neighbors(&self.config.bridge, attachment));
        let elements = if self.is_guarded() {
            self.change_guard(Kind::DeleteElement, &own)
        } else {
            Ok(())
        };
        for error in [neighbors, elements].into_iter().filter_map(Result::err) {
            // They are removed at the next start.
            tracing::debug!(link, error = chain(&error), "a port's addresses are still known");
        }
    }

    fn change_guard(&self, kind: Kind, ports: &[(String, Attachment)]) -> Result<(), Error> {
        if ports.is_empty() {
            return Ok(());
        }
        let table = table(&self.config.bridge);
        let (mut batch, mut lists) = (Batch::new(), Lists::new(kind, &table));
        for (link, attachment) in ports {
            for (set, item) in elements(link, attachment) {
                lists.push(&mut batch, (Family::Bridge, set), &item);
            }
        }
        lists.close(&mut batch);
        let done = Socket::open().and_then(|socket| socket.commit(batch));
        done.map_err(|errno| Error::Kernel {
            doing: "change the table of pods' addresses",
            cause: errno.to_string(),
        })
    }
}
