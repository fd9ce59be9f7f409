//! Conntrack entries of UDP flows. The kernel translates the first packet of a flow and keeps to
//! that translation while packets continue: an entry whose port maps to another pod by now still
//! leads to the deleted one.
//!
//! Messages as in `linux/netfilter/nfnetlink_conntrack.h`: nested attributes, with numbers in
//! network order.

use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rtnetlink::packet_core::{
    NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlasIterator,
};

use crate::{Error, PortMapping};

/// Timeout of an answer, in seconds.
const SILENCE: i64 = 5;
/// Maximum size of one read from the kernel.
pub(crate) const LARGEST: usize = 32 << 10;
/// Length of a message header.
const HEADER: usize = 16;
/// First bytes of each message body: the address family, then unused fields.
const PREAMBLE: usize = 4;

// Message types.
const ENTRY: u16 = 0x100;
const LIST: u16 = 0x101;
const DELETE: u16 = 0x102;

// Attributes of an entry.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;

// Attributes of `ORIGINAL` and `REPLY`, and those nested in them.
const ADDRESSES: u16 = 1;
const FROM_V4: u16 = 1;
const FROM_V6: u16 = 3;
const TO_V4: u16 = 2;
const TO_V6: u16 = 4;
const TRANSPORT: u16 = 2;
const PROTOCOL: u16 = 1;
const FROM_PORT: u16 = 2;
const TO_PORT: u16 = 3;

const UDP: u8 = 17;

// Bits of `STATUS`: source or destination was translated.
const FROM_ANOTHER: u32 = 1 << 4;
const TO_ANOTHER: u32 = 1 << 5;

/// UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Original destination.
    pub(crate) to: (IpAddr, u16),
    /// Source of replies.
    pub(crate) from: Option<(IpAddr, u16)>,
    status: u32,
}

impl Flow {
    /// True if only the source is translated: a pod's flow to a destination outside the cluster.
    pub(crate) fn only_leaves(&self) -> bool {
        self.status & (FROM_ANOTHER | TO_ANOTHER) == FROM_ANOTHER
    }
}

/// Deletes the conntrack entries of UDP flows to these host ports, so that the next packet is
/// translated anew.
pub(crate) fn forget(ports: &[PortMapping]) -> Result<(), Error> {
    let ports: Vec<&PortMapping> = ports.iter().filter(|port| port.protocol == "UDP").collect();
    if ports.is_empty() {
        return Ok(());
    }
    forget_those(&|flow| leads(flow, &ports))
}

/// Deletes the matching conntrack entries. Succeeds if the kernel has no conntrack table.
pub(crate) fn forget_those(which: &dyn Fn(&Flow) -> bool) -> Result<(), Error> {
    let mut failed = None;
    let ended = match forget_listed(which, &mut failed) {
        // A kernel without conntrack, or without permission to query it.
        Err(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOENT) => Ok(()),
        ended => ended,
    };
    ended.and(failed.map_or(Ok(()), Err)).map_err(|errno| Error::Kernel {
        doing: "forget flows of datagrams",
        cause: errno.to_string(),
    })
}

/// Iterates over all flows and continues past entries that cannot be deleted, returning the first
/// error. Their number is bounded by the kernel's limit.
fn forget_listed(which: &dyn Fn(&Flow) -> bool, failed: &mut Option<Errno>) -> Result<(), Errno> {
    let (listing, forgetting) = (Socket::open()?, Socket::open()?);
    // `AF_UNSPEC`: entries of all families.
    listing.ask(LIST, NLM_F_DUMP, &[0; PREAMBLE])?;
    let mut buffer = vec![0_u8; LARGEST];
    loop {
        for (kind, said) in messages(listing.hear(&mut buffer)?) {
            match kind {
                NLMSG_DONE | NLMSG_ERROR => return outcome(said),
                ENTRY => {
                    if let Some(name) = name(said, which)
                        && let Err(errno) = forgetting.forget(&name)
                    {
                        *failed = failed.or(Some(errno));
                    }
                }
                _ => {}
            }
        }
    }
}

struct Socket(OwnedFd);

