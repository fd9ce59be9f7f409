//! Random access to the members of an image archive, or to the files of a directory with the same
//! layout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::unpack::{EntryKind, UnpackError, for_each_entry, open_plain};
use crate::store::layer::Blob;

/// Image archive, uncompressed and with its members located, or a directory with the same files.
pub(crate) struct Archive {
    file: File,
    members: BTreeMap<String, Member>,
}

/// Magic numbers of compression formats that are recognized but not supported.
const FOREIGN: [(&[u8], &str); 2] = [(b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];

enum Member {
    Data { offset: u64, size: u64 },
    Link(String),
    File(PathBuf),
}

impl Archive {
    /// Opens `path`. A compressed archive is first decompressed into `staging`.
    pub(crate) fn open(path: &Path, staging: &Path, limits: &Limits) -> Result<Self, ContentError> {
        let mut magic = [0_u8; 6];
        let mut file = File::open(path).map_err(ContentError::io("open the archive"))?;
        let metadata = file.metadata().map_err(ContentError::io("read the archive"))?;
        if metadata.is_dir() {
            let members = list(path).map_err(ContentError::io("read the directory"))?;
            return Ok(Self { file, members });
        }
        let read = file.read(&mut magic).map_err(ContentError::io("read the archive"))?;
        if let Some((_, name)) = FOREIGN.iter().find(|(signature, _)| magic.starts_with(signature)) {
            return Err(ContentError::Compression(name));
        }
        let compressed = magic.starts_with(&[0x1f, 0x8b]) || magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        if compressed && read >= 2 {
            let plain = staging.join("archive.tar");
            let mut target = File::create_new(&plain).map_err(ContentError::io("write the archive"))?;
            io::copy(&mut open_plain(path, limits)?, &mut target)
                .map_err(ContentError::io("decompress the archive"))?;
            file = File::open(&plain).map_err(ContentError::io("open the archive"))?;
        }
        file.rewind().map_err(ContentError::io("read the archive"))?;
        let members = locate(&file, limits).map_err(|source| ContentError::Unpack {
            layer: "archive".to_owned(),
            source,
        })?;
        Ok(Self { file, members })
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Data and size of a member. A docker-save archive may hold one link in place of a repeated
    /// layer.
    pub(crate) fn member(&self, name: &str) -> Result<(Blob, u64), ContentError> {
        let missing = || ContentError::Missing(name.chars().take(200).collect());
        let mut member = self.members.get(name).ok_or_else(missing)?;
        if let Member::Link(target) = member {
            member = self.members.get(target).ok_or_else(missing)?;
        }
        let (file, offset, size) = match member {
            Member::Data { offset, size } => (self.file.try_clone(), *offset, *size),
            Member::File(path) => {
                let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
                let file = File::from(opened.map_err(|error| ContentError::io("read the directory")(error.into()))?);
                let size = file.metadata().map_err(ContentError::io("read the directory"))?.len();
                (Ok(file), 0, size)
            }
            Member::Link(_) => return Err(missing()),
        };
        let file = file.map_err(ContentError::io("read the archive"))?;
        Ok((Blob::new(file, offset, size), size))
    }

    /// Reads a whole member of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, what: &'static str, limit: u64) -> Result<Vec<u8>, ContentError> {
        let (mut data, size) = self.member(name)?;
        if size > limit {
            return Err(ContentError::TooLarge { what, limit });
        }
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes)
            .map_err(ContentError::io("read the archive"))?;
        Ok(bytes)
    }
}

/// Maximum length of a member's name. Longer ones name no part of an image, and all names are in
/// memory at once.
const NAME: usize = 4096;

/// Lists the regular files of an OCI image layout or a docker-save archive, at most three
/// directories deep (`blobs/sha256/DIGEST`). Links are not followed.
fn list(directory: &Path) -> io::Result<BTreeMap<String, Member>> {
    let (mut members, mut left) = (BTreeMap::new(), vec![(directory.to_owned(), String::new(), 0)]);
    while let Some((directory, prefix, depth)) = left.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if kind.is_file() {
                members.insert(name, Member::File(entry.path()));
            } else if kind.is_dir() && depth < 3 {
                left.push((entry.path(), format!("{name}/"), depth + 1));
            }
        }
    }
    Ok(members)
}

fn locate(file: &File, limits: &Limits) -> Result<BTreeMap<String, Member>, UnpackError> {
    let mut members = BTreeMap::new();
    let source = io::BufReader::new(file);
    for_each_entry(source, limits.entries.min(100_000), |entry, _| {
        if entry.path.len().max(entry.link.len()) > NAME {
            return Ok(());
        }
        let Ok(name) = std::str::from_utf8(&entry.path) else {
            return Ok(());
        };
        let name = name.trim_start_matches("./").to_owned();
        match entry.kind {
            EntryKind::File => {
                members.insert(
                    name,
                    Member::Data {
                        offset: entry.offset,
                        size: entry.size,
                    },
                );
            }
            EntryKind::Symlink | EntryKind::Hardlink => {
                if let Ok(link) = std::str::from_utf8(&entry.link) {
                    // A symbolic link (`../ID/layer.tar`) is relative to its directory; a hard link
                    // names its target in full.
                    let target = link.strip_prefix("../").unwrap_or(link).to_owned();
                    members.insert(name, Member::Link(target));
                }
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Device | EntryKind::Other => {}
        }
        Ok(())
    })?;
    Ok(members)
}
