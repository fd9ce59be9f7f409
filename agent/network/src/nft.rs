//! nftables by raw netlink: transactions of tables, sets, chains, rules and elements, and
//! notifications of changes by other programs.

pub(crate) mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod socket;

pub use socket::Watch;

use nix::errno::Errno;

use crate::bridge::kernel::settings;
use message::{Attributes, Batch, Family, Kind};
use socket::Socket;

/// Address families.
pub(crate) fn families() -> impl Iterator<Item = Family> {
    let v6 = settings::has_ipv6().then_some(Family::V6);
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
