//! `skiff image`: the images of this machine's node, through the agent's private socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use http::{Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio_util::io::ReaderStream;

use crate::api::text_at;
use crate::arguments::ImageCommand;
use crate::terminal::{self, Waiting};

pub(crate) async fn run(state_dir: &Path, command: &ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Import { files } => {
            for file in files {
                import(state_dir, file).await?;
            }
            Ok(())
        }
        ImageCommand::List => list(state_dir).await,
    }
}

async fn import(state_dir: &Path, file: &PathBuf) -> anyhow::Result<()> {
    let archive = tokio::fs::File::open(file)
        .await
        .with_context(|| format!("open {}", file.display()))?;
    let waiting = Waiting::start(format!("importing {}", file.display()));
    let body = StreamBody::new(ReaderStream::with_capacity(archive, 128 << 10).map_ok(Frame::data));
    let answer = ask(state_dir, Method::POST, "/images/import", body.boxed_unsync()).await?;
    waiting.done(&format!("imported {}", file.display()));
    for name in names(&answer) {
        terminal::line(name)?;
    }
    Ok(())
}

async fn list(state_dir: &Path) -> anyhow::Result<()> {
    let nothing = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let answer = ask(state_dir, Method::GET, "/images", nothing).await?;
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

fn names(answer: &Value) -> impl Iterator<Item = &str> {
    answer
        .get("images")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .flat_map(|image| strings(image, "names"))
}

fn strings<'a>(image: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    image
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Bytes as people read them, in whole kibibytes or tenths of mebibytes.
fn readable(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes < MEBIBYTE {
        return format!("{} KiB", bytes.div_ceil(1 << 10));
    }
    format!("{}.{} MiB", bytes / MEBIBYTE, bytes % MEBIBYTE * 10 / MEBIBYTE)
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// One request on the agent's socket, HTTP/1.1.
async fn ask(state_dir: &Path, method: Method, path: &str, body: Body) -> anyhow::Result<Value> {
    let socket = state_dir.join("agent/agent.sock");
    let stream = UnixStream::connect(&socket)
        .await
        .with_context(|| format!("connect to the node agent at {} (is the cluster up?)", socket.display()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", "agent")
        .body(body)?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, bytes))
    };
    tokio::pin!(exchange, connection);
    let (status, bytes) = tokio::select! {
        done = &mut exchange => done?,
        ended = &mut connection => {
            ended?;
            exchange.await?
        }
    };
    let answer: Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("the node agent answered {status}: {}", String::from_utf8_lossy(&bytes)))?;
    if status != StatusCode::OK {
        bail!("{}", text_at(&answer, "/message"));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(readable(10), "1 KiB");
        assert_eq!(readable(5_222_400), "4.9 MiB");
    }
}
