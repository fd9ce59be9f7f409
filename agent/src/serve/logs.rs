//! `/containerLogs/NAMESPACE/POD/CONTAINER`: log of a container, from its file, and as it grows.

mod growth;
pub(super) mod node;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use agent_plan::container::log::{self, Options};
use agent_plan::pod::pods;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tracing::debug;

use super::logs::growth::Growth;
use super::streams;
use crate::confined;
use crate::context::Context;
use crate::pod::instances::Run;
use crate::pod::orders::{Order, Question};

const CHUNK: usize = 64 * 1024;
const LONGEST_RECORD: usize = 1024 * 1024;
const AHEAD: usize = 4;

type Sink = mpsc::Sender<Result<Bytes, io::Error>>;

pub(super) async fn answer(
    State(context): State<Arc<Context>>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let pod = context.pod(&namespace, &name);
    let Some(pod) = &pod else {
        return (StatusCode::NOT_FOUND, format!("pod \"{name}\" does not exist\n")).into_response();
    };
    if pods::container(pod, &container).is_none() {
        let message = format!("container \"{container}\" not found in pod \"{name}\"\n");
        return (StatusCode::NOT_FOUND, message).into_response();
    }
    let parameters = parameters(query.as_deref().unwrap_or_default());
    let options = match Options::parse(&parameters, context.now()) {
        Ok(options) => options,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let attempt = match find(&context, pod, &container, options.previous).await {
        Ok(attempt) => attempt,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let directory = context.config.logs.of(pod).join(&container);
    let path = directory.join(format!("{attempt}.log"));
    let file = match opened(&path).await {
        Ok(file) => Arc::new(file),
        Err(refusal) => return refusal.into_response(),
    };
    let (sink, stream) = mpsc::channel::<Result<Bytes, io::Error>>(AHEAD);
    let run = Run {
        pod: pods::uid(pod).to_owned(),
        container,
        attempt,
    };
    let mut reader = Reader {
        file,
        path,
        options,
        sink,
        sent: 0,
        buffer: Vec::new(),
        line_begins: true,
        context,
        run,
    };
    // The reader runs while the body is polled, and ends with it.
    let reading = async move {
        if let Err(error) = reader.run().await {
            debug!(%error, "a log ends early");
        }
        None::<Result<Bytes, io::Error>>
    };
    let reading = futures::stream::once(reading).filter_map(std::future::ready);
    let body = Body::from_stream(futures::stream::select(ReceiverStream::new(stream), reading));
    if streams::log::is_wanted(&request) {
        return streams::log::answer(request, body);
    }
    ([("Content-Type", "text/plain")], body).into_response()
}

/// Opens a log. A container may have replaced the file.
async fn opened(path: &FilePath) -> Result<File, (StatusCode, &'static str)> {
    let opening = path.to_owned();
    let opened = confined::aside(move || confined::open(&opening)).await;
    opened.map_err(|error| {
        debug!(path = %path.display(), %error, "a log cannot be read");
        (StatusCode::NOT_FOUND, "the log cannot be read\n")
    })
}

pub(super) fn parameters(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let bytes = text.replace('+', " ");
        percent_encoding::percent_decode_str(&bytes)
            .decode_utf8_lossy()
            .into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

/// Returns the attempt whose log is requested. The pod's worker knows it without waiting for the
/// API.
async fn find(context: &Context, pod: &Pod, container: &str, previous: bool) -> Result<u32, String> {
    let (answer, answered) = oneshot::channel();
    let question = Question {
        container: container.to_owned(),
        previous,
        answer,
    };
    let gone = |what: &str| format!("{what} of pod \"{}\" cannot be asked", pods::name(pod));
    let orders = context.orders.get().ok_or_else(|| gone("the workers"))?;
    let order = Order::Ask(pods::uid(pod).to_owned(), question);
    orders.send(order).await.map_err(|_ended| gone("the workers"))?;
    match answered.await {
        Ok(answer) => answer,
        // The worker has just ended, or has too many requests.
        Err(_) => Err(gone("the worker")),
    }
}

struct Reader {
    file: Arc<File>,
    path: PathBuf,
    options: Options,
    sink: Sink,
    sent: u64,
    buffer: Vec<u8>,
    line_begins: bool,
    context: Arc<Context>,
    run: Run,
}

impl Reader {
    async fn run(&mut self) -> io::Result<()> {
        if let Some(lines) = self.options.tail_lines {
            let file = Arc::clone(&self.file);
            confined::aside(move || seek_to_tail(&file, lines)).await?;
        }
        if !self.options.follow {
            self.drain().await?;
            return Ok(());
        }
        let mut running = self.context.running.subscribe();
        let growth = Growth::of(&self.path);
        loop {
            let alive = running.borrow_and_update().contains_key(&self.run);
            if !self.drain().await? {
                return Ok(());
            }
            let (path, file) = (self.path.clone(), Arc::clone(&self.file));
            if let Some(next) = confined::aside(move || successor(&path, &file)).await? {
                // The log is complete: what was written after the last read is sent first.
                if !self.drain().await? {
                    return Ok(());
                }
                self.file = Arc::new(next);
                continue;
            }
            if !alive {
                return Ok(());
            }
            tokio::select! {
                grown = growth.wait() => grown?,
                changed = running.changed() => if changed.is_err() { return Ok(()) },
                () = self.sink.closed() => return Ok(()),
            }
        }
    }

    /// Sends available records; returns whether the client is still connected.
    async fn drain(&mut self) -> io::Result<bool> {
        loop {
            let file = Arc::clone(&self.file);
            let chunk = confined::aside(move || read_chunk(&file)).await?;
            if chunk.is_empty() {
                return Ok(true);
            }
            self.buffer.extend_from_slice(&chunk);
            let mut out = Vec::with_capacity(chunk.len());
            self.render(&mut out);
            if self.buffer.len() > LONGEST_RECORD {
                self.buffer.clear();
            }
            let left = self.options.limit_bytes.map(|limit| limit.saturating_sub(self.sent));
            if let Some(left) = left {
                out.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            }
            self.sent = self.sent.saturating_add(u64::try_from(out.len()).unwrap_or(0));
            if !out.is_empty() && self.sink.send(Ok(out.into())).await.is_err() {
                return Ok(false);
            }
            if self.options.limit_bytes.is_some_and(|limit| self.sent >= limit) {
                return Ok(false);
            }
        }
    }

    /// Moves complete records out of the buffer.
    fn render(&mut self, out: &mut Vec<u8>) {
        let Some(end) = self.buffer.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let rest = self.buffer.split_off(end + 1);
        let whole = std::mem::replace(&mut self.buffer, rest);
        for line in whole.split(|byte| *byte == b'\n') {
            let Some(record) = log::parse(line) else { continue };
            if self.options.since.is_some_and(|since| record.time < since) {
                continue;
            }
            self.options.render(&record, self.line_begins, out);
            self.line_begins = record.complete;
        }
    }
}

/// Returns the file in which a log continues after a rotated one.
fn successor(path: &FilePath, of: &File) -> io::Result<Option<File>> {
    let (own, written) = (of.metadata()?.ino(), of.metadata()?.modified()?);
    let open = |path: &FilePath| match confined::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    let mut newer = None;
    // It may have been rotated more than once, for a slow client.
    let rotated = runtime::rotated(path)?;
    for (number, path) in std::iter::once(path)
        .chain(rotated.iter().map(PathBuf::as_path))
        .enumerate()
    {
        let file = open(path)?;
        let found = file.as_ref().map(File::metadata).transpose()?;
        if found.as_ref().is_some_and(|found| found.ino() == own) {
            return Ok(newer);
        }
        // An older file was read before: the log was recreated and not rotated.
        let modified = found.map(|found| found.modified()).transpose()?;
        if number > 0 && modified.is_none_or(|modified| modified < written) {
            break;
        }
        newer = file;
    }
    // The file was already removed.
    Ok(newer)
}

/// Reads the next chunk; empty at the end.
fn read_chunk(mut file: &File) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; CHUNK];
    let length = file.read(&mut chunk)?;
    chunk.truncate(length);
    Ok(chunk)
}

/// Seeks to the beginning of the last `lines` records.
fn seek_to_tail(mut file: &File, lines: u64) -> io::Result<()> {
    let mut position = file.metadata()?.len();
    let mut missing = lines.saturating_add(1);
    let mut chunk = vec![0; CHUNK];
    while position > 0 {
        let size = position.min(CHUNK as u64);
        let begin = position - size;
        file.seek(SeekFrom::Start(begin))?;
        let part = chunk
            .get_mut(..usize::try_from(size).unwrap_or(CHUNK))
            .unwrap_or_default();
        file.read_exact(part)?;
        for (index, byte) in part.iter().enumerate().rev() {
            if *byte == b'\n' {
                missing -= 1;
                if missing == 0 {
                    file.seek(SeekFrom::Start(begin + index as u64 + 1))?;
                    return Ok(());
                }
            }
        }
        position = begin;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::{File, FilePath, StatusCode, opened, successor};

    #[tokio::test]
    async fn attack_13_a_log_replaced_by_a_link_or_fifo_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("0.log"), directory.path().join("victim"));
        std::fs::write(&victim, "secret").unwrap();
        std::fs::write(&path, "own").unwrap();
        let followed = opened(&path).await.unwrap();
        let put: [fn(&FilePath, &FilePath); 4] = [
            |path, victim| symlink(victim, path).unwrap(),
            |path, _| mkfifo(path, Mode::S_IRWXU).unwrap(),
            |path, _| drop(UnixListener::bind(path).unwrap()),
            |path, _| std::fs::create_dir(path).unwrap(),
        ];
        for put in put {
            std::fs::remove_file(&path).unwrap();
            put(&path, &victim);
            let (code, text) = opened(&path).await.unwrap_err();
            assert_eq!((code, text), (StatusCode::NOT_FOUND, "the log cannot be read\n"));
            // A follower is not redirected either.
            assert!(successor(&path, &followed).is_err());
        }
    }

    #[test]
    fn a_log_that_was_rotated_more_than_once_goes_on_in_its_next_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, "first").unwrap();
        let mut file = File::open(&path).unwrap();
        assert!(successor(&path, &file).unwrap().is_none());
        let rotated = |second: u32| directory.path().join(format!("0.log.20260102-15040{second}"));
        std::fs::rename(&path, rotated(1)).unwrap();
        assert!(
            successor(&path, &file).unwrap().is_none(),
            "the next one is not there yet"
        );
        std::fs::write(rotated(2), "second").unwrap();
        std::fs::write(&path, "third").unwrap();
        let mut texts = Vec::new();
        while let Some(next) = successor(&path, &file).unwrap() {
            file = next;
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            texts.push(text);
        }
        assert_eq!(texts, ["second", "third"]);
        // Recreated beside files of earlier rotations.
        let kept = File::options().append(true).open(&path).unwrap();
        kept.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_hours(1 << 19))
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "fourth").unwrap();
        let mut text = String::new();
        successor(&path, &kept)
            .unwrap()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "fourth");
    }
}
