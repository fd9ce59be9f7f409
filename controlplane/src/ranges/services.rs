//! The addresses that Services get.

use std::net::IpAddr;
use std::str::FromStr;

use api::cidr::Cidr;

/// A range, or one of each family, as `10.96.0.0/12,fd00:10:96::/112`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRanges(Vec<Cidr>);

/// The text names no such ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a range such as 10.96.0.0/12 (8 to 28 bits) or fd00:10:96::/112 (64 to 124 bits), beginning at its first address, \
     or one of each family with a comma between them"
)]
pub struct InvalidServiceRanges;

impl ServiceRanges {
    /// The ranges, that of the usual family first.
    pub fn each(&self) -> &[Cidr] {
        &self.0
    }

    /// First address of each range that can be allocated.
    pub(crate) fn first(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().map(|range| range.at(1).address)
    }

    /// True if the server's own Service has an IPv6 address.
    pub(crate) fn is_v6(&self) -> bool {
        self.0.first().is_some_and(|range| range.is_ipv6())
    }
}

fn range(text: &str) -> Option<Cidr> {
    let range: Cidr = text.trim().parse().ok()?;
    let lengths = if range.is_ipv6() { 64..=124 } else { 8..=28 };
    (lengths.contains(&range.prefix) && range.network_range() == range).then_some(range)
}

impl FromStr for ServiceRanges {
    type Err = InvalidServiceRanges;

    fn from_str(text: &str) -> Result<Self, InvalidServiceRanges> {
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let ranges = ranges.ok_or(InvalidServiceRanges)?;
        match ranges.as_slice() {
            [_] => Ok(Self(ranges)),
            [first, second] if first.is_ipv6() != second.is_ipv6() => Ok(Self(ranges)),
            _ => Err(InvalidServiceRanges),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_different_families() {
        for (text, first) in [
            ("10.96.0.0/12", "10.96.0.1"),
            ("10.96.0.0/12,fd00:10:96::/112", "10.96.0.1"),
            ("fd00:10:96::/112, 10.96.0.0/12", "fd00:10:96::1"),
        ] {
            let ranges: ServiceRanges = text.parse().unwrap();
            assert_eq!(ranges.first().next(), first.parse().ok(), "{text}");
        }
        for text in [
            "",
            "10.96.0.0",
            "10.96.0.1/12",
            "10.96.0.0/33",
            "10.96.0.0/-1",
            "10.0.0.0/4",
            "fd00::/48",
            "fd00::1/64",
            "10.96.0.0/12,10.0.0.0/24",
            "10.96.0.0/12,fd00::/112,fd01::/112",
        ] {
            assert_eq!(text.parse::<ServiceRanges>(), Err(InvalidServiceRanges), "{text}");
        }
    }
}
