//! `skiff image`: images of this machine's node, through the agent's private socket.

use std::io::{ErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use futures::TryStreamExt as _;
use http::{Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::io::ReaderStream;

use crate::arguments::{ImageCommand, Place, PullOptions};
use crate::client::api::{plain, text_at, with_query};
use crate::terminal::{self, Waiting};

pub(crate) async fn run(place: &Place, command: &ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Import { files, name } => {
            ensure!(name.is_none() || files.len() == 1, "--name is for one archive");
            for file in files {
                import(place, file, name.as_deref()).await?;
            }
            Ok(())
        }
        ImageCommand::Pull(options) => pull(place, options).await,
        ImageCommand::List => list(place).await,
        ImageCommand::Export { name, output } => export(place, name, output).await,
        ImageCommand::Prune { all } => prune(place, *all).await,
    }
}

async fn import(place: &Place, file: &Path, name: Option<&str>) -> anyhow::Result<()> {
    let shown = if file == Path::new("-") {
        "standard input".into()
    } else {
        file.to_string_lossy()
    };
    let mut parameters = vec![("name", name)];
    let directory = file.is_dir().then(|| std::path::absolute(file)).transpose()?;
    let directory = directory.map(|path| path.to_string_lossy().into_owned());
    let body = if let Some(path) = &directory {
        // The agent reads the file at its path.
        parameters.push(("path", Some(path.as_str())));
        Empty::new().map_err(|never| match never {}).boxed_unsync()
    } else if file == Path::new("-") {
        ensure!(
            !std::io::stdin().is_terminal(),
            "standard input is a terminal, not an archive"
        );
        stream(tokio::io::stdin())
    } else {
        stream(
            tokio::fs::File::open(file)
                .await
                .with_context(|| format!("open {shown}"))?,
        )
    };
    let waiting = Waiting::start(format!("importing {shown}"));
    let answer = ask(place, Method::POST, &with_query("/images/import", &parameters), body).await?;
    waiting.done(&format!("imported {shown}"));
    for name in strings(&answer, "names") {
        terminal::line(name)?;
    }
    let left_out: Vec<&str> = strings(&answer, "leftOut").collect();
    if !left_out.is_empty() {
        let left_out = left_out.join(", ");
        terminal::note(format!(
            "Not imported, since the archive does not name it in full: {left_out}."
        ));
    }
    Ok(())
}

fn stream(source: impl AsyncRead + Send + 'static) -> Body {
    StreamBody::new(ReaderStream::with_capacity(source, 128 << 10).map_ok(Frame::data)).boxed_unsync()
}

async fn pull(place: &Place, options: &PullOptions) -> anyhow::Result<()> {
    let credentials = match &options.creds {
        Some(creds) => {
            let (username, password) = creds.split_once(':').context("--creds wants USER:PASSWORD")?;
            json!({ "username": username, "password": password })
        }
        None => Value::Null,
    };
    let waiting = Waiting::start(format!("pulling {}", options.name));
    let path = with_query("/images/pull", &[("name", Some(options.name.as_str()))]);
    let body = Full::new(Bytes::from(credentials.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let answer = ask(place, Method::POST, &path, body).await?;
    waiting.done(&format!("pulled {}", options.name));
    for name in strings(&answer, "names") {
        terminal::line(name)?;
    }
    Ok(())
}

async fn list(place: &Place) -> anyhow::Result<()> {
    let nothing = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let answer = ask(place, Method::GET, "/images", nothing).await?;
    let mut rows = vec![["IMAGE", "ID", "SIZE"].map(str::to_owned).to_vec()];
    for image in answer.get("images").and_then(Value::as_array).into_iter().flatten() {
        let id: String = text_at(image, "/id")
            .trim_start_matches("sha256:")
            .chars()
            .take(12)
            .collect();
        let size = image.get("size").and_then(Value::as_u64).unwrap_or(0);
        let mut names: Vec<&str> = strings(image, "names").collect();
        if names.is_empty() {
            names.extend(strings(image, "digests").next().or(Some("<none>")));
        }
        rows.extend(
            names
                .into_iter()
                .map(|name| vec![name.to_owned(), id.clone(), readable(size)]),
        );
    }
    terminal::write(&terminal::columns(&rows))
}

/// Writes to a temporary file first: a failure leaves an existing file unchanged.
async fn export(place: &Place, name: &str, output: &Path) -> anyhow::Result<()> {
    let path = with_query("/images/export", &[("name", Some(name))]);
    if output == Path::new("-") {
        ensure!(
            !std::io::stdout().is_terminal(),
            "an archive is nothing for a terminal: write it to a file or a pipe"
        );
        return download(place, &path, &mut tokio::io::stdout()).await;
    }
    let waiting = Waiting::start(format!("exporting {name}"));
    let mut partial = output.to_owned().into_os_string();
    partial.push(".partial");
    let failed = || format!("write {}", output.display());
    let mut file = tokio::fs::File::create(&partial).await.with_context(failed)?;
    let written = async {
        download(place, &path, &mut file).await?;
        file.sync_all().await.with_context(failed)?;
        tokio::fs::rename(&partial, output).await.with_context(failed)
    };
    if let Err(error) = written.await {
        // A partial file is useless.
        drop(tokio::fs::remove_file(&partial).await);
        return Err(error);
    }
    waiting.done(&format!("exported {name} to {}", output.display()));
    Ok(())
}

async fn download(place: &Place, path: &str, target: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
    let nothing = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let stream = connect(place).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request(Method::GET, path, nothing)?).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let bytes = response.into_body().collect().await?.to_bytes();
            return answered(status, &bytes).map(drop);
        }
        let mut parts = response.into_body().into_data_stream();
        while let Some(part) = parts.try_next().await? {
            let written = target.write_all(&part).await;
            written.map_err(terminal::unread).context("write the archive")?;
        }
        let flushed = target.flush().await;
        flushed.map_err(terminal::unread).context("write the archive")
    };
    together(exchange, connection).await
}

