//! Allocation of pod CIDRs to nodes.

use api::cidr::Cidr;
use clap::Args;
use controllers::PodRange;

/// Options about the pods' addresses.
#[derive(Debug, Clone, Args)]
pub struct PodRanges {
    /// Range of pods' addresses, or with a comma one of each family; each node gets a part of it
    #[arg(
        long,
        default_value = "10.244.0.0/16",
        env = "SKIFF_CLUSTER_CIDR",
        value_delimiter = ',',
        value_parser = range
    )]
    cluster_cidr: Vec<Cidr>,
    /// Length of the prefix of a node's part of an IPv4 range
    #[arg(long, default_value_t = 24)]
    node_cidr_mask_size_ipv4: u8,
    /// Length of the prefix of a node's part of an IPv6 range
    #[arg(long, default_value_t = 64)]
    node_cidr_mask_size_ipv6: u8,
}

/// The ranges cannot be those of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPodRanges {
    /// More than one of a family.
    #[error("--cluster-cidr takes one range, or one of each family")]
    Families,
    /// A node's part cannot be that large or small.
    #[error("a node's part of {range} cannot have a prefix of {node_prefix} bits: at least {}, at most {}", range.prefix, longest(range))]
    Part {
        /// The cluster's range.
        range: Cidr,
        /// Requested prefix length.
        node_prefix: u8,
    },
}

impl PodRanges {
    /// Cluster ranges, with the size of each node's part.
    pub fn each(&self) -> Result<Vec<PodRange>, InvalidPodRanges> {
        let families = self.cluster_cidr.iter().map(|range| range.is_ipv6());
        if !matches!(
            families.collect::<Vec<_>>().as_slice(),
            [_] | [true, false] | [false, true]
        ) {
            return Err(InvalidPodRanges::Families);
        }
        let part = |range: &Cidr| {
            let node_prefix = if range.is_ipv6() {
                self.node_cidr_mask_size_ipv6
            } else {
                self.node_cidr_mask_size_ipv4
            };
            if !(range.prefix..=longest(range)).contains(&node_prefix) {
                return Err(InvalidPodRanges::Part {
                    range: *range,
                    node_prefix,
                });
            }
            Ok(PodRange {
                range: *range,
                node_prefix,
            })
        };
        self.cluster_cidr.iter().map(part).collect()
    }
}

/// The text is no range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a range such as 10.244.0.0/16 or fd00:10:244::/48")]
struct InvalidRange;

/// Number of bits in the longest prefix of a part: 65,536 parts, and at least two pods in each.
fn longest(range: &Cidr) -> u8 {
    let width = if range.is_ipv6() { 126 } else { 30 };
    range.prefix.saturating_add(16).min(width)
}

fn range(text: &str) -> Result<Cidr, InvalidRange> {
    let range = text.trim().parse().ok();
    range.filter(|range: &Cidr| range.host_bits() >= 2).ok_or(InvalidRange)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::PodRanges;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        ranges: PodRanges,
    }

    fn check(words: &str) -> String {
        let words = std::iter::once("program").chain(words.split_whitespace());
        let arguments = match Arguments::try_parse_from(words) {
            Ok(arguments) => arguments,
            Err(error) => return error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        match arguments.ranges.each() {
            Ok(each) => {
                let each = each.iter();
                let shown = each.map(|range| format!("{} by {}", range.range, range.node_prefix));
                shown.collect::<Vec<_>>().join(", ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn ranges_are_read_as_kubernetes_reads_them() {
        let both = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56";
        for (words, expected) in [
            ("", "10.244.0.0/16 by 24"),
            (both, "10.244.0.0/16 by 24, fd00:10:244::/56 by 64"),
            (
                "--cluster-cidr=fd00::/48,10.0.0.0/8",
                "fd00::/48 by 64, 10.0.0.0/8 by 24",
            ),
            (
                "--cluster-cidr=fd00::/48 --node-cidr-mask-size-ipv6=60",
                "fd00::/48 by 60",
            ),
            (
                "--cluster-cidr=10.0.0.0/26 --node-cidr-mask-size-ipv4=28",
                "10.0.0.0/26 by 28",
            ),
            (
                "--cluster-cidr=10.0.0.0/26",
                "a node's part of 10.0.0.0/26 cannot have a prefix of 24 bits: at least 26, at most 30",
            ),
            (
                "--cluster-cidr=fd00::/32",
                "a node's part of fd00::/32 cannot have a prefix of 64 bits: at least 32, at most 48",
            ),
            (
                "--cluster-cidr=10.0.0.0/16,10.1.0.0/16",
                "--cluster-cidr takes one range, or one of each family",
            ),
            (
                "--cluster-cidr=10.0.0.0/31",
                "error: invalid value '10.0.0.0/31' for '--cluster-cidr <CLUSTER_CIDR>': expected a range such as 10.244.0.0/16 or \
                 fd00:10:244::/48",
            ),
        ] {
            assert_eq!(check(words), expected, "{words}");
        }
    }
}
