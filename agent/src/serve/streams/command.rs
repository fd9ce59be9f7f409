//! Exec and attach: sessions of a client with a program or container.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::pod::pods;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use runtime::{Session, StreamSpec, Streams};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::mux::{CREATION, Idle, Outgoing, QUEUE, Sink, drive};
use super::remote::{self, Client, Outcome, Report};
use super::signs::Signs;
use super::spdy::{self, Opened};
use super::websocket::{self, Form};
use super::{VERSION, agreed, disagreed, refused, versions};
use crate::context::Context;
use crate::serve::logs::parameters;
use crate::serve::streams::upgrade;

/// The version with which a client can end its standard input over WebSocket.
const ENDS: &str = "v5.channel.k8s.io";
const WEBSOCKET: [&str; 6] = [
    ENDS,
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];
const SPDY: [&str; 5] = [
    ENDS,
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Parameters of a client's request.
#[derive(Clone, Debug, Default)]
struct Wanted {
    words: Vec<String>,
    tty: bool,
    streams: Streams,
}

impl Wanted {
    fn read(query: &str) -> Self {
        let mut wanted = Self::default();
        for (name, value) in parameters(query) {
            let flag = value == "1" || value == "true";
            match name.as_str() {
                "command" => wanted.words.push(value),
                "input" => wanted.streams.stdin = flag,
                "output" => wanted.streams.stdout = flag,
                "error" => wanted.streams.stderr = flag,
                "tty" => wanted.tty = flag,
                _ => {}
            }
        }
        // A terminal has a single output.
        wanted.streams.stderr &= !wanted.tty;
        wanted
    }
}

/// Starts a session once the client's streams are open.
type Begin = Box<dyn FnOnce() -> BoxFuture<'static, Result<Session, String>> + Send>;
/// Error before the connection is upgraded.
type Missing = (StatusCode, String);

pub(in super::super) async fn exec(
    State(context): State<Arc<Context>>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let wanted = Wanted::read(request.uri().query().unwrap_or_default());
    let begin = || -> Result<Begin, Missing> {
        let pod = context.pod(&namespace, &name);
        let pod = pod.ok_or((StatusCode::NOT_FOUND, "pod does not exist".to_owned()))?;
        let missing = || {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("container not found ({container:?})"),
            )
        };
        let place = context.place(&pod, &container).ok_or_else(missing)?;
        let spec = StreamSpec {
            argv: wanted.words.clone(),
            tty: wanted.tty,
            streams: wanted.streams,
        };
        let context = Arc::clone(&context);
        Ok(Box::new(move || {
            Box::pin(async move {
                let runtime = &context.parts.runtime;
                let session = runtime.exec_stream(&place.sandbox, &place.instance, spec);
                let session = context.operations.of_runtime("exec", session).await;
                session.map_err(|error| not_executed(&error))
            })
        }))
    };
    let words = wanted.words.join(" ");
    let outcome = move |end: Result<i32, runtime::Error>| match end {
        Ok(code) => Outcome::Exited(code, format!("error executing command [{words}], exit code {code}")),
        Err(error) => Outcome::Failed(not_executed(&error)),
    };
    answer(request, &wanted, begin(), outcome)
}

fn not_executed(error: &runtime::Error) -> String {
    let (id, why) = (uuid::Uuid::new_v4().simple(), image::chain(error));
    format!(
        "error executing command in container: failed to exec in container: failed to start exec \"{id}\": \
         OCI runtime exec failed: exec failed: {why}: unknown"
    )
}

