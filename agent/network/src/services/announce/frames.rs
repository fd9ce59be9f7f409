//! Ethernet frames of ARP (RFC 826, RFC 5227) and of neighbor discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hardware address.
pub(super) type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Hardware type Ethernet with IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, IPV4[0], IPV4[1], 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: it answers a solicitation, it replaces what is cached.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Option of an advertisement: hardware address of the target, in units of eight octets.
const TARGET_OPTION: [u8; 2] = [2, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Message about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Asks for the hardware address. Without a sender's address, it asks whether the address is
    /// in use.
    Asked {
        address: IpAddr,
        by: Option<IpAddr>,
        mac: Mac,
    },
    /// Its sender claims the address.
    Claimed { address: IpAddr, mac: Mac },
}

fn field<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

/// Parses a frame.
pub(super) fn parse(frame: &[u8]) -> Option<Heard> {
    let sender: Mac = field(frame, 6)?;
    match field(frame, 12)? {
        ARP => arp(frame.get(14..)?),
        IPV6 => neighbor(frame.get(14..)?, sender),
        _ => None,
    }
}

fn arp(packet: &[u8]) -> Option<Heard> {
    if field(packet, 0)? != ARP_HEAD {
        return None;
    }
    let (operation, mac): ([u8; 2], Mac) = (field(packet, 6)?, field(packet, 8)?);
    let (by, address) = (field::<4>(packet, 14)?, field::<4>(packet, 24)?);
    let (by, address) = (Ipv4Addr::from(by), Ipv4Addr::from(address));
    match operation {
        REQUEST if by != address => Some(Heard::Asked {
            address: address.into(),
            by: (!by.is_unspecified()).then_some(by.into()),
            mac,
        }),
        REQUEST | REPLY if !by.is_unspecified() => Some(Heard::Claimed {
            address: by.into(),
            mac,
        }),
        _ => None,
    }
}

fn neighbor(packet: &[u8], mac: Mac) -> Option<Heard> {
    let [next, hops]: [u8; 2] = field(packet, 6)?;
    let [kind, code]: [u8; 2] = field(packet, 40)?;
    // Only messages of this link have passed no router.
    if (next, hops, code) != (ICMPV6, 255, 0) {
        return None;
    }
    let by = Ipv6Addr::from(field::<16>(packet, 8)?);
    let address = IpAddr::V6(field::<16>(packet, 48)?.into());
    match kind {
        SOLICITATION => Some(Heard::Asked {
            address,
            by: (!by.is_unspecified()).then_some(by.into()),
            mac,
        }),
        ADVERTISEMENT => Some(Heard::Claimed { address, mac }),
        _ => None,
    }
}

/// Answer to a question for an address of ours.
pub(super) fn answer(own: Mac, address: IpAddr, by: Option<IpAddr>, mac: Mac) -> Vec<u8> {
    match (address, by) {
        (IpAddr::V4(address), by) => {
            let by = match by {
                Some(IpAddr::V4(by)) => by,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            arp_frame(REPLY, (own, address), (mac, by), mac)
        }
        (IpAddr::V6(address), Some(IpAddr::V6(by))) => advertisement(own, address, (mac, by), SOLICITED | OVERRIDE),
        (IpAddr::V6(address), _) => advertisement(own, address, all_nodes(), OVERRIDE),
    }
}

/// Announcement to the whole link that an address is ours.
pub(super) fn claim(own: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp_frame(REQUEST, (own, address), ([0; 6], address), BROADCAST),
        IpAddr::V6(address) => advertisement(own, address, all_nodes(), OVERRIDE),
    }
}

const fn all_nodes() -> (Mac, Ipv6Addr) {
    ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES)
}

fn arp_frame(operation: [u8; 2], from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr), receiver: Mac) -> Vec<u8> {
    let parts: [&[u8]; 9] = [
        &receiver,
        &from.0,
        &ARP,
        &ARP_HEAD,
        &operation,
        &[from.0.as_slice(), &from.1.octets()].concat(),
        &to.0,
        &to.1.octets(),
        // Up to the shortest Ethernet frame.
        &[0; 18],
    ];
    parts.concat()
}

fn advertisement(own: Mac, address: Ipv6Addr, to: (Mac, Ipv6Addr), flags: u8) -> Vec<u8> {
    let body = |sum: [u8; 2]| {
        let head: &[u8] = &[ADVERTISEMENT, 0];
        let parts: [&[u8]; 6] = [head, &sum, &[flags, 0, 0, 0], &address.octets(), &TARGET_OPTION, &own];
        parts.concat()
    };
    let unsummed = body([0; 2]);
    let length = u16::try_from(unsummed.len()).unwrap_or_default().to_be_bytes();
    let pseudo: [&[u8]; 6] = [
        &address.octets(),
        &to.1.octets(),
        &[0, 0],
        &length,
        &[0, 0, 0, ICMPV6],
        &unsummed,
    ];
    let sum = checksum(&pseudo.concat());
    let parts: [&[u8]; 9] = [
        &to.0,
        &own,
        &IPV6,
        &[0x60, 0, 0, 0],
        &length,
        &[ICMPV6, 255],
        &address.octets(),
        &to.1.octets(),
        &body(sum),
    ];
    parts.concat()
}

/// Checksum of the Internet (RFC 1071).
fn checksum(octets: &[u8]) -> [u8; 2] {
    let words = octets.chunks(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [.., high, low] = (!sum).to_be_bytes();
    [high, low]
}

/// Multicast group in which hosts ask for an address.
pub(super) fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let [low, high] = [u16::from_be_bytes([0xff, a]), u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn answers_and_claims_are_what_other_hosts_read() {
        for (address, by) in [("192.0.2.7", "192.0.2.1"), ("fd00::7", "fe80::1")] {
            let (address, by): (IpAddr, IpAddr) = (address.parse().unwrap(), by.parse().unwrap());
            let claimed = Some(Heard::Claimed { address, mac: OWN });
            for frame in [
                answer(OWN, address, Some(by), OTHER),
                answer(OWN, address, None, OTHER),
                claim(OWN, address),
            ] {
                assert_eq!(parse(&frame), claimed, "{frame:?}");
                for length in 0..frame.len().min(42) {
                    parse(&frame[..length]);
                }
            }
            assert!(answer(OWN, address, Some(by), OTHER).starts_with(&OTHER));
        }
        let group = solicited("fd00::12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
    }

    #[test]
    fn questions_are_read_and_packets_of_other_links_are_not() {
        let (by, address) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 7));
        let asked = |by: Option<IpAddr>, address: IpAddr| {
            Some(Heard::Asked {
                address,
                by,
                mac: OTHER,
            })
        };
        let frame = arp_frame(REQUEST, (OTHER, by), ([0; 6], address), BROADCAST);
        assert_eq!(parse(&frame), asked(Some(by.into()), address.into()));
        let probe = arp_frame(REQUEST, (OTHER, Ipv4Addr::UNSPECIFIED), ([0; 6], address), BROADCAST);
        assert_eq!(parse(&probe), asked(None, address.into()));
        let address: Ipv6Addr = "fd00::7".parse().unwrap();
        let mut frame = advertisement(OTHER, address, all_nodes(), 0);
        frame[54] = SOLICITATION;
        assert_eq!(parse(&frame), asked(Some(address.into()), address.into()));
        frame[21] = 254;
        assert_eq!(parse(&frame), None, "it has passed a router");
    }
}
