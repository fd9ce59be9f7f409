//! nftables by raw netlink: transactions of tables, sets, chains, rules and elements, and
//! notifications of changes by other programs.

pub(crate) mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod socket;

pub use socket::Watch;

use message::Family;

use crate::bridge::kernel::settings;

/// Address families.
pub(crate) fn families() -> impl Iterator<Item = Family> {
    let v6 = settings::has_ipv6().then_some(Family::V6);
    std::iter::once(Family::V4).chain(v6)
}
