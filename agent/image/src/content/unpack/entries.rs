//! Reads the entries of a tar stream, including extension headers, with every length bounded.
//!
//! The `tar` crate reads GNU long names and PAX headers whole, whatever length they claim, and does
//! not support sizes that only a PAX header has; so only its header type is used here.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{UnpackError, read_error, shown};

/// Member of an archive.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Path as in the archive.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryKind,
    /// Permission bits, at most `0o7777`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Target of a symbolic or hard link.
    pub(crate) link: Vec<u8>,
    /// Extended attributes: name and value, in the archive's order.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Size of a regular file.
    pub(crate) size: u64,
    /// Offset of the data in the uncompressed archive.
    pub(crate) offset: u64,
}

/// Type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EntryKind {
    #[default]
    File,
    Directory,
    Symlink,
    Hardlink,
    Fifo,
    Device,
    /// Sparse files, multi-volume parts and unknown types.
    Other,
}

/// Maximum length of a name or link target: `PATH_MAX`.
const PATH_LIMIT: u64 = 4096;
/// Maximum size of all extension headers of one member; Linux allows 64 KiB for one extended
/// attribute.
const EXTENSION_LIMIT: u64 = 1 << 20;
const EXTENSION_UNIT: &str = "bytes in extended headers of one member";

/// Block size of headers and data.
const BLOCK: u64 = 512;

/// Calls `visit` with each member and a reader of its data.
pub(crate) fn for_each_entry<R: Read>(
    source: R,
    limit: u64,
    mut visit: impl FnMut(&Entry, &mut dyn Read) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    let mut members = Members { source, position: 0 };
    let mut extension = Extension::default();
    let mut count = 0_u64;
    while let Some(header) = members.header()? {
        count += 1;
        if count > limit {
            return Err(UnpackError::Limit { limit, unit: "entries" });
        }
        let size = header.entry_size().map_err(UnpackError::Archive)?;
        let kind = header.entry_type();
        if kind.is_gnu_longname() {
            extension.path = Some(members.data(size, |data| read_name(data))?);
            extension.count(size)?;
        } else if kind.is_gnu_longlink() {
            extension.link = Some(members.data(size, |data| read_name(data))?);
            extension.count(size)?;
        } else if kind.is_pax_global_extensions() {
            // Global PAX headers have no records that matter for a layer.
            extension.count(size)?;
            members.data(size, |_| Ok(()))?;
        } else if kind.is_pax_local_extensions() {
            extension.count(size)?;
            let records = members.data(size, |data| read_bounded(data, EXTENSION_LIMIT, EXTENSION_UNIT))?;
            extension.read_records(&records)?;
        } else {
            let entry = std::mem::take(&mut extension).into_entry(&header, members.position)?;
            members.data(entry.size, |data| visit(&entry, data))?;
        }
    }
    Ok(())
}

/// Iterates over the members of an archive.
struct Members<R> {
    source: R,
    /// Bytes read so far.
    position: u64,
}

impl<R: Read> Members<R> {
    /// Next header; `None` at a block of zeros or at the end of the stream.
    fn header(&mut self) -> Result<Option<Header>, UnpackError> {
        let mut header = Header::new_old();
        let mut block = (&mut self.source).take(BLOCK);
        let mut bytes = Vec::with_capacity(header.as_bytes().len());
        block.read_to_end(&mut bytes).map_err(read_error)?;
        self.position = self.position.saturating_add(bytes.len() as u64);
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if bytes.len() != header.as_bytes().len() {
            return Err(malformed("a header is not whole"));
        }
        header.as_mut_bytes().copy_from_slice(&bytes);
        // The checksum field itself counts as spaces.
        let counted = |(at, byte): (usize, &u8)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte });
        let sum: u32 = bytes.iter().enumerate().map(counted).sum();
        if header.cksum().map_err(UnpackError::Archive)? != sum {
            return Err(malformed("the checksum of a header is wrong"));
        }
        Ok(Some(header))
    }

    /// Calls `visit` with a reader of the entry's data, then seeks to the next header.
    fn data<T>(
        &mut self,
        size: u64,
        visit: impl FnOnce(&mut dyn Read) -> Result<T, UnpackError>,
    ) -> Result<T, UnpackError> {
        let end = self.position.checked_add(size);
        let end = end.and_then(|end| end.checked_next_multiple_of(BLOCK));
        let end = end.ok_or_else(|| malformed("a size is too large"))?;
        let mut data = (&mut self.source).take(size);
        let visited = visit(&mut data)?;
        let missing = data.limit();
        let rest = end
            .saturating_sub(self.position)
            .saturating_sub(size)
            .saturating_add(missing);
        let skipped = io::copy(&mut (&mut self.source).take(rest), &mut io::sink()).map_err(read_error)?;
        // The last block of an archive may lack its padding.
        if skipped < missing {
            return Err(malformed("the data of a member are not whole"));
        }
        self.position = end;
        Ok(visited)
    }
}