impl Socket {
    fn open() -> Result<Self, Errno> {
        let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
        let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkNetFilter)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(SILENCE))?;
        // Only messages from the kernel are received then.
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(HEADER.saturating_add(body.len())).map_err(|_large| Errno::EMSGSIZE)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        // Sequence number and port id are constant: there is one request at a time.
        message.extend([0_u8; 8]);
        message.extend(body);
        send(self.0.as_raw_fd(), &message, MsgFlags::empty()).map(drop)
    }

    fn hear<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let length = loop {
            match recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => {}
                heard => break heard?,
            }
        };
        buffer.get(..length).ok_or(Errno::EMSGSIZE)
    }

    /// Succeeds also if the entry has expired.
    fn forget(&self, name: &[u8]) -> Result<(), Errno> {
        self.ask(DELETE, NLM_F_ACK, name)?;
        let mut buffer = [0_u8; 4096];
        match messages(self.hear(&mut buffer)?).next() {
            Some((NLMSG_ERROR, said)) => match outcome(said) {
                Err(Errno::ENOENT) => Ok(()),
                outcome => outcome,
            },
            Some(_) | None => Err(Errno::EBADMSG),
        }
    }
}

/// Messages of one read: type and body of each.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(rest).ok()?;
        let length = usize::try_from(message.length()).ok()?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((message.message_type(), message.payload()))
    })
}

/// Result in the last message of an answer: a negative errno, or zero.
fn outcome(said: &[u8]) -> Result<(), Errno> {
    let number = said.first_chunk::<4>().map(|number| i32::from_ne_bytes(*number));
    match number.ok_or(Errno::EBADMSG)? {
        0 => Ok(()),
        number => Err(Errno::from_raw(number.saturating_neg())),
    }
}

/// True if a flow is to one of these ports.
fn leads(flow: &Flow, ports: &[&PortMapping]) -> bool {
    let (address, port) = flow.to;
    // Flows of pods to the same port of other hosts are masqueraded only: these are not ours.
    !flow.only_leaves()
        && ports.iter().any(|mapping| {
            let at = mapping
                .host_address
                .is_none_or(|own| own == address || (own.is_unspecified() && own.is_ipv6() == address.is_ipv6()));
            mapping.host_port == port && at
        })
}

/// Address and port of one direction of a flow.
fn end(tuple: &[u8], (v4, v6, port): (u16, u16, u16)) -> Option<(IpAddr, u16)> {
    let (addresses, transport) = (value(tuple, ADDRESSES)?, value(tuple, TRANSPORT)?);
    if value(transport, PROTOCOL)? != [UDP] {
        return None;
    }
    let port = u16::from_be_bytes(*value(transport, port)?.first_chunk::<2>()?);
    let v4 = || Some(IpAddr::from(*value(addresses, v4)?.first_chunk::<4>()?));
    let v6 = || Some(IpAddr::from(*value(addresses, v6)?.first_chunk::<16>()?));
    Some((v4().or_else(v6)?, port))
}

/// Attributes that identify an entry for its deletion; `None` if the entry does not match.
fn name(entry: &[u8], which: &dyn Fn(&Flow) -> bool) -> Option<Vec<u8>> {
    let (preamble, attributes) = entry.split_at_checked(PREAMBLE)?;
    let status = value(attributes, STATUS).and_then(|bits| bits.first_chunk::<4>());
    let flow = Flow {
        to: end(value(attributes, ORIGINAL)?, (TO_V4, TO_V6, TO_PORT))?,
        from: value(attributes, REPLY).and_then(|reply| end(reply, (FROM_V4, FROM_V6, FROM_PORT))),
        status: status.map_or(0, |bits| u32::from_be_bytes(*bits)),
    };
    if !which(&flow) {
        return None;
    }
    let mut name = vec![*preamble.first()?, 0, 0, 0];
    // Without the first of these, the message would match all flows; it was found above.
    for kind in [ORIGINAL, ID, ZONE] {
        name.extend(whole(attributes, kind).unwrap_or_default());
        name.resize(name.len().next_multiple_of(4), 0);
    }
    Some(name)
}

/// First attribute of this type, including its header.
fn whole(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = NlasIterator::new(attributes).flatten();
    let found = all.find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(..length)
}

