//! Log of a daemon on standard error, or in the file that this is, written by its own thread.
//!
//! Logging never blocks: a full pipe, a stuck journal or a frozen file system must not delay a
//! request. Lines that exceed the buffer are dropped and counted, and the count is logged once
//! writing succeeds again. Panics are logged the same way, since the standard library's own message
//! would block.

use std::backtrace::Backtrace;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use nix::unistd::{dup2_stderr, dup2_stdout};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;

/// Maximum bytes of buffered lines.
const MOST_BYTES: usize = 1 << 20;
/// Bytes that a buffered line takes besides its text.
const OVERHEAD: usize = 64;
/// Time that the process waits for the last lines when it exits.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Variable with the path of the file that standard error is; `skiff up` sets it.
const FILE: &str = "SKIFF_LOG_FILE";
/// Size of that file at which it is put aside as `FILE.1`, in place of an earlier one.
const LARGEST: u64 = 32 << 20;

/// Starts logging what passes `filter` to standard error. Dropping the returned guard waits, for a
/// second at most, until the last lines are written.
pub fn start(filter: EnvFilter) -> io::Result<Guard> {
    let file = std::env::var_os(FILE).and_then(|path| Rotated::open(path.into(), LARGEST, redirect).ok());
    let (log, guard) = match file {
        Some(file) => to(file)?,
        None => to(io::stderr())?,
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(move || log.clone())
        .init();
    std::panic::set_hook(Box::new(|panic| error!(backtrace = %Backtrace::capture(), "{panic}")));
    Ok(guard)
}

/// Makes a file the standard output and error of this process, which others write to as well: what
/// is not logged, such as a failed allocation, would go on into the file that was put aside.
fn redirect(file: &File) {
    // After a failure they stay on the file that was put aside.
    dup2_stdout(file).and_then(|()| dup2_stderr(file)).ok();
}

fn to(writer: impl Write + Send + 'static) -> io::Result<(Log, Guard)> {
    let (lines, waiting) = channel();
    let log = Log {
        lines,
        bytes: Arc::default(),
        dropped: Arc::default(),
    };
    let own = log.clone();
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || own.write_to(writer, &waiting))?;
    let guard = Guard(log.lines.clone());
    Ok((log, guard))
}

/// File that never grows far beyond a size: it is put aside then.
struct Rotated {
    path: PathBuf,
    file: File,
    size: u64,
    largest: u64,
    /// Told of each file that takes the place of one put aside.
    replaced: fn(&File),
}

impl Rotated {
    fn open(path: PathBuf, largest: u64, replaced: fn(&File)) -> io::Result<Self> {
        let file = Self::open_file(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            size,
            largest,
            replaced,
        })
    }

    fn open_file(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).open(path)
    }
}

impl Write for Rotated {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.size >= self.largest {
            self.size = 0;
            // A file that cannot be put aside grows on, until the next attempt; one that could not be
            // opened after it was put aside is opened then.
            drop(std::fs::rename(&self.path, self.path.with_added_extension("1")));
            if let Ok(file) = Self::open_file(&self.path) {
                (self.replaced)(&file);
                self.file = file;
            }
        }
        let written = self.file.write(line)?;
        self.size += u64::try_from(written).unwrap_or(0);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

enum Message {
    Line(Vec<u8>),
    /// Acknowledged when all earlier lines are written.
    Flush(SyncSender<()>),
}

/// Non-blocking writer; each write is one line.
#[derive(Debug, Clone)]
struct Log {
    lines: Sender<Message>,
    bytes: Arc<AtomicUsize>,
    /// Lines dropped since the last report.
    dropped: Arc<AtomicU64>,
}

impl Log {
    fn write_to(&self, mut writer: impl Write, waiting: &Receiver<Message>) {
        // Never ends, since it holds a sender itself, for its own reports. The process exits
        // without joining it.
        for message in waiting {
            let line = match message {
                Message::Line(line) => line,
                Message::Flush(done) => {
                    // The receiver is gone if this took too long.
                    done.send(()).ok();
                    continue;
                }
            };
            let written = writer.write_all(&line).and_then(|()| writer.flush());
            let left = self.bytes.fetch_sub(line.len() + OVERHEAD, Ordering::Relaxed);
            if written.is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            } else if left < MOST_BYTES / 2 && self.dropped.load(Ordering::Relaxed) > 0 {
                let lines = self.dropped.swap(0, Ordering::Relaxed);
                warn!(
                    lines,
                    "lines of this log are missing: they came while it could not be written"
                );
            }
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let size = line.len() + OVERHEAD;
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        let fits = before.saturating_add(size) <= MOST_BYTES;
        if !(fits && self.lines.send(Message::Line(line.to_vec())).is_ok()) {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Flushes the last lines when dropped.
#[derive(Debug)]
pub struct Guard(Sender<Message>);

impl Drop for Guard {
    fn drop(&mut self) {
        let (done, written) = sync_channel(1);
        if self.0.send(Message::Flush(done)).is_ok() {
            // A log that cannot be written must not keep the process from exiting.
            written.recv_timeout(LAST_LINES).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Writer that blocks while the test holds its lock.
    #[derive(Clone, Default)]
    struct Frozen(Arc<Mutex<Vec<u8>>>);

    impl Frozen {
        fn hold(&self) -> MutexGuard<'_, Vec<u8>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Write for Frozen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hold().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_blocks_costs_lines_and_tells_how_many() {
        let file = Frozen::default();
        let (log, guard) = to(file.clone()).unwrap();
        let own = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || own.clone());
        // The writer thread reports through it.
        subscriber.init();
        let text = "x".repeat(1000);
        let held = file.hold();
        for _ in 0..3000 {
            warn!(text);
        }
        let waiting = log.bytes.load(Ordering::Relaxed);
        assert!(waiting <= MOST_BYTES, "{waiting}");
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!(dropped > 1900, "{dropped}");
        // The exit of the process does not wait for it.
        drop(Guard(log.lines.clone()));
        drop(held);
        // Once for the buffered line, once for the report that it caused.
        drop(Guard(log.lines.clone()));
        drop(guard);
        let written = String::from_utf8(file.hold().clone()).unwrap();
        assert_eq!(
            written.matches("text=").count() + usize::try_from(dropped).unwrap(),
            3000
        );
        let told = format!("lines of this log are missing: they came while it could not be written lines={dropped}");
        assert!(written.contains(&told), "{}", written.replace(&text, "x"));
    }

    #[test]
    fn a_large_file_is_put_aside() {
        let path = std::env::temp_dir().join(format!("skiff-log-{}", std::process::id()));
        let aside = path.with_added_extension("1");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        std::fs::write(&path, "from before\n").unwrap();
        let told = |mut file: &File| file.write_all(b"begun\n").unwrap();
        let mut file = Rotated::open(path.clone(), 16, told).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(
            (read(&aside), read(&path)),
            ("from before\none\n".to_owned(), "begun\ntwo\nthree\n".to_owned())
        );
        for path in [path, aside] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
