//! Pod CIDRs of a node: one, or one of each family.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Cidr;

/// One CIDR, or one of each family: `10.244.0.0/24`, `10.244.0.0/24,fd00:10:244::/64`. The first
/// one's family is that of `status.podIP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ranges {
    first: Cidr,
    second: Option<Cidr>,
}

/// The text is not a valid list of pod CIDRs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a range such as 10.244.0.0/24 or fd00:10:244::/64 nor, with a comma, one of each family")]
pub struct ParseRangesError(String);

impl Ranges {
    /// The CIDRs, that of `status.podIP` first.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> + use<> {
        std::iter::once(self.first).chain(self.second)
    }

    /// CIDR of a family.
    pub fn of_family(&self, v6: bool) -> Option<Cidr> {
        self.iter().find(|range| range.is_ipv6() == v6)
    }

    /// Number of addresses of each range, without the last one, which is the IPv4 broadcast
    /// address.
    pub(crate) fn size(&self) -> u128 {
        let bits = self.iter().map(Cidr::host_bits).min().unwrap_or_default();
        // Capped at 2^64.
        (1_u128 << bits.min(64)) - 1
    }
}

impl From<Cidr> for Ranges {
    fn from(first: Cidr) -> Self {
        Self { first, second: None }
    }
}

impl FromStr for Ranges {
    type Err = ParseRangesError;

    fn from_str(text: &str) -> Result<Self, ParseRangesError> {
        let wrong = || ParseRangesError(text.to_owned());
        let parse = |part: &str| part.trim().parse::<Cidr>().map_err(|_invalid| wrong());
        let Some((first, second)) = text.split_once(',') else {
            return Ok(parse(text)?.into());
        };
        let (first, second) = (parse(first)?, parse(second)?);
        if first.is_ipv6() == second.is_ipv6() {
            return Err(wrong());
        }
        Ok(Self {
            first,
            second: Some(second),
        })
    }
}

impl TryFrom<String> for Ranges {
    type Error = ParseRangesError;

    fn try_from(text: String) -> Result<Self, ParseRangesError> {
        text.parse()
    }
}

impl From<Ranges> for String {
    fn from(ranges: Ranges) -> Self {
        ranges.to_string()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.first)?;
        self.second.map_or(Ok(()), |second| write!(formatter, ",{second}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn a_node_has_a_range_of_a_family_once() {
        for (text, size) in [
            ("10.9.0.0/24", 255),
            ("fd00::/64", u128::from(u64::MAX)),
            ("10.9.0.0/24,fd00::/64", 255),
            ("fd00::/126,10.9.0.0/24", 3),
        ] {
            let ranges: Ranges = text.parse().unwrap();
            assert_eq!((ranges.to_string().as_str(), ranges.size()), (text, size));
            assert_eq!(ranges.iter().next(), ranges.of_family(text.starts_with("fd")));
            let kept = serde_json::to_string(&ranges).unwrap();
            assert_eq!(serde_json::from_str::<Ranges>(&kept).unwrap(), ranges);
        }
        for text in [
            "",
            ",",
            "10.9.0.0/24,",
            "10.9.0.0/24,10.8.0.0/24",
            "fd00::/64,fd01::/64",
            "10.9.0.0/24,fd00::/64,fd01::/64",
        ] {
            let error = text.parse::<Ranges>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is neither a range")), "{error}");
        }
    }
}
