//! Costs of many objects: pods made, listed in each form and removed at once, and changes told to watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use tests::http::{Connection, Target};
use tests::machine::Machine;
use tests::process;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::figures::{Table, milliseconds, now, percentiles, rate};

const NAMESPACES: &str = "/api/v1/namespaces";
const PODS: &str = "/api/v1/namespaces/lists/pods";
const OBJECTS: &str = "/api/v1/namespaces/lists/configmaps";
const ALONE: usize = 500;
const ALL: usize = 5_000;
/// Connections that create.
pub(crate) const SENDERS: usize = 16;
const ROUNDS: usize = 9;
const CHANGES: usize = 30;
const FORMS: [(&str, &[(HeaderName, &str)]); 5] = [
    ("JSON", &[]),
    ("JSON with gzip", &[(ACCEPT_ENCODING, "gzip")]),
    ("protobuf", &[(ACCEPT, "application/vnd.kubernetes.protobuf")]),
    (
        "metadata alone",
        &[(
            ACCEPT,
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        )],
    ),
    (
        "Table with gzip",
        &[
            (ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            (ACCEPT_ENCODING, "gzip"),
        ],
    ),
];

pub(crate) async fn measure(machine: &Machine, target: &Target, table: &mut Table) -> anyhow::Result<()> {
    let server = machine.daemon("skiff-controlplane")?;
    let mut connection = target.connect().await?;
    let namespace = json!({ "metadata": { "name": "lists" } });
    create(&mut connection, NAMESPACES, &namespace).await?;
    let mut times = Vec::new();
    let begun = now();
    for number in 0..ALONE {
        let start = now();
        create(&mut connection, PODS, &pod(number)).await?;
        times.push(start.elapsed());
    }
    let figure = rate(ALONE, begun.elapsed());
    table.row(
        "pods created, 1 connection",
        format!("{figure}, {}", percentiles(&mut times)),
    );
    let took = by_many(target, PODS, ALONE..ALL, pod).await?;
    table.row(format!("pods created, {SENDERS} connections"), rate(ALL - ALONE, took));
    for (form, headers) in FORMS {
        let before = process::reset_peak(server)?;
        let mut times = Vec::new();
        let mut size = 0;
        for _ in 0..ROUNDS {
            let start = now();
            size = connection.read_as(PODS, headers).await?.len();
            times.push(start.elapsed());
        }
        let more = process::peak_kib(server)?.saturating_sub(before).div_ceil(1024);
        table.row(
            format!("LIST of {ALL} pods, {form}"),
            format!(
                "{}, {} KiB, {more} MiB more memory",
                percentiles(&mut times),
                size / 1024
            ),
        );
    }
    for watchers in [1, 100, 1_000] {
        told(target, &mut connection, watchers, table).await?;
    }
    let start = now();
    connection.expect(Method::DELETE, PODS, Bytes::new()).await?;
    table.row(format!("deletecollection of {ALL} pods"), milliseconds(start.elapsed()));
    connection
        .expect(Method::DELETE, &format!("{NAMESPACES}/lists"), Bytes::new())
        .await
        .map(drop)
}

pub(crate) async fn create(connection: &mut Connection, path: &str, object: &serde_json::Value) -> anyhow::Result<()> {
    let body = Bytes::from(object.to_string());
    connection.expect(Method::POST, path, body).await.map(drop)
}

/// Creates these numbers' objects over [`SENDERS`] connections.
pub(crate) async fn by_many(
    target: &Target,
    path: &'static str,
    numbers: std::ops::Range<usize>,
    make: impl Fn(usize) -> serde_json::Value + Copy + Send + 'static,
) -> anyhow::Result<Duration> {
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let mut senders = JoinSet::new();
    let mut connections = Vec::new();
    for _ in 0..SENDERS {
        connections.push(target.connect().await?);
    }
    let begun = now();
    for mut connection in connections {
        let next = Arc::clone(&next);
        senders.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return anyhow::Ok(());
                }
                create(&mut connection, path, &make(number)).await?;
            }
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    Ok(begun.elapsed())
}

/// Pods that no scheduler and no node touches.
fn pod(number: usize) -> serde_json::Value {
    json!({
        "metadata": { "name": format!("stored-{number}"), "labels": { "app": "stored" } },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{ "name": "web", "image": "nginx:1", "ports": [{ "containerPort": 80 }] }],
        },
    })
}

/// Time from the start of a create until each watcher has its event.
async fn told(target: &Target, connection: &mut Connection, watchers: usize, table: &mut Table) -> anyhow::Result<()> {
    let path = format!("{OBJECTS}?watch=true&timeoutSeconds=600&fieldSelector=metadata.namespace%3Dlists");
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut readers = JoinSet::new();
    let mut drivers = Vec::new();
    let mut left = watchers;
    while left > 0 {
        let some = left.min(100);
        left -= some;
        let opened = target.watches(&path, some).await?;
        drivers.push(opened.driver);
        for body in opened.bodies {
            readers.spawn(read(body, sender.clone()));
        }
    }
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let name = format!("told-{watchers}-{number}");
        let start = now();
        create(connection, OBJECTS, &json!({ "metadata": { "name": name } })).await?;
        let mut told = 0;
        while told < watchers {
            let (at, count): (Instant, usize) = receiver.recv().await.context("a watch ended")?;
            told += count;
            times.extend(std::iter::repeat_n(at.duration_since(start), count));
        }
    }
    table.row(
        format!("a change told to {watchers} watchers, from the start of the POST"),
        percentiles(&mut times),
    );
    readers.shutdown().await;
    connection.expect(Method::DELETE, OBJECTS, Bytes::new()).await.map(drop)
}

async fn read(mut body: Incoming, sender: mpsc::UnboundedSender<(Instant, usize)>) -> anyhow::Result<()> {
    const MARK: &[u8] = b"\"name\":\"told-";
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let told = data.windows(MARK.len()).filter(|part| *part == MARK).count();
        sender.send((now(), told))?;
    }
    Ok(())
}
