//! Netlink sockets for transactions, and for notifications of other programs' changes.

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

/// Send buffer: the kernel takes a transaction in one message, which may be as large as the whole
/// table.
const LARGEST_BATCH: usize = 256 << 20;
/// Receive buffer of unread notifications.
const BACKLOG: usize = 8 << 20;
/// Maximum size of one read: an error quotes the refused message in full.
const LARGEST_ANSWER: usize = 128 << 10;
/// Multicast group of nftables.
const CHANGES: u32 = 1 << 6;
/// Length of the header of an nftables message.
const PREAMBLE: usize = 4;
const SUBSYSTEM: u16 = 10;
/// Type of the first attribute in all messages: the table's name.
const TABLE: u16 = 1;

fn open(groups: u32) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkNetFilter)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// Socket for transactions.
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

    /// Port ID of this socket, which notifications contain.
    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    /// Commits a transaction atomically. The kernel commits during the send, and has answered when
    /// it returns.
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
                // More errors than fit into the buffer.
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

/// Receives notifications of other programs' changes.
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
        // SAFETY: the descriptor is owned, and closed after it is deregistered.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, own, table })
    }

    /// Waits for a change of the tables by another program, or for lost notifications (`ENOBUFS`).
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

/// True if one of the messages is a change of the table by another program.
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