pub(in super::super) async fn attach(
    State(context): State<Arc<Context>>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let mut wanted = Wanted::read(request.uri().query().unwrap_or_default());
    let internal = |text: String| (StatusCode::INTERNAL_SERVER_ERROR, text);
    let full_name = format!("{name}_{namespace}");
    let found = context
        .pod(&namespace, &name)
        .ok_or_else(|| internal(format!("pod {full_name} not found")));
    let begin = found.and_then(|pod| {
        let place = context.place(&pod, &container);
        let place = place.ok_or_else(|| internal(format!("container {container} not found in pod {full_name}")))?;
        // The container was created with or without a terminal, whatever the client requests.
        wanted.tty = has_terminal(&pod, &container);
        wanted.streams.stderr &= !wanted.tty;
        let (streams, context) = (wanted.streams, Arc::clone(&context));
        let begin: Begin = Box::new(move || {
            Box::pin(async move {
                let runtime = &context.parts.runtime;
                let session = runtime.attach(&place.sandbox, &place.instance, streams);
                let session = context.operations.of_runtime("attach", session).await;
                session.map_err(|error| not_attached(&error))
            })
        });
        Ok(begin)
    });
    let outcome = |end: Result<i32, runtime::Error>| match end {
        Ok(_) => Outcome::Exited(0, String::new()),
        Err(error) => Outcome::Failed(not_attached(&error)),
    };
    answer(request, &wanted, begin, outcome)
}

fn not_attached(error: &runtime::Error) -> String {
    format!("error attaching to container: {}", image::chain(error))
}

fn has_terminal(pod: &Pod, container: &str) -> bool {
    pods::container(pod, container).is_some_and(|container| container.tty == Some(true))
}

fn answer(
    request: Request,
    wanted: &Wanted,
    begin: Result<Begin, Missing>,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome + Send + 'static,
) -> Response {
    let Streams { stdin, stdout, stderr } = wanted.streams;
    if !stdin && !stdout && !stderr {
        let text = "you must specify at least 1 of stdin, stdout, stderr";
        return refused(StatusCode::BAD_REQUEST, text);
    }
    let begin = match begin {
        Ok(begin) => begin,
        Err((code, text)) => return refused(code, text),
    };
    match upgrade::wanted(&request).as_str() {
        "websocket" => over_websocket(request, wanted.clone(), begin, outcome),
        "spdy/3.1" => over_spdy(request, wanted.clone(), begin, outcome),
        _ => refused(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: missing upgrade headers in request",
        ),
    }
}

/// Serves a session. The program starts meanwhile, but its output waits until the client is ready.
async fn serve(
    client: Client,
    ready: impl Future<Output = ()>,
    begin: Begin,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome,
) {
    let (session, ()) = tokio::join!(begin(), ready);
    match session {
        Ok(session) => remote::join(client, session, outcome).await,
        Err(because) => remote::refuse(client, because).await,
    }
}

/// Protocol of a session over WebSocket.
fn spoken(offered: &[String]) -> Option<&'static str> {
    if offered.is_empty() {
        return Some("");
    }
    // The kubelet's translator takes requests with this version, and speaks no other.
    let ends = offered.iter().any(|name| name == ENDS).then_some(ENDS);
    ends.or_else(|| agreed(offered, &WEBSOCKET))
}

fn over_websocket(
    request: Request,
    wanted: Wanted,
    begin: Begin,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome + Send + 'static,
) -> Response {
    let offered = websocket::offered(&request);
    let Some(protocol) = spoken(&offered) else {
        return disagreed(&offered, &WEBSOCKET);
    };
    let form = Form {
        base64: protocol.contains("base64"),
        ends: protocol == ENDS,
    };
    let headers = match websocket::handshake(&request, protocol) {
        Ok(headers) => headers,
        Err(text) => return refused(StatusCode::BAD_REQUEST, text),
    };
    let report = match protocol {
        ENDS => Report::Translated,
        protocol if protocol.starts_with("v4.") => Report::Status,
        _ => Report::Text,
    };
    upgrade::switch(request, "websocket", headers, move |io| {
        websocket_session(io, form, report, wanted, begin, outcome)
    })
}

