//! Ranges of addresses for Services: the server's own, and those of `ServiceCIDR` objects.

use std::net::IpAddr;
use std::str::FromStr;

use api::cidr::Cidr;
use api::find;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use store::Store;

use super::address_key;
use crate::storage;

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range(Cidr);

impl Range {
    pub(crate) fn new(range: Cidr) -> Self {
        Self(range)
    }

    /// The name of its family.
    pub(crate) fn family(self) -> &'static str {
        if self.0.is_ipv6() { "IPv6" } else { "IPv4" }
    }

    /// Number of addresses.
    fn size(self) -> u128 {
        1_u128.checked_shl(self.0.host_bits().into()).unwrap_or(u128::MAX)
    }

    /// Number of the last address that can be allocated: in IPv4 the one before the broadcast
    /// address.
    fn last(self) -> u128 {
        self.size().saturating_sub(if self.0.is_ipv6() { 1 } else { 2 })
    }

    /// The address at an offset.
    pub(crate) fn at(self, offset: u128) -> IpAddr {
        self.0.at(offset).address
    }

    /// True if an address can be allocated: in the range, and neither the network nor the broadcast
    /// address.
    pub(crate) fn has(self, address: IpAddr) -> bool {
        let own = Cidr { address, ..self.0 };
        self.0.contains(address) && (1..=self.last()).contains(&own.offset())
    }
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let lengths = |range: &Cidr| if range.is_ipv6() { 64..=126 } else { 8..=30 };
        let range = text
            .parse()
            .ok()
            .filter(|range: &Cidr| lengths(range).contains(&range.prefix));
        range.map(Self).ok_or(())
    }
}

/// Ranges from which addresses are allocated, the server's own first: those of `ServiceCIDRs` that
/// are ready and not being deleted. The server's own need no object.
pub(crate) fn ranges(store: &Store, own: &[Range]) -> Vec<Range> {
    let mut told = Vec::new();
    if let Some(row) = find("networking.k8s.io", "v1", "servicecidrs") {
        for entry in store.present(&storage::prefix(row, "")) {
            let Ok(object) = row.decode_stored(&entry.bytes) else {
                continue;
            };
            if let Some(range) = object.as_any().downcast_ref::<ServiceCIDR>() {
                let gives = is_ready(range) && range.metadata.deletion_timestamp.is_none();
                let cidrs = range.spec.iter().filter_map(|spec| spec.cidrs.as_ref()).flatten();
                told.extend(cidrs.filter_map(|cidr| Some((cidr.parse::<Range>().ok()?, gives))));
            }
        }
    }
    let gives = |own: &Range| {
        let mut of_own = told.iter().filter(|(range, _)| range == own).peekable();
        of_own.peek().is_none() || of_own.any(|(_, gives)| *gives)
    };
    let mut all: Vec<Range> = own.iter().copied().filter(gives).collect();
    let others = told.iter().filter(|(range, gives)| *gives && !own.contains(range));
    all.extend(others.map(|(range, _)| *range));
    all
}

/// True if the range is ready; one without a condition is.
fn is_ready(range: &ServiceCIDR) -> bool {
    let conditions = range.status.iter().filter_map(|status| status.conditions.as_ref());
    let mut own = conditions.flatten().filter(|condition| condition.type_ == "Ready");
    own.next().is_none_or(|condition| condition.status == "True")
}

/// Picks a free address. The first ones of a range, which users like to choose themselves, come
/// last; the very first is the API server's.
pub(crate) fn pick(store: &Store, ranges: &[Range]) -> Option<IpAddr> {
    let free = |address: &IpAddr| address_key(*address).is_some_and(|key| store.get(&key).is_none());
    ranges.iter().find_map(|range| {
        let chosen = (range.size() / 16).clamp(16, 256).min(range.size() / 2);
        let count = range.last() - chosen + 1;
        let start = u128::from(rand::random::<u64>()) % count;
        let drawn = (0..count).map(|step| chosen + (start + step) % count);
        drawn.chain(2..chosen).map(|offset| range.at(offset)).find(free)
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_ends_of_a_range_are_nobodys() {
        let range: Range = "10.96.0.0/28".parse().unwrap();
        let has: Vec<u128> = (0..17).filter(|offset| range.has(range.at(*offset))).collect();
        assert_eq!(has, (1..15).collect::<Vec<_>>());
        assert!(!range.has(Ipv4Addr::new(10, 95, 255, 255).into()));
        let range: Range = "fd00::/124".parse().unwrap();
        let has: Vec<u128> = (0..17).filter(|offset| range.has(range.at(*offset))).collect();
        assert_eq!(has, (1..16).collect::<Vec<_>>(), "no broadcast in version 6");
    }

    #[test]
    fn a_small_range_is_handed_out_to_its_end() {
        let store = Store::in_memory(store::Options::default());
        let range: Range = "10.96.0.0/30".parse().unwrap();
        assert_eq!(pick(&store, &[range]), Some(Ipv4Addr::new(10, 96, 0, 2).into()));
    }
}
