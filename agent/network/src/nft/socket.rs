//! The sockets that transactions go through, and that tell of those of others.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send, setsockopt,
    socket, sockopt,
};
use rtnetlink::packet_core::{NLMSG_ERROR, NetlinkBuffer, NlasIterator};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::Batch;

/// The kernel takes a transaction at once or not at all, and it may hold everything.
const LARGEST_BATCH: usize = 256 << 20;
/// What others have done and we did not read yet.
const BACKLOG: usize = 8 << 20;
/// The kernel says no more than this at once: a message that it refuses is told whole.
const LARGEST_ANSWER: usize = 128 << 10;
/// Tells of changes of nftables.
const CHANGES: u32 = 1 << 6;
/// Of a message of nftables, before its attributes.
const PREAMBLE: usize = 4;
const SUBSYSTEM: u16 = 10;
/// In all messages the table's name is the first attribute.
const TABLE: u16 = 1;

fn open(groups: u32) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkNetFilter)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// Carries transactions to the kernel.
pub(crate) struct Socket {
    socket: OwnedFd,
    id: u32,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, Errno> {
        let socket = open(0)?;
        setsockopt(&socket, sockopt::SndBufForce, &LARGEST_BATCH)?;
        setsockopt(&socket, sockopt::RcvBufForce, &BACKLOG)?;
        let id = getsockname::<NetlinkAddr>(socket.as_raw_fd())?.pid();
        Ok(Self { socket, id })
    }

    /// What the kernel calls who changed something.
    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    /// All of it is done when this returns, or nothing. The kernel works while it is sent, and has answered then.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), Errno> {
        let (bytes, last) = batch.finish();
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        drop(bytes);
        let mut buffer = vec![0_u8; LARGEST_ANSWER];
        let (mut failure, mut done) = (None, false);
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => break,
                // More was refused than there is room to tell.
                Err(Errno::ENOBUFS) => {
                    failure = failure.or(Some(Errno::ENOBUFS));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let answer = buffer
                .get(..length)
                .and_then(|bytes| NetlinkBuffer::new_checked(bytes).ok());
            let Some(answer) = answer.filter(|answer| answer.message_type() == NLMSG_ERROR) else {
                continue;
            };
            let number = answer
                .payload()
                .first_chunk::<4>()
                .map_or(0, |number| i32::from_ne_bytes(*number));
            if number != 0 {
                failure = failure.or_else(|| Some(Errno::from_raw(number.saturating_neg())));
            }
            done |= answer.sequence_number() == last && number == 0;
        }
        match failure {
            Some(failure) => Err(failure),
            None if done => Ok(()),
            None => Err(Errno::EPROTO),
        }
    }
}

/// Hears what others do to the tables.
pub struct Watch {
    socket: AsyncFd<OwnedFd>,
    own: u32,
    table: String,
}

impl Watch {
    #[expect(unsafe_code, reason = "registered descriptors must stay open; this one is owned")]
    pub(crate) fn open(own: u32, table: String) -> std::io::Result<Self> {
        let socket = open(CHANGES)?;
        setsockopt(&socket, sockopt::RcvBufForce, &BACKLOG)?;
        // SAFETY: the descriptor is owned, and closed when it is registered no more.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, own, table })
    }

    /// Returns when somebody else changed the tables, or so much was changed that nobody can tell.
    pub async fn changed(&mut self) -> std::io::Result<()> {
        let mut buffer = vec![0_u8; LARGEST_ANSWER];
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(ready.get_inner().as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    let told = buffer.get(..length).unwrap_or_default();
                    if concerns(told, self.own, &self.table) {
                        return Ok(());
                    }
                }
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether one of the messages tells of a change of the table by another.
fn concerns(mut rest: &[u8], own: u32, table: &str) -> bool {
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        let attributes = message.payload().get(PREAMBLE..).unwrap_or_default();
        let mut attributes = NlasIterator::new(attributes).flatten();
        let named = attributes.find(|attribute| attribute.kind() == TABLE);
        let ours = named.is_some_and(|name| name.value().strip_suffix(&[0]) == Some(table.as_bytes()));
        if ours && message.message_type() >> 8 == SUBSYSTEM && message.port_number() != own {
            return true;
        }
        let Ok(length) = usize::try_from(message.length()) else {
            break;
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}
