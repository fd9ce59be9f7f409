//! IPv4 ranges.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 range or an address within one: `10.244.0.0/24`, `10.244.0.7/24`. IPv6 is not supported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    /// The address as written.
    pub address: Ipv4Addr,
    /// Length of the prefix, 0 to 32.
    pub prefix: u8,
}

/// Text that is no IPv4 range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IPv4 range such as 10.244.0.0/24")]
pub struct ParseCidrError(String);

impl Cidr {
    /// An address of this range, with its prefix.
    #[must_use]
    pub const fn with(self, address: Ipv4Addr) -> Self {
        Self {
            address,
            prefix: self.prefix,
        }
    }

    const fn mask(self) -> u32 {
        if self.prefix == 0 {
            0
        } else {
            u32::MAX << (32 - self.prefix as u32)
        }
    }

    /// The range itself, without the address within.
    #[must_use]
    pub const fn network_range(self) -> Self {
        self.with(self.network())
    }

    /// The first address: the range's name.
    pub const fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.mask())
    }

    /// The last address.
    pub const fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.mask())
    }

    /// The gateway of a pod range: its first host address.
    pub const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network().to_bits().wrapping_add(1))
    }

    /// Whether the address is one of this range.
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.address.to_bits() & self.mask()
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, ParseCidrError> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let prefix: u8 = prefix.parse().ok()?;
            Some(Self {
                address: address.parse().ok()?,
                prefix,
            })
            .filter(|_| prefix <= 32)
        });
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
        assert_eq!(range.broadcast().to_string(), "10.244.3.255");
        assert!(range.contains("10.244.3.200".parse().unwrap()));
        assert!(!range.contains("10.244.4.1".parse().unwrap()));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "fd00::/64", "10.0.0.0/-1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
