//! Placement of short-lived directories by ext4.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Lets the file system place each new directory in `directory` in another block group, if it can
/// (ext2 to ext4).
///
/// ext4 does not reuse an inode for minutes after its deletion and checks all recently deleted
/// inodes of a block group for each new file: without this, each pod would start more slowly for
/// every one that was just removed.
pub fn spread(directory: &Path) {
    let set = || -> io::Result<()> {
        let directory = File::open(directory)?;
        let flags = ioctl_getflags(&directory)?;
        Ok(ioctl_setflags(&directory, flags | IFlags::TOPDIR)?)
    };
    if let Err(error) = set() {
        tracing::debug!(directory = %directory.display(), %error, "the file system places directories as it likes");
    }
}
