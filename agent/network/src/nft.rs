//! nftables by raw netlink: transactions of tables, sets, chains, rules and elements, and
//! notifications of changes by other programs; and [`conntrack`] entries, likewise.

pub(crate) mod conntrack;
pub(crate) mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod socket;

pub use socket::Watch;

use std::path::Path;

use nix::errno::Errno;

use message::{Attributes, Batch, Family, Kind};
use socket::Socket;

/// Name of the table of a bridge.
pub(crate) fn table(bridge: &str) -> String {
    format!("skiff_{}", bridge.replace('_', ".").replace('-', "_"))
}

/// True if the kernel supports IPv6.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6/conf").exists()
}

/// Address families.
pub(crate) fn families() -> impl Iterator<Item = Family> {
    let v6 = has_ipv6().then_some(Family::V6);
    std::iter::once(Family::V4).chain(v6)
}

/// Deletes a table of each family. Succeeds if there are none.
pub(crate) fn remove_tables(table: &str) -> Result<(), Errno> {
    let mut batch = Batch::new();
    for family in families() {
        let named = Attributes::new().text(1, table);
        batch.add(Kind::NewTable, family, &named);
        batch.add(Kind::DeleteTable, family, &named);
    }
    Socket::open()?.commit(batch)
}
