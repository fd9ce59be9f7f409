//! Repairs links of running pods: the kernel notifies when a link is deleted or leaves the bridge,
//! and it is created again; and the bridge itself, when it is down or loses an address.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::sandbox::namespace;
use super::{Bridge, Inner, kernel, note};
use crate::nft::conntrack;
use crate::{Error, Lost, Ranges};

// Multicast groups, from `linux/rtnetlink.h`.
pub(super) const LINKS: u32 = 1;
pub(super) const ADDRESSES: u32 = 0x10 | 0x100;
/// A link was created or has changed.
const CHANGED: u16 = 16;
/// A link was deleted, or is no longer a bridge port.
const DELETED: u16 = 17;
/// An address was deleted.
const ADDRESS_DELETED: u16 = 21;
/// Offset of a link's flags.
const FLAGS: usize = 8;
/// Flag of a link that is up.
const UP: u32 = 1;
/// Offset of the link's index in a message about an address.
const INDEX: usize = 4;
/// Length of a notification before its attributes.
const PREAMBLE: usize = 16;
const NAME: u16 = 3;
/// Delay between attempts to connect a sandbox, or to repair the bridge.
const AGAIN: Duration = Duration::from_secs(10);
/// Pause after a repair of the bridge: another program may take it apart each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Monitors and repairs links while it is polled.
pub(super) async fn run(bridge: &Bridge, told: mpsc::Sender<Lost>) -> Result<(), Error> {
    let failed = |source| Error::io("listen to the kernel in", Path::new("/proc/thread-self/ns/net"), source);
    // Subscribes before the first check, so that later losses are notified.
    let news = listen(LINKS | ADDRESSES).map_err(failed)?;
    let mut known = BTreeMap::new();
    loop {
        let (lost, repaired) = bridge.run(|inner| inner.mend()).await?;
        known.retain(|sandbox, _| lost.iter().any(|lost| lost.sandbox_id == *sandbox));
        for lost in lost {
            let before = known.insert(lost.sandbox_id.clone(), lost.failure.clone());
            // The same error is reported once.
            if before.as_ref() != Some(&lost.failure) && told.send(lost).await.is_err() {
                return Ok(());
            }
        }
        known.retain(|_, failure| failure.is_some());
        if repaired {
            tokio::time::sleep(PAUSE).await;
        }
        let heard = hear(&news, &bridge.inner);
        if known.is_empty() && bridge.inner.is_repaired.load(Ordering::Relaxed) {
            heard.await.map_err(failed)?;
        } else if let Ok(heard) = tokio::time::timeout(AGAIN, heard).await {
            heard.map_err(failed)?;
        }
    }
}

/// Subscribes to these multicast groups.
pub(super) fn listen(groups: u32) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    #[expect(
        unsafe_code,
        reason = "the descriptor must stay what it is for as long as it is waited for"
    )]
    // SAFETY: the descriptor is owned by the returned object and never closed or replaced by
    // others.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Waits for the loss of an expected link, or of the bridge's state or address.
async fn hear(news: &AsyncFd<OwnedFd>, inner: &Arc<Inner>) -> std::io::Result<()> {
    let mut buffer = vec![0_u8; conntrack::LARGEST];
    loop {
        let heard = news.async_io(tokio::io::Interest::READABLE, |socket| {
            Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?)
        });
        let length = match heard.await {
            Ok(length) => length,
            // Notifications were lost (`ENOBUFS`).
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut said = conntrack::messages(buffer.get(..length).unwrap_or_default());
        if said.any(|(kind, said)| inner.has_lost(kind, said)) {
            return Ok(());
        }
    }
}

/// Name of the link in a message.
pub(super) fn name(said: &[u8]) -> Option<std::borrow::Cow<'_, str>> {
    let name = conntrack::value(said.get(PREAMBLE..)?, NAME)?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)))
}

fn number(said: &[u8], offset: usize) -> Option<u32> {
    let bytes = said.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

impl Inner {
    /// True if a message is about a loss that is to be repaired.
    fn has_lost(&self, kind: u16, said: &[u8]) -> bool {
        let bridge = &self.config.bridge;
        match kind {
            DELETED => name(said).is_some_and(|name| self.is_needed(&name)),
            CHANGED => {
                number(said, FLAGS).is_some_and(|flags| flags & UP == 0)
                    && name(said).is_some_and(|name| name == bridge.as_str())
            }
            ADDRESS_DELETED => number(said, INDEX).is_some_and(|index| kernel::is_index_of(index, bridge)),
            _ => false,
        }
    }

    fn is_needed(&self, link: &str) -> bool {
        link == self.config.bridge || self.records().has_link(link)
    }

    /// Repairs the bridge, connects all sandboxes whose links are missing, and returns them, and
    /// whether the bridge needed it.
    fn mend(&self) -> Result<(Vec<Lost>, bool), Error> {
        let Some(ranges) = self.records().ranges() else {
            return Ok((Vec::new(), false));
        };
        let bridge = &self.config.bridge;
        kernel::with(|kernel| {
            // Ports are listed first: a pod that is added meanwhile is not taken for lost.
            let wanted = self.records().links();
            let ports = kernel.ports(bridge)?;
            let repairs = !self.is_repaired.load(Ordering::Relaxed) || !kernel.is_whole(bridge, ranges)?;
            if repairs {
                self.repair(kernel, ranges)?;
            }
            let ports = ports.unwrap_or_default();
            let mut all = Vec::new();
            for (link, attachment) in wanted {
                // A namespace is mounted once it is connected; until then an attachment is in
                // progress.
                if ports.contains(&link) || !namespace::is_held(&attachment.netns) {
                    continue;
                }
                let failure = kernel.join(bridge, &link, &attachment).err();
                // A sandbox that is being detached needs no link.
                if self.records().has_link(&link) {
                    all.push(Lost {
                        sandbox_id: attachment.sandbox_id,
                        failure: failure.map(|error| super::chain(&error)),
                    });
                }
            }
            Ok((all, repairs))
        })
    }

    /// Makes the bridge as it was. What fails is tried again later; links are mended all the same.
    fn repair(&self, kernel: &kernel::Kernel, ranges: Ranges) -> Result<(), Error> {
        let bridge = &self.config.bridge;
        tracing::warn!(
            bridge,
            "the pods' bridge was removed, set down or lost an address; it is made again"
        );
        self.is_repaired.store(false, Ordering::Relaxed);
        kernel.prepare(bridge, &self.mark(), ranges)?;
        let mut failures = Vec::new();
        note(&mut failures, kernel.add_neighbors(bridge, &self.held()));
        note(&mut failures, self.lead_ports(&[]));
        self.is_repaired.store(failures.is_empty(), Ordering::Relaxed);
        if !failures.is_empty() {
            tracing::warn!(bridge, ?failures, "the pods' bridge is not whole yet");
        }
        Ok(())
    }
}
