//! Port forwarding: each connection is a pair of streams, for data and for an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use common::task::JoinSet;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use super::dial::{Location, locate};
use super::mux::{CHUNK, CREATION, Idle, QUEUE, Sink, Source, drive};
use super::spdy::{self, Opened};
use super::websocket::{self, Form};
use super::{VERSION, agreed, disagreed, refused, versions};
use crate::context::Context;
use crate::serve::logs::parameters;
use crate::serve::streams::upgrade::{self, Io};

const SPDY: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const WEBSOCKET: [&str; 4] = [TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];
/// Maximum number of ports of one WebSocket request: channel numbers have one byte.
const PORTS: usize = 100;
/// Maximum number of concurrent connections of one client, including incomplete pairs.
const PAIRS: usize = 1024;
/// Maximum length of a request ID: clients count their connections.
const ID: usize = 64;
/// Limits connections to pods of all clients: each takes a descriptor of the agent.
static DIALLED: Semaphore = Semaphore::const_new(4096);
/// Time for data in flight from the client after the pod has closed the connection.
const REST: std::time::Duration = std::time::Duration::from_secs(1);

pub(in super::super) async fn forward(
    State(context): State<Arc<Context>>,
    Path((namespace, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    let Some(pod) = context.pod(&namespace, &name) else {
        return refused(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let Some(location) = locate(&context, &pod).await else {
        let text = format!("pod not found ({:?})", format!("{name}_{namespace}"));
        return refused(StatusCode::INTERNAL_SERVER_ERROR, text);
    };
    let location = Arc::new(location);
    match upgrade::wanted(&request).as_str() {
        "websocket" => over_websocket(request, location),
        "spdy/3.1" => {
            let offered = versions(request.headers());
            if !offered.is_empty() && agreed(&offered, &[SPDY]).is_none() {
                return disagreed(&offered, &[SPDY]);
            }
            let headers = vec![(VERSION, HeaderValue::from_static(SPDY))];
            upgrade::switch(request, "SPDY/3.1", headers, move |io| session(io, location))
        }
        _ => refused(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: missing upgrade headers in request",
        ),
    }
}

fn over_websocket(request: Request, location: Arc<Location>) -> Response {
    let offered = websocket::offered(&request);
    let protocol = if offered.is_empty() {
        Some("")
    } else {
        agreed(&offered, &WEBSOCKET)
    };
    let Some(protocol) = protocol else {
        return disagreed(&offered, &WEBSOCKET);
    };
    let headers = match websocket::handshake(&request, protocol) {
        Ok(headers) => headers,
        Err(text) => return refused(StatusCode::BAD_REQUEST, text),
    };
    if protocol == TUNNEL {
        return upgrade::switch(request, "websocket", headers, move |io| tunnel(io, location));
    }
    let ports = match ports(request.uri().query().unwrap_or_default()) {
        Ok(ports) => ports,
        Err(text) => return refused(StatusCode::BAD_REQUEST, text),
    };
    let form = Form {
        base64: protocol.contains("base64"),
        ends: false,
    };
    upgrade::switch(request, "websocket", headers, move |io| {
        channels(io, form, ports, location)
    })
}

fn port(text: &str) -> Result<u16, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unread =
        |because| format!("unable to parse {text:?} as a port: strconv.ParseUint: parsing {text:?}: {because}");
    match text.parse::<u16>() {
        _ if !is_number => Err(unread("invalid syntax")),
        Ok(0) => Err(format!("port {text:?} must be > 0")),
        Ok(port) => Ok(port),
        Err(_too_large) => Err(unread("value out of range")),
    }
}

fn ports(query: &str) -> Result<Vec<u16>, String> {
    let mut found = Vec::new();
    for (_, value) in parameters(query)
        .iter()
        .filter(|(name, _)| name == "port" || name == "ports")
    {
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for text in value.split(',') {
            found.push(port(text)?);
        }
    }
    match found.len() {
        0 => Err("query parameter \"port\" is required".to_owned()),
        count if count > PORTS => Err("too many ports".to_owned()),
        _ => Ok(found),
    }
}

/// Forwards one connection.
async fn pair(location: &Location, port: u16, data: (Source, Sink), error: Sink) {
    let (source, sink) = data;
    let place = DIALLED.try_acquire();
    let stream = match &place {
        Ok(_) => location.loopback(port).await,
        Err(_) => Err("too many connections are forwarded on this node".to_owned()),
    };
    match stream {
        Ok(stream) => {
            let (read, write) = stream.into_split();
            exchange(read, write, source, &sink).await;
        }
        Err(because) => {
            let text = format!(
                "error forwarding port {port} to pod {}, uid : {because}",
                location.sandbox
            );
            error.send(Bytes::from(text)).await.ok();
        }
    }
    drop(place);
    sink.end().await;
    error.end().await;
}

async fn exchange(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut source: Source,
    sink: &Sink,
) {
    let mut outward = std::pin::pin!(async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match read.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if sink.send(buffer.split().freeze()).await.is_err() {
                return;
            }
        }
    });
    let mut inward = std::pin::pin!(async {
        while let Some(chunk) = source.recv().await {
            if write.write_all(&chunk).await.is_err() {
                return;
            }
        }
        write.shutdown().await.ok();
    });
    tokio::select! {
        () = &mut outward => drop(tokio::time::timeout(REST, inward).await),
        () = &mut inward => outward.await,
    }
}

/// Serves pairs over SPDY until the client disconnects.
async fn session(io: impl AsyncRead + AsyncWrite, location: Arc<Location>) {
    let (read, write) = tokio::io::split(io);
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let (sender, opened) = mpsc::channel(QUEUE);
    let idle = Idle::new();
    let read = spdy::read(read, queue, sender, &idle);
    drive(
        &idle,
        read,
        spdy::write(write, outgoing, &idle),
        pairs(opened, location),
    )
    .await;
}

/// First stream of a pair, and the time since which it waits for the other one.
struct Waiting {
    since: Instant,
    kind: String,
    stream: Opened,
}

async fn pairs(mut opened: mpsc::Receiver<Opened>, location: Arc<Location>) {
    let mut waiting: BTreeMap<String, Waiting> = BTreeMap::new();
    let mut running = JoinSet::new();
    let mut clean = tokio::time::interval(CREATION);
    loop {
        tokio::select! {
            stream = opened.recv() => {
                let Some(mut stream) = stream else { return };
                // Headers may be long, and are not needed while the stream waits.
                let headers = std::mem::take(&mut stream.headers);
                let told = |name: &str| headers.get(name).map_or("", String::as_str);
                let kind = told("streamtype");
                let id = request_id(told("requestid"), kind, stream.sink.id);
                let proper = matches!(kind, "data" | "error") && id.len() <= ID;
                let (Ok(port), true) = (port(told("port")), proper) else {
                    stream.reset().await;
                    continue;
                };
                match waiting.remove(&id) {
                    // The second stream of a pair takes no further place.
                    None if waiting.len() + running.len() >= PAIRS => stream.reset().await,
                    None => {
                        let (since, kind) = (Instant::now(), kind.to_owned());
                        waiting.insert(id, Waiting { since, kind, stream });
                    }
                    Some(other) if other.kind == kind => {
                        stream.reset().await;
                        waiting.insert(id, other);
                    }
                    Some(other) => {
                        let (data, error) = if kind == "data" { (stream, other.stream) } else { (other.stream, stream) };
                        let location = Arc::clone(&location);
                        running.spawn(async move {
                            pair(&location, port, (data.source, data.sink), error.sink).await;
                        });
                    }
                }
            }
            Some(_) = running.join_next() => {}
            now = clean.tick() => waiting.retain(|_, half| now.duration_since(half.since) < CREATION),
        }
    }
}

/// Request ID that pairs the data and error streams of a connection. Old clients send none, but
/// open the streams one after the other.
fn request_id(told: &str, kind: &str, stream: u32) -> String {
    match (told, kind) {
        ("", "data") => stream.saturating_sub(2).to_string(),
        ("", _) => stream.to_string(),
        (told, _) => told.to_owned(),
    }
}

/// Serves SPDY inside WebSocket messages.
async fn tunnel(io: Io, location: Arc<Location>) {
    let (mut sink, mut stream) = websocket::open(io).await.split();
    let (near, far) = tokio::io::duplex(2 * CHUNK);
    let (mut read, mut write) = tokio::io::split(near);
    let receive = async {
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(_) | Message::Text(_) => {
                    if write.write_all(&message.into_data()).await.is_err() {
                        break;
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                Message::Close(_) => break,
            }
        }
        write.shutdown().await.ok();
    };
    let send = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match read.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if sink.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                return;
            }
        }
        sink.send(Message::Close(None)).await.ok();
    };
    let both = async { tokio::join!(receive, session(far, location)) };
    tokio::select! {
        ((), ()) = both => {}
        () = send => {}
    }
}

/// Serves a pair of channels for each port, open from the beginning.
async fn channels(io: Io, form: Form, ports: Vec<u16>, location: Arc<Location>) {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let mut channels = BTreeMap::new();
    let mut running = Vec::new();
    for (index, port) in (0_u8..).zip(ports) {
        let (sender, source) = mpsc::channel::<Bytes>(QUEUE);
        channels.insert(2 * index, sender);
        let sink = |id: u8| Sink {
            id: u32::from(id),
            queue: queue.clone(),
        };
        let (data, error, location) = (sink(2 * index), sink(2 * index + 1), Arc::clone(&location));
        running.push(async move {
            let number = Bytes::copy_from_slice(&port.to_le_bytes());
            for sink in [&data, &error] {
                sink.send(number.clone()).await.ok();
            }
            pair(&location, port, (source, data), error).await;
        });
    }
    drop(queue);
    let (sink, stream) = websocket::open(io).await.split();
    let idle = Idle::new();
    let work = async {
        futures::future::join_all(running).await;
    };
    drive(
        &idle,
        websocket::read(stream, form, channels, &idle),
        websocket::write(sink, form, outgoing, &idle),
        work,
    )
    .await;
}

#[cfg(test)]
mod tests;