fn read_bounded(source: &mut dyn Read, limit: u64, unit: &'static str) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > limit {
        Err(UnpackError::Limit { limit, unit })
    } else {
        Ok(bytes)
    }
}

fn read_name(source: &mut dyn Read) -> Result<Vec<u8>, UnpackError> {
    let mut name = read_bounded(source, PATH_LIMIT, "bytes in a name")?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// Fields of extension headers that apply to the next member.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
    size: Option<u64>,
    modified: Option<(i64, u32)>,
    sparse: bool,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Size of the extension headers.
    bytes: u64,
}

impl Extension {
    /// Counts a header by its declared size before it is read: headers accumulate until their
    /// member follows.
    fn count(&mut self, size: u64) -> Result<(), UnpackError> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > EXTENSION_LIMIT {
            return Err(UnpackError::Limit {
                limit: EXTENSION_LIMIT,
                unit: EXTENSION_UNIT,
            });
        }
        Ok(())
    }

    /// Parses PAX records, `LENGTH KEY=VALUE\n`. Values are bytes and may contain newlines.
    fn read_records(&mut self, mut records: &[u8]) -> Result<(), UnpackError> {
        while !records.is_empty() {
            let (key, value, rest) =
                split_record(records).ok_or_else(|| malformed("an extended header is malformed"))?;
            self.set(key, value)?;
            records = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), UnpackError> {
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let checked =
            |number: Option<u64>| number.ok_or_else(|| malformed("a number in an extended header is malformed"));
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"uid" => self.uid = Some(checked(number())?),
            b"gid" => self.gid = Some(checked(number())?),
            b"size" => self.size = Some(checked(number())?),
            b"mtime" => self.modified = parse_time(value),
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    fn into_entry(self, header: &Header, offset: u64) -> Result<Entry, UnpackError> {
        let path = self.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let number = |given: Option<u64>, header: io::Result<u64>| match given {
            Some(number) => Ok(number),
            None => header.map_err(UnpackError::Archive),
        };
        let id = |number: u64| u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        if self.sparse {
            return Err(UnpackError::Unsupported {
                path: shown(&path),
                what: "a sparse file",
            });
        }
        let kind = header.entry_type();
        let bare = kind.is_dir() || kind.is_symlink() || kind.is_hard_link() || kind.is_fifo();
        let size = if bare || kind.is_character_special() || kind.is_block_special() {
            // These types have no data, whatever size they declare, as in other tar readers.
            0
        } else {
            // A size that is too large for the header's field is only in the PAX header.
            number(self.size, header.entry_size())?
        };
        let owner = || UnpackError::Path {
            path: shown(&path),
            problem: "its owner is not a 32-bit number",
        };
        let seconds = i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0);
        Ok(Entry {
            kind: kind_of(kind, &path),
            mode: header.mode().map_err(UnpackError::Archive)? & 0o7777,
            uid: id(number(self.uid, header.uid())?).ok_or_else(owner)?,
            gid: id(number(self.gid, header.gid())?).ok_or_else(owner)?,
            modified: self.modified.unwrap_or((seconds, 0)),
            link: self
                .link
                .unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned()),
            attributes: self.attributes,
            size,
            offset,
            path,
        })
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum of tar has a hidden variant")]
fn kind_of(kind: EntryType, path: &[u8]) -> EntryKind {
    match kind {
        // Archives older than ustar mark a directory by a trailing slash alone.
        EntryType::Regular if path.ends_with(b"/") => EntryKind::Directory,
        EntryType::Regular | EntryType::Continuous => EntryKind::File,
        EntryType::Directory => EntryKind::Directory,
        EntryType::Symlink => EntryKind::Symlink,
        EntryType::Link => EntryKind::Hardlink,
        EntryType::Fifo => EntryKind::Fifo,
        EntryType::Char | EntryType::Block => EntryKind::Device,
        _ => EntryKind::Other,
    }
}

fn malformed(problem: &'static str) -> UnpackError {
    UnpackError::Archive(io::Error::new(io::ErrorKind::InvalidData, problem))
}

/// Splits off the first record: key, value, rest.
fn split_record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(records.get(..space)?).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((body.get(..equals)?, body.get(equals + 1..)?, rest))
}

/// `SECONDS[.FRACTION]`
fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanoseconds: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}
