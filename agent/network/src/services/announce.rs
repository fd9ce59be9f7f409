//! Announcement of load balancers' addresses on the links of this node, which has none of them: it
//! answers ARP requests and neighbor solicitations for them from packet sockets, and tells the link
//! when it takes one over. Nothing outlives the process: a node that fails answers no more.

mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use frames::{Heard, Mac};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{LinkAddr, MsgFlags, SockaddrStorage, recvfrom, sendto};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::{Cidr, Error};

/// Ethernet's type of ARP and of IPv6.
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
/// ARP hardware type Ethernet.
const ETHERNET: u16 = 1;
/// Largest frame that is read whole; the rest of a longer one does not matter.
const FRAME: usize = 128;
/// Number of times that a new address is told to the link, and the time between two.
const TELLS: u8 = 4;
const TELL: Duration = Duration::from_millis(800);

/// Link of this node, with its range.
#[derive(Clone, Debug)]
struct Link {
    range: Cidr,
    index: usize,
    mac: Mac,
    to: LinkAddr,
}

/// Ranges of the links of this node, except for interfaces with these names.
pub fn ranges(except: &[&str]) -> BTreeSet<Cidr> {
    let links = links(except).unwrap_or_default();
    links.into_iter().map(|link| link.range.network_range()).collect()
}

fn links(except: &[&str]) -> nix::Result<Vec<Link>> {
    let all: Vec<_> = getifaddrs()?
        .filter(|own| own.flags.contains(InterfaceFlags::IFF_UP) && !own.flags.contains(InterfaceFlags::IFF_NOARP))
        .filter(|own| {
            !own.flags.contains(InterfaceFlags::IFF_LOOPBACK) && !except.contains(&own.interface_name.as_str())
        })
        .collect();
    let macs = all.iter().filter_map(|own| {
        let link = own.address.as_ref()?.as_link_addr()?;
        (link.hatype() == ETHERNET).then_some((own.interface_name.as_str(), link))
    });
    let macs: BTreeMap<&str, &LinkAddr> = macs.collect();
    let links = all.iter().filter_map(|own| {
        let to = **macs.get(own.interface_name.as_str())?;
        let range = Cidr {
            address: address(own.address.as_ref()?)?,
            prefix: prefix(address(own.netmask.as_ref()?)?),
        };
        let is_local = matches!(range.address, IpAddr::V6(address) if address.is_unicast_link_local());
        (!is_local).then_some(Link {
            range,
            index: to.ifindex(),
            mac: to.addr()?,
            to,
        })
    });
    Ok(links.collect())
}

fn address(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|own| own.ip().into());
    v4.or_else(|| storage.as_sockaddr_in6().map(|own| own.ip().into()))
}

fn prefix(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    u8::try_from(ones).unwrap_or_default()
}

/// Address that another host of its link claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The address.
    pub address: IpAddr,
    /// Hardware address of the host.
    pub by: [u8; 6],
}

/// Addresses that this node announces.
pub struct Announcer {
    arp: AsyncFd<OwnedFd>,
    /// `None` on a machine without IPv6.
    neighbors: Option<AsyncFd<OwnedFd>>,
    /// Member of the groups in which hosts ask for addresses of IPv6.
    member: Option<UdpSocket>,
    held: BTreeMap<IpAddr, Link>,
    /// Announcements left for each new address.
    untold: BTreeMap<IpAddr, u8>,
    due: Instant,
}

fn failed(cause: &dyn std::fmt::Display) -> Error {
    Error::Kernel {
        doing: "announce addresses of load balancers",
        cause: cause.to_string(),
    }
}

impl Announcer {
    /// Opens the sockets. Needs a tokio runtime.
    pub fn open() -> Result<Self, Error> {
        let member = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok();
        let neighbors = member.as_ref().map(|_| open(IPV6, &NEIGHBORS)).transpose();
        Ok(Self {
            arp: open(ARP, &[]).map_err(|error| failed(&error))?,
            neighbors: neighbors.map_err(|error| failed(&error))?,
            member,
            held: BTreeMap::new(),
            untold: BTreeMap::new(),
            due: Instant::now(),
        })
    }

    /// Announces exactly these addresses from now on, but for interfaces with some names. Returns
    /// those that are on no link.
    pub fn set(&mut self, addresses: &BTreeSet<IpAddr>, except: &[&str]) -> Result<Vec<IpAddr>, Error> {
        let links = links(except).map_err(|error| failed(&error))?;
        let mut lost = Vec::new();
        let mut held = BTreeMap::new();
        for address in addresses {
            match links.iter().find(|link| link.range.contains(*address)) {
                Some(link) => drop(held.insert(*address, link.clone())),
                None => lost.push(*address),
            }
        }
        let is_same = |known: &BTreeMap<IpAddr, Link>, address: &IpAddr, link: &Link| {
            known
                .get(address)
                .is_some_and(|own| (own.index, own.mac) == (link.index, link.mac))
        };
        for (address, link) in &self.held {
            if !is_same(&held, address, link) {
                self.membership(*address, link, false);
                self.untold.remove(address);
            }
        }
        for (address, link) in &held {
            if !is_same(&self.held, address, link) {
                self.membership(*address, link, true);
                self.untold.insert(*address, TELLS);
                self.due = Instant::now();
            }
        }
        self.held = held;
        Ok(lost)
    }

