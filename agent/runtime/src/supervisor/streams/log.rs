//! Container logs in CRI format, bounded in memory and on disk.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::libc;
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::clock::{now, rfc3339};

/// Longest part of a line in one record.
const PART: usize = 16 << 10;
/// Size after which a file is rotated, at the next whole line.
const FILE_LIMIT: u64 = 10 << 20;
/// Rotated files that are kept besides the current one.
const ROTATED: usize = 4;
/// Limit of listed files of a log's directory: a container that sees it may fill it.
const LISTED: usize = 4096;

/// Age of a container up to which an attaching client gets its output from the beginning. A kubelet
/// lists containers once a second (`genericPlegRelistPeriod` of pkg/kubelet/kubelet.go): short
/// programs have ended before it lists them, and `kubectl run` shows their logs. Here the start is
/// told at once.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// Limit of earlier output that a client gets, in bytes.
const EARLIER: u64 = 1 << 20;

/// Output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Lists the rotated files of a log, newest first. Their names consist of the log's and the time of
/// rotation, like the kubelet's (`pkg/kubelet/logs/container_log_manager.go`).
pub fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let name = log.file_name().unwrap_or_default();
    let suffix = |path: &Path| {
        let suffix = path.file_name()?.as_bytes().strip_prefix(name.as_bytes())?;
        suffix.strip_prefix(b".").map(<[u8]>::to_owned)
    };
    let entries = std::fs::read_dir(log.parent().unwrap_or(log))?.flatten().take(LISTED);
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((suffix(&entry.path())?, entry.path())))
        .collect();
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Formats the time in the name of a rotated file: `20060102-150405` in Go's notation.
fn stamp(time: SystemTime) -> String {
    let text = rfc3339(time);
    let second = text.get(..19).unwrap_or(&text);
    second.replace(['-', ':'], "").replace('T', "-")
}

/// Splits one stream into records.
pub(crate) struct Lines {
    stream: Stream,
    pending: Vec<u8>,
}

impl Lines {
    pub(crate) const fn new(stream: Stream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
        }
    }

    fn record(&mut self, time: &str, tag: &str, line: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(time.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.stream.name().as_bytes());
        out.push(b' ');
        out.extend_from_slice(tag.as_bytes());
        out.push(b' ');
        out.extend_from_slice(&self.pending);
        out.extend_from_slice(line);
        out.push(b'\n');
        self.pending.clear();
    }

    /// Adds output; complete records are appended to `out`.
    pub(crate) fn push(&mut self, now: SystemTime, mut bytes: &[u8], out: &mut Vec<u8>) {
        let time = rfc3339(now);
        while !bytes.is_empty() {
            let room = PART - self.pending.len();
            let window = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            if let Some(end) = window.iter().position(|byte| *byte == b'\n') {
                let (line, rest) = bytes.split_at(end);
                self.record(&time, "F", line, out);
                bytes = rest.get(1..).unwrap_or_default();
            } else if window.len() == room && bytes.get(room) != Some(&b'\n') && bytes.len() > room {
                self.record(&time, "P", window, out);
                bytes = bytes.get(room..).unwrap_or_default();
            } else if window.len() == room {
                // The part is full and its line may end right here: the next byte may be a newline.
                let full = bytes.get(room) == Some(&b'\n');
                self.record(&time, if full { "F" } else { "P" }, window, out);
                bytes = bytes.get(room + usize::from(full)..).unwrap_or_default();
            } else {
                self.pending.extend_from_slice(bytes);
                bytes = &[];
            }
        }
    }

    /// Returns the earlier output of this stream, as far as the log has it, and the pending part of
    /// a line.
    pub(crate) fn earlier(&self, log: &LogFile) -> Vec<u8> {
        let own = format!("{} ", self.stream.name());
        let mut bytes = Vec::new();
        // A client gets the part that can be read.
        for record in log.tail().unwrap_or_default().split(|byte| *byte == b'\n') {
            let place = record
                .iter()
                .position(|byte| *byte == b' ')
                .map_or(record.len(), |end| end + 1);
            let rest = record.get(place..).unwrap_or_default();
            match rest.strip_prefix(own.as_bytes()) {
                Some([b'F', b' ', line @ ..]) => {
                    bytes.extend_from_slice(line);
                    bytes.push(b'\n');
                }
                Some([b'P', b' ', part @ ..]) => bytes.extend_from_slice(part),
                Some(_) | None => {}
            }
        }
        bytes.extend_from_slice(&self.pending);
        bytes
    }

    /// Writes the rest of a line as a partial record: the stream is at its end.
    pub(crate) fn finish(&mut self, now: SystemTime, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.record(&rfc3339(now), "P", &[], out);
        }
        self.pending = Vec::new();
    }
}

