//! Finds damage in a write-ahead log that SQLite itself would take for its end, and so lose acknowledged writes in silence.
//!
//! The format is the one of <https://www.sqlite.org/fileformat2.html#walformat>. A crash tears at most the transaction that was
//! being written. So when two or more commits follow after, or begin at, the first bad frame, an acknowledged one is among them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::OpenError;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// Refuses a database whose log is damaged before its end.
pub(super) fn check(database: &Path) -> Result<(), OpenError> {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    let file = match File::open(&name) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OpenError::Create(error)),
    };
    let lost = commits_after_damage(BufReader::with_capacity(1 << 16, file)).map_err(OpenError::Create)?;
    if lost < 2 {
        return Ok(());
    }
    let finding = format!("the write-ahead log has a damaged page with {lost} transactions at or after it");
    Err(OpenError::Damaged {
        path: database.to_owned(),
        finding,
    })
}

/// How many transactions end at or after the first bad frame.
fn commits_after_damage(mut log: impl Read) -> std::io::Result<usize> {
    let mut header = [0; HEADER];
    if !fill(&mut log, &mut header)? {
        return Ok(0);
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
    let mut damaged = !sound;
    let mut commits = 0;
    let mut frame = vec![0; FRAME_HEADER + page_size];
    while fill(&mut log, &mut frame)? {
        let (expected, found) = (order.frame(sum, &frame), (word(&frame, 16), word(&frame, 20)));
        let ours = *salts.get_or_insert((word(&frame, 8), word(&frame, 12))) == (word(&frame, 8), word(&frame, 12));
        let valid = ours && expected == found;
        // A frame carries the sum of the one before it, so each can be judged after a bad one too.
        let first_bad = !valid && !damaged;
        damaged |= !valid;
        if damaged && ours && (valid || first_bad) && word(&frame, 4) != 0 {
            commits += 1;
        }
        sum = found;
    }
    Ok(commits)
}

/// `false` at the end, also in the middle of a frame.
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

/// The byte order of the sums.
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
