//! Unpacks one layer into its own directory, in the form of an overlayfs lower layer.
//!
//! Confinement (see `confined`): the kernel resolves every path component by component below the
//! directory, without following symbolic links; paths are cleaned lexically first, and the layer's
//! own links in them replaced by where they lead within the layer. Limits (see `Bounded`): bytes,
//! entries, depth, time.

#[cfg(test)]
mod attacks;
mod confined;
mod entries;
mod root;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use tokio::time::Instant;

pub(crate) use entries::{Entry, EntryKind, for_each_entry};

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::{Digest, HashingReader};
use root::Root;

/// A layer was refused.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A path would leave the layer, or is invalid.
    #[error("{path:?}: {problem}")]
    Path {
        /// Path in the archive, truncated to a readable length.
        path: String,
        /// Reason why the path is refused.
        problem: &'static str,
    },
    /// A limit was exceeded.
    #[error("the layer has more than {limit} {unit}")]
    Limit {
        /// Value of the limit.
        limit: u64,
        /// Unit of the limit.
        unit: &'static str,
    },
    /// The layer uses an unsupported feature.
    #[error("{path:?}: {what} is not supported")]
    Unsupported {
        /// Path in the archive.
        path: String,
        /// Name of the feature.
        what: &'static str,
    },
    /// The stream is not a tar archive, or its compression is broken.
    #[error("read the archive")]
    Archive(#[source] io::Error),
    /// A file operation failed.
    #[error("{operation} {path:?}")]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Path in the archive.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Result of unpacking a layer.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Digest of the uncompressed stream.
    pub(crate) diff_id: Digest,
    /// Digest and size of the compressed stream.
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Implied directories, for which the layer has no entry; they take owner, mode and times from
    /// the layers below.
    pub(crate) implicit: Vec<PathBuf>,
}

/// Unpacks the tar stream in `source` (plain, gzip or zstd, detected by its magic number) into the
/// empty directory `target`.
pub(crate) fn unpack(source: impl Read, target: &Path, limits: &Limits) -> Result<Unpacked, UnpackError> {
    let open = |source| UnpackError::Io {
        operation: "open",
        path: target.display().to_string(),
        source,
    };
    let mut root = Root::open(target, limits).map_err(open)?;
    let mut unpacked = walk(source, limits, |entry, data| root.apply(entry, data))?;
    unpacked.implicit = root.finish()?;
    Ok(unpacked)
}

/// Reads and checks the tar stream in `source` to its end, with the same limits, without unpacking:
/// containerd does that.
pub(crate) fn examine(source: impl Read, limits: &Limits) -> Result<Unpacked, UnpackError> {
    walk(source, limits, |_, _| Ok(()))
}

fn walk(
    source: impl Read,
    limits: &Limits,
    visit: impl FnMut(&Entry, &mut dyn Read) -> Result<(), UnpackError>,
) -> Result<Unpacked, UnpackError> {
    let mut transferred = BufReader::with_capacity(128 << 10, HashingReader::new(source));
    let diff_id = {
        let plain = decompress(&mut transferred).map_err(UnpackError::Archive)?;
        let mut plain = Bounded::new(HashingReader::new(plain), limits);
        for_each_entry(&mut plain, limits.entries, visit)?;
        io::copy(&mut plain, &mut io::sink()).map_err(read_error)?;
        plain.inner.finish().0
    };
    io::copy(&mut transferred, &mut io::sink()).map_err(read_error)?;
    let (digest, size) = transferred.into_inner().finish();
    Ok(Unpacked {
        diff_id,
        digest,
        size,
        implicit: Vec::new(),
    })
}

/// Gives implied directories the owner, mode and times that they have in the layers below.
pub(crate) fn inherit(target: &Path, implicit: &[PathBuf], lower: &[PathBuf]) -> Result<(), UnpackError> {
    confined::inherit(target, implicit, lower)
}

/// Reader of the uncompressed stream.
fn decompress<'a, R: io::BufRead + 'a>(mut source: R) -> io::Result<Box<dyn Read + 'a>> {
    let start = source.fill_buf()?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(source))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
        // 128 MiB, the window size that every decoder must support; a larger one would let a stream
        // choose this process's memory.
        decoder.window_log_max(27)?;
        Box::new(decoder)
    } else {
        Box::new(source)
    })
}

/// Opens an archive that may be compressed as a whole.
pub(crate) fn open_plain(path: &Path, limits: &Limits) -> Result<impl Read, ContentError> {
    let file = File::open(path).map_err(ContentError::io("open the archive"))?;
    let plain = decompress(BufReader::with_capacity(128 << 10, file)).map_err(ContentError::io("read the archive"))?;
    Ok(Bounded::new(HashingReader::new(plain), limits))
}

/// Reader that fails once the stream exceeds the limits of size or time.
struct Bounded<R> {
    inner: HashingReader<R>,
    left: u64,
    limit: u64,
    deadline: Instant,
    seconds: u64,
}

impl<R: Read> Bounded<R> {
    fn new(inner: HashingReader<R>, limits: &Limits) -> Self {
        let deadline = Instant::from_std(now() + limits.unpack_time);
        Self {
            inner,
            left: limits.layer_bytes,
            limit: limits.layer_bytes,
            deadline,
            seconds: limits.unpack_time.as_secs(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a bound on real work in a blocking thread, never paused by a test"
)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Exceeded limit, passed through `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("more than {limit} {unit}")]
struct Reached {
    limit: u64,
    unit: &'static str,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if now() > self.deadline.into_std() {
            return Err(io::Error::other(Reached {
                limit: self.seconds,
                unit: "seconds of unpacking",
            }));
        }
        let read = self.inner.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                return Err(io::Error::other(Reached {
                    limit: self.limit,
                    unit: "bytes",
                }));
            }
        }
        Ok(read)
    }
}

/// Distinguishes an exceeded limit from a broken stream.
fn read_error(error: io::Error) -> UnpackError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Reached>()) {
        Some(reached) => UnpackError::Limit {
            limit: reached.limit,
            unit: reached.unit,
        },
        None => UnpackError::Archive(error),
    }
}

/// Path of the archive for errors: printable and truncated.
fn shown(path: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(path.get(..LONGEST).unwrap_or(path)).into_owned();
    if path.len() > LONGEST {
        format!("{text}…")
    } else {
        text
    }
}
