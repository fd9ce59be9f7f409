//! Code pages of the program itself.

use std::io;

/// Unmaps the pages of code and constants that the process has touched so far. They stay in the
/// page cache, and pages that are used again come back by minor faults; the kernel may reclaim the
/// others.
pub(crate) fn release() {
    let maps = match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => maps,
        Err(error) => return tracing::debug!(%error, "the own mappings cannot be read"),
    };
    for (start, length) in maps.lines().filter_map(unwritten) {
        #[expect(unsafe_code, reason = "madvise can destroy what was written; see below")]
        // SAFETY: a private mapping of a file, never written by this process since it was mapped:
        // the pages come back with the same contents. The program and its libraries are never
        // unmapped.
        let released = unsafe { libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
        if released != 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "pages of code stay");
        }
    }
}

/// Start and length of a mapping with unmodified contents of a file: code, and the constants at the
/// beginning of a file. Other read-only constants were written once, by relocations at startup.
fn unwritten(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let file = words.nth(2)?;
    let first = rights == "r--p" && offset.bytes().all(|digit| digit == b'0');
    if !file.starts_with('/') || !(rights == "r-xp" || first) {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::{release, unwritten};

    #[test]
    fn only_what_was_never_written_is_let_go() {
        let kept = [
            "55d0c0a0b000-55d0c0a0d000 r--p 0020b000 fe:00 131 /usr/bin/skiff-agent",
            "55d0c0a0d000-55d0c0a0e000 rw-p 0020d000 fe:00 131 /usr/bin/skiff-agent",
            "7ffd1b5f3000-7ffd1b5f5000 r-xp 00000000 00:00 0 [vdso]",
            "7f6a5c000000-7f6a5c021000 r-xp 00000000 00:00 0",
            "",
        ];
        for line in kept {
            assert_eq!(unwritten(line), None, "{line}");
        }
        let gone = [
            "1000-3000 r-xp 00001000 fe:00 131 /usr/bin/skiff-agent",
            "1000-3000 r--p 00000000 fe:00 131 /usr/bin/skiff agent (deleted)",
        ];
        for line in gone {
            assert_eq!(unwritten(line), Some((0x1000, 0x2000)), "{line}");
        }
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        release();
        release();
        assert_eq!("constants are there".len(), 19);
    }
}