async fn websocket_session(
    io: impl AsyncRead + AsyncWrite + Unpin,
    form: Form,
    report: Report,
    wanted: Wanted,
    begin: Begin,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome,
) {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let mut channels = BTreeMap::new();
    let mut source = |channel: u8, wanted: bool| {
        wanted.then(|| {
            let (sender, source) = mpsc::channel::<Bytes>(QUEUE);
            channels.insert(channel, sender);
            source
        })
    };
    let sink = |channel: u8| Sink {
        id: u32::from(channel),
        queue: queue.clone(),
    };
    let Streams { stdin, stdout, stderr } = wanted.streams;
    let client = Client {
        stdin: source(STDIN, stdin),
        resize: source(RESIZE, wanted.tty),
        stdout: stdout.then(|| sink(STDOUT)),
        stderr: stderr.then(|| sink(STDERR)),
        error: sink(ERROR),
        report,
    };
    drop(queue);
    let (sink, stream) = websocket::open(io).await.split();
    let signs = Signs::default();
    let stream = stream.inspect(|message| signs.see(message));
    let idle = Idle::new();
    let work = async {
        let first = client.stdout.as_ref().or(client.stderr.as_ref());
        let first = first.unwrap_or(&client.error).clone();
        let ready = async {
            if form.ends {
                signs.settled(&first).await;
            }
            // An empty message signals success to clients.
            first.send(Bytes::new()).await.ok();
        };
        serve(client, ready, begin, outcome).await;
    };
    drive(
        &idle,
        websocket::read(stream, form, channels, &idle),
        websocket::write(sink, form, outgoing, &idle),
        work,
    )
    .await;
}

fn over_spdy(
    request: Request,
    wanted: Wanted,
    begin: Begin,
    outcome: impl FnOnce(Result<i32, runtime::Error>) -> Outcome + Send + 'static,
) -> Response {
    let offered = versions(request.headers());
    let oldest = "channel.k8s.io";
    let version = if offered.is_empty() {
        Some(oldest)
    } else {
        agreed(&offered, &SPDY)
    };
    let Some(version) = version else {
        return disagreed(&offered, &SPDY);
    };
    let headers = vec![(VERSION, HeaderValue::from_static(version))];
    upgrade::switch(request, "SPDY/3.1", headers, move |io| async move {
        let (read, write) = tokio::io::split(io);
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (sender, mut opened) = mpsc::channel(QUEUE);
        let idle = Idle::new();
        let last = queue.clone();
        let work = async {
            if let Some(client) = gather(&mut opened, &wanted, version).await {
                serve(client, std::future::ready(()), begin, outcome).await;
            }
            // A silent client would keep the connection open.
            last.send(Outgoing::Over).await.ok();
        };
        let read = spdy::read(read, queue, sender, &idle);
        drive(&idle, read, spdy::write(write, outgoing, &idle), work).await;
    })
}

/// Waits for the streams that the client must open.
async fn gather(opened: &mut mpsc::Receiver<Opened>, wanted: &Wanted, version: &str) -> Option<Client> {
    let Streams { stdin, stdout, stderr } = wanted.streams;
    let resizes = wanted.tty && (version.starts_with("v3") || version.starts_with("v4") || version.starts_with("v5"));
    let mut missing: Vec<&str> = [
        (true, "error"),
        (stdin, "stdin"),
        (stdout, "stdout"),
        (stderr, "stderr"),
        (resizes, "resize"),
    ]
    .into_iter()
    .filter_map(|(wanted, name)| wanted.then_some(name))
    .collect();
    let mut found = BTreeMap::new();
    let all = async {
        while !missing.is_empty() {
            let stream = opened.recv().await?;
            let kind = stream.headers.get("streamtype").cloned().unwrap_or_default();
            if let Some(index) = missing.iter().position(|name| *name == kind) {
                missing.swap_remove(index);
                found.insert(kind, stream);
            } else {
                stream.reset().await;
            }
        }
        Some(())
    };
    tokio::time::timeout(CREATION, all).await.ok().flatten()?;
    Some(Client {
        stdin: found.remove("stdin").map(|stream| stream.source),
        stdout: found.remove("stdout").map(|stream| stream.sink),
        stderr: found.remove("stderr").map(|stream| stream.sink),
        resize: found.remove("resize").map(|stream| stream.source),
        error: found.remove("error")?.sink,
        report: if version.starts_with("v4") || version.starts_with("v5") {
            Report::Status
        } else {
            Report::Text
        },
    })
}

#[cfg(test)]
mod tests;
