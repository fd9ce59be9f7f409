//! Notification of followers when a log grows.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tracing::debug;

/// Interval between checks of a log without inotify.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Source of notifications that a log grows.
pub(super) enum Growth {
    News(AsyncFd<OwnedFd>),
    /// Timer, if the limit of inotify instances or watches is reached.
    Clock,
}

impl Growth {
    pub(in crate::serve) fn of(path: &Path) -> Self {
        watch(path).map_or_else(
            |error| {
                debug!(%error, "a log is looked at again and again");
                Self::Clock
            },
            Self::News,
        )
    }

    pub(in crate::serve) async fn wait(&self) -> io::Result<()> {
        match self {
            Self::News(watch) => {
                let mut guard = watch.readable().await?;
                skip(guard.get_inner())?;
                guard.clear_ready();
            }
            Self::Clock => tokio::time::sleep(LOOK_AGAIN).await,
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let directory = path.parent().unwrap_or(path);
    inotify.add_watch(
        directory,
        AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO,
    )?;
    let news = inotify.as_fd().try_clone_to_owned()?;
    // SAFETY: an OwnedFd stays open, and the same, for as long as it lives, and the registration owns it.
    Ok(unsafe { AsyncFd::register(news) }?)
}

/// Discards pending events, whose contents do not matter.
fn skip(news: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match nix::unistd::read(news, &mut buffer) {
            Ok(_) => {}
            Err(Errno::EAGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
