//! CIDRs of both address families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// CIDR, or an address with its prefix: `10.244.0.0/24`, `10.244.0.7/24`, `fd00:10:244::7/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    /// The address as written.
    pub address: IpAddr,
    /// Length of the prefix, at most 32 or 128.
    pub prefix: u8,
}

/// The text is not a valid CIDR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range such as 10.244.0.0/24 or fd00:10:244::/64")]
pub struct ParseCidrError(String);

/// Converts an address to a number.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Converts a number to an address; bits beyond the family's width are dropped.
pub fn of_bits(v6: bool, bits: u128) -> IpAddr {
    let [.., a, b, c, d] = bits.to_be_bytes();
    if v6 {
        Ipv6Addr::from_bits(bits).into()
    } else {
        Ipv4Addr::new(a, b, c, d).into()
    }
}

impl Cidr {
    /// Returns `None` if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let whole = Self::whole(address);
        (prefix <= whole.prefix).then_some(Self { prefix, ..whole })
    }

    /// The range of one address.
    pub const fn whole(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }

    /// An address of this range's family, with its prefix.
    const fn with(self, address: IpAddr) -> Self {
        Self {
            address,
            prefix: self.prefix,
        }
    }

    /// Number of host bits.
    pub const fn host_bits(self) -> u8 {
        Self::whole(self.address).prefix.saturating_sub(self.prefix)
    }

    /// Host mask.
    fn host_mask(self) -> u128 {
        1_u128
            .checked_shl(self.host_bits().into())
            .map_or(u128::MAX, |count| count - 1)
    }

    /// True for an IPv6 range.
    pub const fn is_ipv6(self) -> bool {
        self.address.is_ipv6()
    }

    /// The range itself, with host bits cleared.
    #[must_use]
    pub fn network_range(self) -> Self {
        self.with(self.network())
    }

    /// First address: the network address.
    pub fn network(self) -> IpAddr {
        of_bits(self.is_ipv6(), bits(self.address) & !self.host_mask())
    }

    /// Last address of the range.
    pub fn last(self) -> IpAddr {
        of_bits(self.is_ipv6(), bits(self.address) | self.host_mask())
    }

    /// First and last address.
    pub fn ends(self) -> (IpAddr, IpAddr) {
        (self.network(), self.last())
    }

    /// Gateway of a pod CIDR: its first host address.
    pub fn gateway(self) -> IpAddr {
        self.at(1).address
    }

    /// Address of the range with this index, counted from 0, with its prefix.
    #[must_use]
    pub fn at(self, offset: u128) -> Self {
        let first = bits(self.network());
        self.with(of_bits(self.is_ipv6(), first | (offset & self.host_mask())))
    }

    /// Index of this address within its range, counted from 0.
    pub fn offset(self) -> u128 {
        bits(self.address) & self.host_mask()
    }

    /// True if the range contains the address.
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && self.with(address).network() == self.network()
    }

    /// True if the range contains all of another.
    pub fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, ParseCidrError> {
        let parsed = text
            .split_once('/')
            .and_then(|(address, prefix)| Self::new(address.parse().ok()?, prefix.parse().ok()?));
        parsed.ok_or_else(|| ParseCidrError(text.to_owned()))
    }
}

impl TryFrom<String> for Cidr {
    type Error = ParseCidrError;

    fn try_from(text: String) -> Result<Self, ParseCidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::Cidr;

    #[test]
    fn ranges_are_parsed_and_refused() {
        let range: Cidr = "10.244.3.7/24".parse().unwrap();
        assert_eq!(range.network().to_string(), "10.244.3.0");
        assert_eq!(range.gateway().to_string(), "10.244.3.1");
        assert_eq!(range.last().to_string(), "10.244.3.255");
        assert_eq!(
            (range.offset(), range.at(9).to_string()),
            (7, "10.244.3.9/24".to_owned())
        );
        assert!(range.contains("10.244.3.200".parse().unwrap()));
        for other in ["10.244.4.1", "::10.244.3.200", "::ffff:10.244.3.200"] {
            assert!(!range.contains(other.parse().unwrap()), "{other}");
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "fd00::",
            "10.0.0.0/-1",
            "fd00::%1/64",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_of_version_6_are_as_those_of_version_4() {
        let range: Cidr = "fd00:10:244::7/64".parse().unwrap();
        assert_eq!(range.network_range().to_string(), "fd00:10:244::/64");
        assert_eq!(range.gateway().to_string(), "fd00:10:244::1");
        assert_eq!(range.last().to_string(), "fd00:10:244:0:ffff:ffff:ffff:ffff");
        assert_eq!(
            (range.offset(), range.at(258).to_string()),
            (7, "fd00:10:244::102/64".to_owned())
        );
        assert!(range.contains("fd00:10:244:0:1::".parse().unwrap()));
        assert!(!range.contains("fd00:10:244:1::".parse().unwrap()));
        let all: Cidr = "::/0".parse().unwrap();
        assert_eq!(all.last().to_string(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert!(all.contains("ffff::1".parse().unwrap()) && !all.contains("1.2.3.4".parse().unwrap()));
        let one: Cidr = "1.2.3.4/32".parse().unwrap();
        assert_eq!((one.network(), one.last()), (one.address, one.address));
    }
}
