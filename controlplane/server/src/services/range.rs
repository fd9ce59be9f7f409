//! Ranges of addresses for Services: the server's own, and those of `ServiceCIDR` objects.

use std::net::Ipv4Addr;
use std::str::FromStr;

use api::find;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use store::Store;

use super::address_key;
use crate::storage;

/// A range of IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    address: Ipv4Addr,
    length: u8,
}

impl Range {
    pub(crate) fn new((address, length): (Ipv4Addr, u8)) -> Self {
        Self { address, length }
    }

    /// How many addresses there are, network and broadcast included.
    fn size(self) -> u32 {
        1_u32
            .checked_shl(32_u32.saturating_sub(u32::from(self.length)))
            .unwrap_or(u32::MAX)
    }

    /// The address at an offset.
    pub(crate) fn at(self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits().saturating_add(offset))
    }

    /// Whether an address can be handed out: in the range, and neither the network nor the broadcast.
    pub(crate) fn has(self, address: Ipv4Addr) -> bool {
        let offset = address.to_bits().checked_sub(self.address.to_bits());
        offset.is_some_and(|offset| offset > 0 && offset < self.size() - 1)
    }
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, length) = text.split_once('/').ok_or(())?;
        let (Ok(address), Ok(length)) = (address.parse(), length.parse()) else {
            return Err(());
        };
        if (8..=30).contains(&length) {
            Ok(Self { address, length })
        } else {
            Err(())
        }
    }
}

/// The ranges from which addresses are handed out, the server's own first: those of which an object says so that is ready
/// and is not being deleted. The server's own needs none.
pub(crate) fn ranges(store: &Store, own: Range) -> Vec<Range> {
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
    let mut all = Vec::new();
    if told.iter().all(|(range, _)| *range != own) {
        all.push(own);
    }
    let of_own = told.iter().filter(|(range, gives)| *gives && *range == own).take(1);
    let others = told.iter().filter(|(range, gives)| *gives && *range != own);
    all.extend(of_own.chain(others).map(|(range, _)| *range));
    all
}

/// Whether a range says of itself that it is; one that says nothing is.
fn is_ready(range: &ServiceCIDR) -> bool {
    let conditions = range.status.iter().filter_map(|status| status.conditions.as_ref());
    let mut own = conditions.flatten().filter(|condition| condition.type_ == "Ready");
    own.next().is_none_or(|condition| condition.status == "True")
}

/// An address that nobody holds. The first ones of a range, which people like to choose themselves, come last; the very
/// first is the API server's.
pub(crate) fn pick(store: &Store, ranges: &[Range]) -> Option<Ipv4Addr> {
    let free = |address: &Ipv4Addr| address_key(*address).is_some_and(|key| store.get(&key).is_none());
    ranges.iter().find_map(|range| {
        let last = range.size() - 2;
        let chosen = (range.size() / 16).clamp(16, 256).min(range.size() / 2);
        let count = last - chosen + 1;
        let start = rand::random::<u32>() % count;
        let drawn = (0..count).map(|step| chosen + (start + step) % count);
        drawn.chain(2..chosen).map(|offset| range.at(offset)).find(free)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_nobodys() {
        let range: Range = "10.96.0.0/28".parse().unwrap();
        let has: Vec<u32> = (0..17).filter(|offset| range.has(range.at(*offset))).collect();
        assert_eq!(has, (1..15).collect::<Vec<_>>());
        assert!(!range.has(Ipv4Addr::new(10, 95, 255, 255)));
    }

    #[test]
    fn a_small_range_is_handed_out_to_its_end() {
        let store = Store::in_memory(store::Options::default());
        let range: Range = "10.96.0.0/30".parse().unwrap();
        assert_eq!(pick(&store, &[range]), Some(Ipv4Addr::new(10, 96, 0, 2)));
    }
}
