//! Parser of names within the cluster's domain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Part;

/// Object that a name within the cluster's domain stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// The domain itself, `svc.DOMAIN` or `pod.DOMAIN`.
    Apex,
    /// `dns-version.DOMAIN`.
    Version,
    /// `NAMESPACE.svc.DOMAIN` or `NAMESPACE.pod.DOMAIN`.
    Namespace(&'a str),
    /// `SERVICE.NAMESPACE.svc.DOMAIN` and names below it.
    Service {
        namespace: &'a str,
        service: &'a str,
        part: Part<'a>,
    },
    /// `10-244-0-5.NAMESPACE.pod.DOMAIN`: an address of any pod, whether it exists or not.
    Pod(IpAddr),
    /// No such name.
    Unknown,
}

/// Parses a name; `None` if it is not in the domain.
pub(super) fn parse<'a>(name: &'a str, domain: &str) -> Option<Place<'a>> {
    let inside = match name.strip_suffix(domain)? {
        "" => return Some(Place::Apex),
        inside => inside.strip_suffix('.')?,
    };
    let mut labels = inside.rsplit('.');
    let root = labels.next()?;
    let (first, second, third, fourth, further) = (
        labels.next(),
        labels.next(),
        labels.next(),
        labels.next(),
        labels.next(),
    );
    Some(match (root, first, second) {
        ("dns-version", None, _) => Place::Version,
        ("svc" | "pod", None, _) => Place::Apex,
        ("svc" | "pod", Some(namespace), None) => Place::Namespace(namespace),
        ("pod", Some(_), Some(address)) if third.is_none() => dashed(address).map_or(Place::Unknown, Place::Pod),
        ("svc", Some(namespace), Some(service)) if further.is_none() => {
            part(third, fourth).map_or(Place::Unknown, |part| Place::Service {
                namespace,
                service,
                part,
            })
        }
        _ => Place::Unknown,
    })
}

fn part<'a>(third: Option<&'a str>, fourth: Option<&'a str>) -> Option<Part<'a>> {
    Some(match (third, fourth) {
        (None, _) => Part::Whole,
        (Some(third), None) => third.strip_prefix('_').map_or(Part::Endpoint(third), Part::Protocol),
        (Some(third), Some(fourth)) => Part::Port {
            name: fourth.strip_prefix('_')?,
            protocol: third.strip_prefix('_')?,
        },
    })
}

/// Parses an address with dashes in place of dots or colons.
fn dashed(label: &str) -> Option<IpAddr> {
    let four = label.replace('-', ".").parse::<Ipv4Addr>();
    four.map(IpAddr::V4)
        .or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6))
        .ok()
}

/// A name for reverse lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reverse {
    /// The name of a complete address.
    Address(IpAddr),
    /// A name above those of addresses, or an invalid one.
    Part,
}

/// Parses a name below `in-addr.arpa` or `ip6.arpa`.
pub fn reverse(name: &str) -> Option<Reverse> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let mut parts: Vec<&str> = labels.split('.').collect();
        parts.reverse();
        let address = parts.join(".").parse::<Ipv4Addr>();
        return Some(address.map_or(Reverse::Part, |address| Reverse::Address(address.into())));
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let digits: Vec<&str> = labels.split('.').collect();
    if digits.len() != 32 || digits.iter().any(|digit| digit.len() != 1) {
        return Some(Reverse::Part);
    }
    let text: String = digits.into_iter().rev().collect();
    let address = u128::from_str_radix(&text, 16);
    Some(address.map_or(Reverse::Part, |bits| Reverse::Address(Ipv6Addr::from(bits).into())))
}
