//! Detects damage in a WAL that SQLite itself would take for its end, silently losing acknowledged
//! writes, and WALs that are shorter than before.
//!
//! The format is <https://www.sqlite.org/fileformat2.html#walformat>. A crash tears at most the
//! transaction that was being written. So if two or more commits follow after, or begin at, the
//! first bad frame, an acknowledged one is among them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// State of a WAL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Log {
    Missing,
    /// Everything it is known to have had is there.
    Whole,
    /// Acknowledged writes are missing.
    Damaged(String),
}

/// Checks the WAL of a database that had so many pages in it, when its salts were `known`.
pub(super) fn check(database: &Path, pages: u64, known: (u32, u32)) -> std::io::Result<Log> {
    let Some(file) = open(database)? else {
        return Ok(Log::Missing);
    };
    let found = read(BufReader::with_capacity(1 << 16, file))?;
    let Found { salts, good, lost, .. } = found;
    Ok(if lost >= 2 {
        Log::Damaged(format!(
            "the write-ahead log has a damaged page with {lost} transactions at or after it"
        ))
    } else if pages > good && salts.is_none_or(|salts| salts == known) {
        Log::Damaged(format!(
            "the write-ahead log was cut off: {good} of its {pages} pages are left"
        ))
    } else {
        Log::Whole
    })
}

/// Current salts of the WAL.
pub(super) fn salts(database: &Path) -> std::io::Result<(u32, u32)> {
    let mut header = [0; HEADER];
    if let Some(mut file) = open(database)? {
        fill(&mut file, &mut header)?;
    }
    Ok((word(&header, 16), word(&header, 20)))
}

/// Path of a database's WAL.
pub(super) fn path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn open(database: &Path) -> std::io::Result<Option<File>> {
    match File::open(path(database)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Debug, Default)]
struct Found {
    salts: Option<(u32, u32)>,
    /// Valid frames before the first bad one.
    good: u64,
    /// Transactions that end at or after that frame.
    lost: usize,
}

fn read(mut log: impl Read) -> std::io::Result<Found> {
    let mut found = Found::default();
    let mut header = [0; HEADER];
    if !fill(&mut log, &mut header)? {
        return Ok(found);
    }
    let order = Order {
        big: word(&header, 0) & 1 == 1,
    };
    let page_size = match word(&header, 8) {
        1 => 65536,
        size @ 512..=65536 => usize::try_from(size).unwrap_or(4096),
        _ => 4096,
    };
    let mut sum = (word(&header, 24), word(&header, 28));
    let sound = word(&header, 0) & !1 == MAGIC && order.sum((0, 0), header.get(..24).unwrap_or_default()) == sum;
    let mut salts = sound.then(|| (word(&header, 16), word(&header, 20)));
    found.salts = salts;
    let mut damaged = !sound;
    let mut frame = vec![0; FRAME_HEADER + page_size];
    while fill(&mut log, &mut frame)? {
        let (expected, own) = (order.frame(sum, &frame), (word(&frame, 16), word(&frame, 20)));
        let ours = *salts.get_or_insert((word(&frame, 8), word(&frame, 12))) == (word(&frame, 8), word(&frame, 12));
        let valid = ours && expected == own;
        // A frame's checksum continues that of the previous frame, so frames after a bad one can
        // still be checked.
        let first_bad = !valid && !damaged;
        damaged |= !valid;
        found.good += u64::from(!damaged);
        if damaged && ours && (valid || first_bad) && word(&frame, 4) != 0 {
            found.lost += 1;
        }
        sum = own;
    }
    Ok(found)
}

/// Returns `false` at the end of the file, even in the middle of a frame.
fn fill(log: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The big-endian word at an offset.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

/// Byte order of the checksums.
#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn sum(self, (mut first, mut second): (u32, u32), bytes: &[u8]) -> (u32, u32) {
        let read = |chunk: [u8; 4]| {
            if self.big {
                u32::from_be_bytes(chunk)
            } else {
                u32::from_le_bytes(chunk)
            }
        };
        for [a, b, c, d, e, f, g, h] in bytes.as_chunks::<8>().0 {
            first = first.wrapping_add(read([*a, *b, *c, *d])).wrapping_add(second);
            second = second.wrapping_add(read([*e, *f, *g, *h])).wrapping_add(first);
        }
        (first, second)
    }

    fn frame(self, sum: (u32, u32), frame: &[u8]) -> (u32, u32) {
        let sum = self.sum(sum, frame.get(..8).unwrap_or_default());
        self.sum(sum, frame.get(FRAME_HEADER..).unwrap_or_default())
    }
}
