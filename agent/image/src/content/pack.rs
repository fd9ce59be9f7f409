//! Packs the directory of a layer into a tar stream: the counterpart of `unpack`.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{lgetxattr, llistxattr};
use tar::{Builder, EntryType, Header};

/// Device number of a whiteout.
const WHITEOUT: u64 = 0;
const OPAQUE: &str = "trusted.overlay.opaque";
/// Prefix of overlayfs' own extended attributes.
const OVERLAY: &str = "trusted.overlay.";
/// Maximum size of an extended attribute, and of the list of their names (`XATTR_SIZE_MAX`,
/// `XATTR_LIST_MAX`).
const ATTRIBUTE_LIMIT: usize = 64 << 10;

/// Writes everything below a directory, sorted by name, so that the same directory gives the same
/// bytes.
pub(crate) fn pack(layer: &Path, target: impl Write) -> io::Result<()> {
    let mut packing = Packing {
        builder: Builder::new(target),
        linked: BTreeMap::new(),
    };
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        let mut below = Vec::new();
        let mut names = Vec::new();
        for entry in fs::read_dir(layer.join(&directory))? {
            names.push(entry?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let path = directory.join(name);
            let found = fs::symlink_metadata(layer.join(&path))?;
            packing.entry(layer, &path, &found)?;
            if found.is_dir() {
                below.push(path);
            }
        }
        left.extend(below.into_iter().rev());
    }
    packing.builder.into_inner()?.flush()
}

struct Packing<W: Write> {
    builder: Builder<W>,
    /// First paths of files with several hard links.
    linked: BTreeMap<u64, PathBuf>,
}

impl<W: Write> Packing<W> {
    fn entry(&mut self, layer: &Path, path: &Path, found: &Metadata) -> io::Result<()> {
        let kind = found.file_type();
        let mut header = header(found);
        if kind.is_char_device() && found.rdev() == WHITEOUT {
            let mut name = std::ffi::OsString::from(".wh.");
            name.push(path.file_name().unwrap_or_default());
            return self.plain(mark(Header::new_gnu()), &path.with_file_name(name), io::empty());
        }
        if let Some(first) = self.linked.get(&found.ino()).filter(|_| !kind.is_dir()) {
            header.set_entry_type(EntryType::Link);
            return self.builder.append_link(&mut header, path, first);
        }
        if found.nlink() > 1 && !kind.is_dir() {
            self.linked.insert(found.ino(), path.to_owned());
        }
        let real = layer.join(path);
        let opaque = self.attributes(&real)?;
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.builder.append_link(&mut header, path, fs::read_link(real)?);
        }
        if kind.is_file() {
            header.set_entry_type(EntryType::Regular);
            header.set_size(found.len());
            return self.plain(header, path, File::open(real)?);
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.plain(header, path, io::empty())?;
            if opaque {
                self.plain(mark(Header::new_gnu()), &path.join(".wh..wh..opq"), io::empty())?;
            }
            return Ok(());
        }
        header.set_entry_type(if kind.is_fifo() {
            EntryType::Fifo
        } else if kind.is_block_device() {
            EntryType::Block
        } else if kind.is_char_device() {
            EntryType::Char
        } else {
            // Sockets are not archived.
            return Ok(());
        });
        header.set_device_major(rustix::fs::major(found.rdev()))?;
        header.set_device_minor(rustix::fs::minor(found.rdev()))?;
        self.plain(header, path, io::empty())
    }

    fn plain(&mut self, mut header: Header, path: &Path, data: impl io::Read) -> io::Result<()> {
        self.builder.append_data(&mut header, path, data)
    }

    /// Writes the extended attributes of the next entry. Returns whether the entry is an opaque
    /// directory.
    fn attributes(&mut self, path: &Path) -> io::Result<bool> {
        let mut names = vec![0; ATTRIBUTE_LIMIT];
        let length = match llistxattr(path, &mut names[..]) {
            Ok(length) => length,
            Err(error) if error == rustix::io::Errno::OPNOTSUPP => 0,
            Err(error) => return Err(error.into()),
        };
        names.truncate(length);
        let (mut opaque, mut records) = (false, Vec::new());
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let key = std::ffi::OsStr::from_bytes(name);
            let mut value = vec![0; ATTRIBUTE_LIMIT];
            let length = lgetxattr(path, key, &mut value[..])?;
            value.truncate(length);
            if name == OPAQUE.as_bytes() {
                opaque |= value == b"y";
            } else if !name.starts_with(OVERLAY.as_bytes()) {
                records.extend(record(&[b"SCHILY.xattr.", name].concat(), &value));
            }
        }
        if !records.is_empty() {
            let mut header = mark(Header::new_ustar());
            header.set_entry_type(EntryType::XHeader);
            header.set_size(records.len() as u64);
            self.builder
                .append_data(&mut header, "attributes", records.as_slice())?;
        }
        Ok(opaque)
    }
}

/// Turns a header into that of an empty file of root, without a time.
pub(crate) fn mark(mut header: Header) -> Header {
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

fn header(found: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(found.mode() & 0o7777);
    header.set_uid(found.uid().into());
    header.set_gid(found.gid().into());
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
    header.set_size(0);
    header
}

/// PAX record `LENGTH KEY=VALUE\n`; the length includes its own digits.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} ").as_bytes(), key, b"=", value, b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::content::unpack;

    #[test]
    fn what_was_unpacked_is_packed_the_same() {
        assert!(rustix::process::geteuid().is_root(), "devices need root");
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (home.path().join("one"), home.path().join("other"));
        fs::create_dir_all(one.join("etc/long").join("x".repeat(120))).unwrap();
        fs::write(one.join("etc/file"), "text").unwrap();
        fs::hard_link(one.join("etc/file"), one.join("etc/name")).unwrap();
        std::os::unix::fs::symlink("../etc/file", one.join("etc/link")).unwrap();
        std::os::unix::fs::chown(one.join("etc/file"), Some(1_000_000_000), Some(77)).unwrap();
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, one.join("gone"), kind, mode, WHITEOUT).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(one.join("etc"), OPAQUE, b"y", flags).unwrap();
        rustix::fs::lsetxattr(one.join("etc/file"), "user.note", b"a\nb", flags).unwrap();
        let packed = |of: &Path| {
            let mut bytes = Vec::new();
            pack(of, &mut bytes).unwrap();
            bytes
        };
        let bytes = packed(&one);
        fs::create_dir(&other).unwrap();
        unpack::unpack(bytes.as_slice(), &other, &Limits::default()).unwrap();
        assert!(packed(&other) == bytes, "it is packed otherwise");
        let found = fs::symlink_metadata(other.join("etc/name")).unwrap();
        assert_eq!((found.nlink(), found.uid(), found.gid()), (2, 1_000_000_000, 77));
        let gone = fs::symlink_metadata(other.join("gone")).unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    }
}