async fn prune(place: &Place, all: bool) -> anyhow::Result<()> {
    let nothing = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let path = with_query("/images/prune", &[("all", all.then_some("true"))]);
    let answer = ask(place, Method::POST, &path, nothing).await?;
    for image in answer.get("images").and_then(Value::as_array).into_iter().flatten() {
        let names = strings(image, "names").chain(strings(image, "digests"));
        let name = names.take(1).next().unwrap_or_else(|| text_at(image, "/id"));
        terminal::line(format!("removed {name}"))?;
    }
    let bytes = answer.get("bytes").and_then(Value::as_u64).unwrap_or(0);
    terminal::line(format!("freed {}", readable(bytes)))
}

fn strings<'a>(image: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    image
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Formats a size in whole kibibytes or tenths of mebibytes.
fn readable(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes < MEBIBYTE {
        return format!("{} KiB", bytes.div_ceil(1 << 10));
    }
    format!("{}.{} MiB", bytes / MEBIBYTE, bytes % MEBIBYTE * 10 / MEBIBYTE)
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Possible sockets of an agent: that of `skiff up`, of the given state directory, and of the
/// systemd unit.
fn sockets(state_dir: &Path) -> Vec<PathBuf> {
    let mut sockets = vec![state_dir.join("agent/agent.sock"), state_dir.join("agent.sock")];
    if state_dir == Path::new("/var/lib/skiff") {
        sockets.push(PathBuf::from("/var/lib/skiff-agent/agent.sock"));
    }
    sockets
}

async fn connect(place: &Place) -> anyhow::Result<UnixStream> {
    let sockets = sockets(&place.state_dir());
    let mut failed = Vec::new();
    for socket in &sockets {
        match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed.push((socket, error)),
        }
    }
    let missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let told = failed.iter().find(|(_, error)| !missing(error)).or(failed.first());
    let told = told.map(|(socket, error)| format!("{} ({})", socket.display(), plain(error)));
    bail!("no agent answers at {}; {}", told.unwrap_or_default(), place.start())
}

/// Sends one HTTP/1.1 request over the agent's socket.
async fn ask(place: &Place, method: Method, path: &str, body: Body) -> anyhow::Result<Value> {
    let stream = connect(place).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request(method, path, body)?).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        answered(status, &bytes)
    };
    together(exchange, connection).await
}

fn request(method: Method, path: &str, body: Body) -> anyhow::Result<Request<Body>> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", "agent")
        .header("Content-Type", "application/json");
    Ok(request.body(body)?)
}

/// Runs an exchange while driving its connection.
async fn together<T>(
    exchange: impl Future<Output = anyhow::Result<T>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> anyhow::Result<T> {
    tokio::pin!(exchange, connection);
    tokio::select! {
        done = &mut exchange => done,
        ended = &mut connection => {
            ended?;
            exchange.await
        }
    }
}

fn answered(status: StatusCode, bytes: &[u8]) -> anyhow::Result<Value> {
    let answer: Value = serde_json::from_slice(bytes)
        .with_context(|| format!("the node agent answered {status}: {}", String::from_utf8_lossy(bytes)))?;
    if status != StatusCode::OK {
        bail!("{}", text_at(&answer, "/error"));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_looked_for_where_it_may_be() {
        let found = |directory: &str| sockets(Path::new(directory)).len();
        assert_eq!((found("/tmp/c"), found("/var/lib/skiff")), (2, 3));
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(readable(10), "1 KiB");
        assert_eq!(readable(5_222_400), "4.9 MiB");
    }
}
