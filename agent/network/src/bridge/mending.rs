//! Links that pods lose while they run: the kernel tells when one is deleted or leaves the bridge, and it is made again.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::{Bridge, Inner, flows, kernel, namespace};
use crate::{Error, Lost};

/// News of links, from linux/rtnetlink.h.
const LINKS: u32 = 1;
/// A link is gone, or is no port of a bridge any more.
const DELETED: u16 = 17;
/// Of such news, before the attributes.
const PREAMBLE: usize = 16;
const NAME: u16 = 3;
/// Between two tries to connect a sandbox.
const AGAIN: Duration = Duration::from_secs(10);

/// Notices and mends for as long as it is polled.
pub(super) async fn run(bridge: &Bridge, told: mpsc::Sender<Lost>) -> Result<(), Error> {
    let failed = |source| Error::io("listen to the kernel in", Path::new("/proc/thread-self/ns/net"), source);
    // Before the first look: what is lost after that is told.
    let news = listen(LINKS).map_err(failed)?;
    let mut known = BTreeMap::new();
    loop {
        let lost = bridge.run(|inner| inner.mend()).await?;
        known.retain(|sandbox, _| lost.iter().any(|lost| lost.sandbox_id == *sandbox));
        for lost in lost {
            let before = known.insert(lost.sandbox_id.clone(), lost.failure.clone());
            // The same failure is told once.
            if before.as_ref() != Some(&lost.failure) && told.send(lost).await.is_err() {
                return Ok(());
            }
        }
        known.retain(|_, failure| failure.is_some());
        let heard = hear(&news, &bridge.inner);
        if known.is_empty() {
            heard.await.map_err(failed)?;
        } else if let Ok(heard) = tokio::time::timeout(AGAIN, heard).await {
            heard.map_err(failed)?;
        }
    }
}

/// Listens to news of these groups.
pub(super) fn listen(groups: u32) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    #[expect(
        unsafe_code,
        reason = "the descriptor must stay what it is for as long as it is waited for"
    )]
    // SAFETY: it is the result's own, which nobody else closes or replaces.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Waits for the end of a link that there must be.
async fn hear(news: &AsyncFd<OwnedFd>, inner: &Arc<Inner>) -> std::io::Result<()> {
    let mut buffer = vec![0_u8; flows::LARGEST];
    loop {
        let heard = news.async_io(tokio::io::Interest::READABLE, |socket| {
            Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?)
        });
        let length = match heard.await {
            Ok(length) => length,
            // More was said than there was room for.
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
            Err(error) => return Err(error),
        };
        let said = flows::messages(buffer.get(..length).unwrap_or_default());
        let gone = said.filter(|(kind, _)| *kind == DELETED);
        let mut names = gone.filter_map(|(_, said)| name(said));
        if names.any(|name| inner.is_needed(&name)) {
            return Ok(());
        }
    }
}

/// The name of the link that a message is about.
pub(super) fn name(said: &[u8]) -> Option<std::borrow::Cow<'_, str>> {
    let name = flows::value(said.get(PREAMBLE..)?, NAME)?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)))
}

impl Inner {
    fn is_needed(&self, link: &str) -> bool {
        link == self.config.bridge || self.records().links().contains_key(link)
    }

    /// Connects all sandboxes whose links are not there, and answers which they were.
    fn mend(&self) -> Result<Vec<Lost>, Error> {
        let Some(ranges) = self.records().ranges() else {
            return Ok(Vec::new());
        };
        let bridge = &self.config.bridge;
        kernel::with(|kernel| {
            // Asked for first: a pod that comes meanwhile is not missed.
            let wanted = self.records().links();
            let ports = kernel.ports(bridge)?;
            if ports.is_none() {
                tracing::warn!(bridge, "the pods' bridge was removed; it is made again");
                kernel.prepare(bridge, &self.mark(), ranges)?;
                self.lead_ports(&[])?;
            }
            let ports = ports.unwrap_or_default();
            let mut all = Vec::new();
            for (link, attachment) in wanted {
                // A namespace is held when it is connected; until then somebody is about to do that.
                if ports.contains(&link) || !namespace::is_held(&attachment.netns) {
                    continue;
                }
                let failure = kernel.join(bridge, &link, &attachment).err();
                // One that leaves needs none.
                if self.records().links().contains_key(&link) {
                    all.push(Lost {
                        sandbox_id: attachment.sandbox_id,
                        failure: failure.map(|error| super::chain(&error)),
                    });
                }
            }
            Ok(all)
        })
    }
}
