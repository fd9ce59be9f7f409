//! Netlink requests to the kernel, as the machine may lack the programs for them.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

// linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/netfilter/nfnetlink.h and nf_tables.h
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const LINK_INFO: u16 = 18;
const KIND: u16 = 1;
const NFT: u16 = 10;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
/// Names of the requested table and chain.
const TABLE: &[u8] = b"skiff_check\0";
const CHAIN: &[u8] = b"chain\0";
/// Length of a netlink header.
const HEAD: usize = 16;
/// Length of an nftables header (`nfgenmsg`).
const PREAMBLE: usize = 4;

/// Requests a link of a kind in the network namespace of this thread, which must be disposable. For
/// a supported kind, the kernel may require further attributes.
pub(crate) fn new_link(kind: &str) -> Result<Option<Errno>, Errno> {
    let info = attribute(LINK_INFO, &attribute(KIND, kind.as_bytes()));
    let link = message(NEW_LINK, CREATE | ACKNOWLEDGE, &[0; 16], &info);
    ask(SockProtocol::NetlinkRoute, &link)
}

/// Requests an nftables table in the network namespace of this thread.
pub(crate) fn new_table(family: u8) -> Result<Option<Errno>, Errno> {
    let table = attribute(TABLE_NAME, TABLE);
    transact(&[change(NEW_TABLE, ACKNOWLEDGE, family, &table)])
}

/// Requests a rule with an expression in such a table. The kernel may require attributes of an
/// expression that it has; only `ENOENT` tells that it has none of this name.
pub(crate) fn new_rule(family: u8, expression: &str) -> Result<Option<Errno>, Errno> {
    let table = attribute(TABLE_NAME, TABLE);
    let chain = [table.clone(), attribute(CHAIN_NAME, CHAIN)].concat();
    let expression = attribute(EXPRESSION_NAME, format!("{expression}\0").as_bytes());
    let expressions = attribute(RULE_EXPRESSIONS, &attribute(ELEMENT, &expression));
    let rule = [table.clone(), attribute(RULE_CHAIN, CHAIN), expressions].concat();
    transact(&[
        change(NEW_TABLE, 0, family, &table),
        change(NEW_CHAIN, 0, family, &chain),
        change(NEW_RULE, ACKNOWLEDGE, family, &rule),
    ])
}

fn change(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    message(NFT << 8 | kind, CREATE | flags, &[family, 0, 0, 0], attributes)
}

/// Sends changes of nftables as one transaction.
fn transact(changes: &[Vec<u8>]) -> Result<Option<Errno>, Errno> {
    let [high, low] = NFT.to_be_bytes();
    let bound = |kind| message(kind, 0, &[0, 0, high, low], &[]);
    let messages = [bound(BATCH_BEGIN), changes.concat(), bound(BATCH_END)].concat();
    ask(SockProtocol::NetlinkNetFilter, &messages)
}

/// Returns the names of all nftables tables of any family.
pub(crate) fn tables() -> Result<Vec<String>, Errno> {
    let socket = open(SockProtocol::NetlinkNetFilter)?;
    let get = message(NFT << 8 | GET_TABLE, DUMP, &[0; PREAMBLE], &[]);
    send(socket.as_raw_fd(), &get, MsgFlags::empty())?;
    let (mut names, mut answer) = (Vec::new(), vec![0_u8; 64 << 10]);
    loop {
        let length = match recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => return Ok(names),
            length => length?,
        };
        let mut rest = answer.get(..length).unwrap_or_default();
        while let Some((kind, content, next)) = split(rest) {
            names.extend((kind >> 8 == NFT).then(|| name(content)).flatten());
            rest = next;
        }
    }
}

/// Splits off the first message: its type, its content, and the remaining messages.
fn split(messages: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*messages.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(messages.get(4..6)?.try_into().ok()?);
    let next = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, messages.get(HEAD..length)?, next))
}

/// Returns the first attribute of a table's message: its name.
fn name(content: &[u8]) -> Option<String> {
    let attribute = content.get(PREAMBLE..)?;
    let length = u16::from_ne_bytes(*attribute.first_chunk()?);
    let kind = u16::from_ne_bytes(attribute.get(2..4)?.try_into().ok()?);
    let text = attribute.get(4..usize::from(length))?.strip_suffix(&[0])?;
    (kind == TABLE_NAME).then(|| String::from_utf8_lossy(text).into_owned())
}

fn open(protocol: SockProtocol) -> Result<OwnedFd, Errno> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
}

/// Sends messages and returns the first error in the answers, if any.
fn ask(protocol: SockProtocol, messages: &[u8]) -> Result<Option<Errno>, Errno> {
    let socket = open(protocol)?;
    send(socket.as_raw_fd(), messages, MsgFlags::empty())?;
    let mut answer = [0_u8; 8192];
    // The kernel has answered once it has accepted the messages.
    let length = match recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN) => return Ok(None),
        length => length?,
    };
    let number = failure(answer.get(..length).unwrap_or_default());
    let number = number.unwrap_or(Errno::EPROTO as i32);
    Ok((number != 0).then(|| Errno::from_raw(number)))
}

/// Returns the error number of the first message, zero for success: the content, negated.
fn failure(answer: &[u8]) -> Option<i32> {
    let (kind, content, _) = split(answer)?;
    let number = i32::from_ne_bytes(*content.first_chunk()?);
    (kind == ERROR).then_some(number.saturating_neg())
}

fn message(kind: u16, flags: u16, head: &[u8], attributes: &[u8]) -> Vec<u8> {
    let length = 16_usize.saturating_add(head.len()).saturating_add(attributes.len());
    let mut bytes = u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | REQUEST).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(head);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = value.len().saturating_add(4);
    let mut bytes = u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_kind_that_no_kernel_has_is_missed() {
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            assert_eq!(new_link("skiff-no-kind").unwrap(), Some(Errno::EOPNOTSUPP));
            assert_eq!(new_link("bridge").unwrap(), None);
            assert_eq!(tables().unwrap(), Vec::<String>::new());
            assert_eq!((new_table(2).unwrap(), new_table(10).unwrap()), (None, None));
            assert!(new_table(99).unwrap().is_some());
            assert_eq!(new_rule(2, "skiff-none").unwrap(), Some(Errno::ENOENT));
            assert_ne!(new_rule(2, "meta").unwrap(), Some(Errno::ENOENT));
            assert_eq!(tables().unwrap(), ["skiff_check", "skiff_check"]);
        })
        .join()
        .unwrap();
    }
}
