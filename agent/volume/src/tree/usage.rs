//! Disk usage of a directory that containers fill.
//!
//! The walk uses descriptors and follows no link, so that concurrent renames cannot lead it
//! elsewhere; it stays on one file system. Depth and number of entries are bounded: a directory
//! that exceeds a bound counts as over any limit.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use agent_plan::node::storage::Used;
use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};

/// Maximum depth of directories.
const DEPTH: usize = 256;
/// Maximum number of entries.
const ENTRIES: i64 = 2_000_000;
/// Maximum number of inodes with several links that are remembered, to count each once.
const LINKED: usize = 100_000;
/// Block size of `st_blocks`.
const BLOCK: i64 = 512;

/// Usage of a directory tree; zero if it does not exist.
pub fn measure(directory: &Path) -> io::Result<Used> {
    walk(directory, ENTRIES)
}

fn walk(directory: &Path, limit: i64) -> io::Result<Used> {
    let root = match open(directory, flags(), Mode::empty()) {
        Ok(root) => root,
        Err(Errno::ENOENT) => return Ok(Used::default()),
        Err(error) => return Err(error.into()),
    };
    let own = fstat(&root)?;
    let mut walk = Walk {
        used: Used::default(),
        device: own.st_dev,
        linked: BTreeSet::new(),
        open: Vec::new(),
    };
    walk.count(&own);
    walk.enter(root)?;
    while let Some((directory, entries)) = walk.open.last_mut() {
        let Some(entry) = entries.next() else {
            walk.open.pop();
            continue;
        };
        // Entries that vanish meanwhile do not count.
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(found) = fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        if found.st_dev != walk.device {
            continue;
        }
        let below = is_directory(&found)
            .then(|| openat(directory.as_fd(), name, flags(), Mode::empty()).ok())
            .flatten();
        walk.count(&found);
        if let Some(below) = below {
            walk.enter(below)?;
        }
        if walk.used.inodes >= limit {
            // The rest is unknown.
            walk.used.bytes = i64::MAX;
            break;
        }
    }
    Ok(walk.used)
}

const fn flags() -> OFlag {
    OFlag::O_DIRECTORY
        .union(OFlag::O_NOFOLLOW)
        .union(OFlag::O_CLOEXEC)
        .union(OFlag::O_NONBLOCK)
}

fn is_directory(found: &FileStat) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

struct Walk {
    used: Used,
    device: u64,
    linked: BTreeSet<u64>,
    open: Vec<(OwnedFd, OwningIter)>,
}

impl Walk {
    fn count(&mut self, found: &FileStat) {
        if found.st_nlink > 1 && !is_directory(found) {
            if self.linked.contains(&found.st_ino) {
                return;
            }
            if self.linked.len() < LINKED {
                self.linked.insert(found.st_ino);
            }
        }
        self.used = self.used.plus(Used {
            bytes: found.st_blocks.saturating_mul(BLOCK),
            inodes: 1,
        });
    }

    fn enter(&mut self, directory: OwnedFd) -> io::Result<()> {
        if self.open.len() >= DEPTH {
            self.used.bytes = i64::MAX;
            return Ok(());
        }
        let entries = Dir::from_fd(directory.try_clone()?)?.into_iter();
        self.open.push((directory, entries));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_count_once_and_by_what_they_occupy() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("root");
        assert_eq!(measure(&root).unwrap(), Used::default(), "nothing there");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let before = measure(&root).unwrap();
        assert_eq!(before.inodes, 3);
        fs::write(root.join("a/b/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(root.join("a/b/file"), root.join("again")).unwrap();
        fs::File::create(root.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let after = measure(&root).unwrap();
        assert_eq!(after.inodes, 5);
        assert!((100_000..200_000).contains(&(after.bytes - before.bytes)), "{after:?}");
    }

    #[test]
    fn attack_20_many_files_hide_nothing_behind_them() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..20 {
            fs::write(home.path().join(number.to_string()), "x").unwrap();
        }
        assert_eq!(walk(home.path(), 20).unwrap().bytes, i64::MAX);
        assert!(walk(home.path(), 30).unwrap().bytes < 1 << 20);
    }

    #[test]
    fn attack_20_links_lead_nowhere_and_depth_does_not_hide() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(home.path().join("outside"), vec![1; 1 << 20]).unwrap();
        for (target, name) in [("..", "up"), ("/", "top"), ("../outside", "file")] {
            symlink(target, root.join(name)).unwrap();
        }
        let used = measure(&root).unwrap();
        assert_eq!(used.inodes, 4);
        assert!(used.bytes < 1 << 20, "{used:?}");
        let deep = root.join(vec!["d"; DEPTH + 1].join("/"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("hidden"), "x").unwrap();
        assert_eq!(measure(&root).unwrap().bytes, i64::MAX);
        symlink(&root, home.path().join("link")).unwrap();
        assert!(
            measure(&home.path().join("link")).is_err(),
            "the root is no link either"
        );
    }
}