/// Log file, rotated by size. It is opened through its directory's descriptor, and only if it is a
/// regular file: a container that sees the log directory can put a link or a FIFO there.
pub(crate) struct LogFile {
    directory: OwnedFd,
    name: PathBuf,
    file: Option<File>,
    length: u64,
}

impl LogFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("log path {}", path.display()));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(invalid());
        };
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let directory = open(parent, flags, Mode::empty())?;
        let mut log = Self {
            directory,
            name: PathBuf::from(name),
            file: None,
            length: 0,
        };
        log.open_file()?;
        Ok(log)
    }

    fn open_file(&mut self) -> io::Result<()> {
        let flags = OFlag::O_WRONLY
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, &self.name, flags, Mode::from_bits_truncate(0o640))?;
        let found = fstat(&file)?;
        let regular = found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
        if !regular || found.st_nlink != 1 || found.st_uid != geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the log is not a regular file of ours",
            ));
        }
        self.length = u64::try_from(found.st_size).unwrap_or(0);
        self.file = Some(File::from(file));
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let here = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
        let earlier = rotated(&here.join(&self.name))?;
        let mut time = now();
        let to = loop {
            let mut name = self.name.clone().into_os_string();
            name.push(format!(".{}", stamp(time)));
            // Several files may become full within a second.
            if !earlier.iter().any(|path| path.file_name() == Some(&name)) {
                break name;
            }
            time += Duration::from_secs(1);
        };
        match renameat(&self.directory, &self.name, &self.directory, to.as_os_str()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        for old in earlier.iter().skip(ROTATED - 1) {
            let name = old.file_name().unwrap_or_default();
            match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
                // Another process put a directory there.
                Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.open_file()
    }

    /// Returns the last records of the current file. The first of them may be incomplete.
    fn tail(&self) -> io::Result<Vec<u8>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.directory, &self.name, flags, Mode::empty())?);
        let (found, own) = (file.metadata()?, self.file.as_ref().map(File::metadata).transpose()?);
        if own.is_none_or(|own| (own.dev(), own.ino()) != (found.dev(), found.ino())) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = vec![0; usize::try_from(found.len().min(EARLIER)).unwrap_or(0)];
        file.read_exact_at(&mut bytes, found.len().saturating_sub(EARLIER))?;
        Ok(bytes)
    }

    /// Appends records. A full or broken disk loses output, but the container and the caller go on.
    pub(crate) fn write(&mut self, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if self.file.is_none() {
            // It could not be opened after a rotation: rotating again would drop a kept file.
            self.open_file()?;
        }
        if self.length >= FILE_LIMIT {
            self.rotate()?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        };
        if let Err(error) = file.write_all(records) {
            // Part of a record would become the beginning of the next one. Another process may have
            // truncated the file.
            if file.metadata().is_ok_and(|found| found.len() > self.length) {
                file.set_len(self.length).ok();
            }
            return Err(error);
        }
        self.length += u64::try_from(records.len()).unwrap_or(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::{FILE_LIMIT, Lines, LogFile, PART, Stream, rotated};

    fn split(chunks: &[&[u8]]) -> Vec<(String, usize)> {
        let (mut lines, mut out) = (Lines::new(Stream::Stdout), Vec::new());
        for chunk in chunks {
            lines.push(SystemTime::UNIX_EPOCH, chunk, &mut out);
        }
        lines.finish(SystemTime::UNIX_EPOCH, &mut out);
        let prefix = "1970-01-01T00:00:00.000000000Z stdout ".len();
        let records = out.split(|byte| *byte == b'\n').filter(|record| !record.is_empty());
        records
            .map(|record| {
                (
                    String::from_utf8_lossy(&record[prefix..=prefix]).into_owned(),
                    record.len() - prefix - 2,
                )
            })
            .collect()
    }

    fn records(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
        expected
            .iter()
            .map(|(tag, length)| ((*tag).to_owned(), *length))
            .collect()
    }

    #[test]
    fn lines_are_split_at_newlines_and_at_16_kib() {
        assert_eq!(split(&[b"a\nbc\n"]), records(&[("F", 1), ("F", 2)]));
        assert_eq!(split(&[b"a", b"b\n\nc"]), records(&[("F", 2), ("F", 0), ("P", 1)]));
        let long = vec![b'x'; PART * 2 + 5];
        assert_eq!(split(&[&long, b"\n"]), records(&[("P", PART), ("P", PART), ("F", 5)]));
        let mut exact = vec![b'x'; PART];
        exact.push(b'\n');
        assert_eq!(split(&[&exact]), records(&[("F", PART)]));
    }

    #[test]
    fn attack_14_a_line_without_end_stays_bounded_in_memory_and_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let (mut log, mut lines, mut out) = (LogFile::open(&path).unwrap(), Lines::new(Stream::Stdout), Vec::new());
        let chunk = vec![0_u8; 64 << 10];
        for _ in 0..1600 {
            out.clear();
            lines.push(SystemTime::UNIX_EPOCH, &chunk, &mut out);
            log.write(&out).unwrap();
            assert!(lines.pending.capacity() <= 2 * PART && out.capacity() < 256 << 10);
        }
        let mut sizes = Vec::new();
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            sizes.push(entry.unwrap().metadata().unwrap().len());
        }
        assert_eq!(sizes.len(), 5);
        assert!(sizes.iter().all(|size| *size < FILE_LIMIT + (1 << 20)), "{sizes:?}");
    }

    #[test]
    fn attack_33_a_full_disk_leaves_no_half_of_a_record() {
        let home = tempfile::tempdir().unwrap();
        let disk = home.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let record = [&[b'x'; 2999][..], b"\n"].concat();
        let tried = || {
            // Of this thread only, until it exits.
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("disk"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=32k")).unwrap();
            let (path, filler) = (disk.join("0.log"), disk.join("filler"));
            std::fs::write(&filler, vec![0; 8 << 10]).unwrap();
            let mut log = LogFile::open(&path).unwrap();
            let written = (0..100).take_while(|_| log.write(&record).is_ok()).count();
            std::fs::remove_file(&filler).unwrap();
            log.write(&record).unwrap();
            (written, std::fs::read(&path).unwrap())
        };
        let (written, text) = std::thread::scope(|scope| scope.spawn(tried).join().unwrap());
        assert!(written > 0 && written < 100, "{written}");
        assert_eq!(text, record.repeat(written + 1));
    }

    #[test]
    fn rotated_logs_are_named_as_upstreams_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        for (name, text) in [
            ("0.log.20250101-000002", "newer"),
            ("0.log.20250101-000001", "older"),
            ("00.log.1", "another's"),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let mut log = LogFile::open(&path).unwrap();
        let read = |path: &std::path::PathBuf| std::fs::read_to_string(path).unwrap();
        for (number, kept) in [
            (1, "1 newer older"),
            (2, "2 1 newer older"),
            (3, "3 2 1 newer"),
            (6, "6 3 2 1"),
        ] {
            // Several within one second.
            log.write(number.to_string().as_bytes()).unwrap();
            log.rotate().unwrap();
            let all: Vec<String> = rotated(&path).unwrap().iter().map(read).collect();
            assert_eq!(all.join(" "), kept);
        }
        for path in rotated(&path).unwrap() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let stamp = name.strip_prefix("0.log.").unwrap();
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            assert!(
                stamp
                    .split_once('-')
                    .is_some_and(|(day, time)| { (day.len(), time.len()) == (8, 6) && digits(day) && digits(time) }),
                "{name}"
            );
        }
        assert!(directory.path().join("00.log.1").exists());
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_767_225_599);
        assert_eq!(super::stamp(time), "20251231-235959");
    }

    #[test]
    fn a_log_that_cannot_be_opened_keeps_what_was_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut log = LogFile::open(&path).unwrap();
        log.write(b"first").unwrap();
        log.length = FILE_LIMIT;
        log.rotate().unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        log.file = None;
        for _ in 0..5 {
            log.write(b"lost").unwrap_err();
        }
        let kept = rotated(&path).unwrap();
        assert_eq!(std::fs::read(&kept[0]).unwrap(), b"first");
        std::fs::remove_file(&path).unwrap();
        log.write(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
    }

    #[test]
    fn attack_13_a_log_replaced_by_a_link_or_fifo_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("0.log"), directory.path().join("victim"));
        std::fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(LogFile::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        assert!(LogFile::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(LogFile::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    }
}