/// Value of the first attribute of this type.
pub(crate) fn value(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    whole(attributes, kind)?.get(NLA_HEADER_SIZE..)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use nix::errno::Errno;
    use rtnetlink::packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE};

    use super::{
        ADDRESSES, FROM_ANOTHER, Flow, ID, ORIGINAL, PROTOCOL, STATUS, TO_ANOTHER, TO_PORT, TO_V4, TO_V6, TRANSPORT,
        UDP, leads, messages, name, outcome,
    };
    use crate::PortMapping;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(NLA_HEADER_SIZE + value.len()).unwrap();
        let mut all = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        all.extend(value);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        attribute(kind | NLA_F_NESTED, &parts.concat())
    }

    fn original(to: &str, protocol: u8, port: u16) -> Vec<u8> {
        let addresses = match to.parse::<IpAddr>().unwrap() {
            IpAddr::V4(to) => [attribute(1, &[10, 0, 0, 9]), attribute(TO_V4, &to.octets())],
            IpAddr::V6(to) => [attribute(3, &[1; 16]), attribute(TO_V6, &to.octets())],
        };
        let transport = [
            attribute(PROTOCOL, &[protocol]),
            attribute(2, &[9, 9]),
            attribute(TO_PORT, &port.to_be_bytes()),
        ];
        nested(
            ORIGINAL,
            &[nested(ADDRESSES, &addresses), nested(TRANSPORT, &transport)],
        )
    }

    fn entry(original: &[u8], status: u32) -> Vec<u8> {
        let (status, id) = (attribute(STATUS, &status.to_be_bytes()), attribute(ID, &[1, 2, 3, 4]));
        let parts: [&[u8]; 4] = [&[2, 0, 0, 0], original, &status, &id];
        parts.concat()
    }

    fn port(host_port: u16, host_address: Option<&str>) -> PortMapping {
        PortMapping {
            host_port,
            container_port: 53,
            protocol: "UDP".to_owned(),
            host_address: host_address.map(|address| address.parse().unwrap()),
        }
    }

    #[test]
    fn flows_to_a_port_are_told_from_others() {
        let (any, own, v6) = (port(5353, None), port(5354, Some("10.0.0.1")), port(5355, Some("::")));
        let ports = [&any, &own, &v6];
        let is_found = |to: &str, protocol: u8, port: u16, status: u32| {
            name(&entry(&original(to, protocol, port), status), &|flow| {
                leads(flow, &ports)
            })
            .is_some()
        };
        for (to, port, found) in [
            ("10.0.0.1", 5353, true),
            ("fd00::1", 5353, true),
            ("10.0.0.1", 53, false),
            ("10.0.0.1", 5354, true),
            ("10.0.0.2", 5354, false),
            ("fd00::1", 5355, true),
            ("10.0.0.1", 5355, false),
        ] {
            assert_eq!(is_found(to, UDP, port, 0), found, "{to} {port}");
        }
        assert!(!is_found("10.0.0.1", 6, 5353, 0), "of TCP");
        assert!(is_found("10.0.0.1", UDP, 5353, TO_ANOTHER));
        assert!(is_found("10.0.0.1", UDP, 5353, TO_ANOTHER | FROM_ANOTHER));
        assert!(!is_found("10.0.0.1", UDP, 5353, FROM_ANOTHER), "what only leaves");
    }

    #[test]
    fn a_flow_is_never_named_by_less_than_its_ends() {
        let (any, flow) = (port(5353, None), original("10.0.0.1", UDP, 5353));
        let whole = entry(&flow, 0);
        let wanted = |flow: &Flow| leads(flow, &[&any]);
        let (preamble, id) = (vec![2, 0, 0, 0], attribute(ID, &[1, 2, 3, 4]));
        assert_eq!(name(&whole, &wanted), Some([preamble, flow.clone(), id].concat()));
        for end in 0..whole.len() {
            let cut = name(&whole[..end], &wanted);
            assert!(cut.is_none_or(|cut| cut[4..].starts_with(&flow)), "cut at {end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let named = name(&changed, &wanted);
                assert!(named.is_none_or(|named| named.len() >= flow.len()), "{byte} at {at}");
            }
        }
    }

    #[test]
    fn answers_end_with_a_number() {
        assert_eq!(outcome(&0_i32.to_ne_bytes()), Ok(()));
        assert_eq!(outcome(&(-2_i32).to_ne_bytes()), Err(Errno::ENOENT));
        assert_eq!(outcome(&[0, 0]), Err(Errno::EBADMSG));
        let header = |length: u32| {
            let (length, rest) = (length.to_ne_bytes().to_vec(), vec![3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            [length, rest].concat()
        };
        let two = [header(20), vec![7; 4], header(16)].concat();
        let kinds: Vec<_> = messages(&two).map(|(kind, said)| (kind, said.len())).collect();
        let kind = u16::from_ne_bytes([3, 0]);
        assert_eq!(kinds, [(kind, 4), (kind, 0)]);
        assert_eq!(messages(&header(17)).count(), 0, "longer than what came");
        assert_eq!(messages(&header(0)).count(), 0);
    }
}