    /// Joins or leaves the group in which hosts ask for an address.
    fn membership(&self, address: IpAddr, link: &Link, joins: bool) {
        let (Some(member), IpAddr::V6(address), Ok(index)) = (&self.member, address, u32::try_from(link.index)) else {
            return;
        };
        let group = frames::solicited(address);
        let done = if joins {
            member.join_multicast_v6(&group, index)
        } else {
            member.leave_multicast_v6(&group, index)
        };
        // Another address may have the same group.
        if let Err(error) = done {
            tracing::debug!(%address, %error, "the group of an announced address");
        }
    }

    /// Answers questions until another host claims one of the addresses.
    pub async fn run(&mut self) -> io::Result<Claim> {
        loop {
            let (mut arp, mut neighbor) = ([0; FRAME], [0; FRAME]);
            let (frame, index) = tokio::select! {
                () = sleep_until(self.due), if !self.untold.is_empty() => {
                    self.tell();
                    continue;
                }
                heard = receive(&self.arp, &mut arp) => heard?,
                heard = receive_some(self.neighbors.as_ref(), &mut neighbor) => heard?,
            };
            if let Some(claim) = self.hear(frame, index) {
                return Ok(claim);
            }
        }
    }

    fn tell(&mut self) {
        self.due = Instant::now() + TELL;
        for (address, link) in &self.held {
            if self.untold.contains_key(address) {
                self.send(link, *address, &frames::claim(link.mac, *address));
            }
        }
        self.untold.values_mut().for_each(|left| *left = left.saturating_sub(1));
        self.untold.retain(|_, left| *left > 0);
    }

    fn hear(&self, frame: &[u8], index: usize) -> Option<Claim> {
        let heard = frames::parse(frame)?;
        let (Heard::Asked { address, mac, .. } | Heard::Claimed { address, mac }) = heard;
        let link = self.held.get(&address).filter(|link| link.index == index)?;
        if mac == link.mac {
            return None;
        }
        match heard {
            Heard::Asked { by, .. } => {
                self.send(link, address, &frames::answer(link.mac, address, by, mac));
                None
            }
            Heard::Claimed { .. } => Some(Claim { address, by: mac }),
        }
    }

    fn send(&self, link: &Link, address: IpAddr, frame: &[u8]) {
        let socket = if address.is_ipv4() {
            Some(&self.arp)
        } else {
            self.neighbors.as_ref()
        };
        let Some(socket) = socket else { return };
        if let Err(error) = sendto(socket.as_raw_fd(), frame, &link.to, MsgFlags::MSG_DONTWAIT) {
            tracing::debug!(%address, %error, "an announced address was not told");
        }
    }
}

/// Accepts solicitations and advertisements of neighbors alone: the socket would get every packet
/// of IPv6 otherwise.
const NEIGHBORS: [SockFilter; 7] = [
    SockFilter::new(LOAD, 0, 0, 20),
    SockFilter::new(EQUAL, 0, 3, 58),
    SockFilter::new(LOAD, 0, 0, 54),
    SockFilter::new(EQUAL, 2, 0, 135),
    SockFilter::new(EQUAL, 1, 0, 136),
    SockFilter::new(RETURN, 0, 0, 0),
    SockFilter::new(RETURN, 0, 0, u32::MAX),
];
/// Instructions of the kernel's filters: load an octet, jump if equal, return.
const LOAD: u16 = 0x30;
const EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

fn open(kind: u16, filter: &[SockFilter]) -> io::Result<AsyncFd<OwnedFd>> {
    let protocol = Protocol::from(i32::from(kind.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    if !filter.is_empty() {
        socket.attach_filter(filter)?;
    }
    socket.set_nonblocking(true)?;
    let socket = OwnedFd::from(socket);
    #[expect(unsafe_code, reason = "registered descriptors must stay open; this one is owned")]
    // SAFETY: the descriptor is owned, and closed after it is deregistered.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// Receives a frame, and the index of its interface.
async fn receive<'a>(socket: &AsyncFd<OwnedFd>, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], usize)> {
    loop {
        let mut ready = socket.readable().await?;
        match recvfrom::<LinkAddr>(ready.get_inner().as_fd().as_raw_fd(), buffer) {
            Ok((length, from)) => {
                let index = from.map(|from| from.ifindex()).unwrap_or_default();
                return Ok((buffer.get(..length).unwrap_or_default(), index));
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            // An interface that goes down is told once.
            Err(Errno::EINTR | Errno::ENETDOWN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn receive_some<'a>(socket: Option<&AsyncFd<OwnedFd>>, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], usize)> {
    match socket {
        Some(socket) => receive(socket, buffer).await,
        None => std::future::pending().await,
    }
}
