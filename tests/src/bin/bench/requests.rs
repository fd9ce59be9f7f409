//! The API under load: durable creates, reads and a large list, each over TLS connections of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use tests::http::Target;
use tests::machine::Machine;
use tests::process;
use tokio::task::JoinSet;

use crate::figures::{Table, milliseconds, now, percentiles, rate};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SPAN: Duration = Duration::from_secs(3);

/// Creates per second at 1, 16 and 64 connections, reads, and the list of `stored` pods.
pub(crate) async fn measure(
    machine: &Machine,
    target: &Target,
    table: &mut Table,
    stored: usize,
) -> anyhow::Result<()> {
    let counter = Arc::new(AtomicUsize::new(0));
    for connections in [1, 16, 64] {
        let counter = Arc::clone(&counter);
        let (figure, mut times) = load(target, connections, move || {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            (Method::POST, CONFIG_MAPS.to_owned(), config_map(number))
        })
        .await?;
        table.row(
            format!("creates of a 2 KiB ConfigMap, {connections} connections"),
            format!("{figure}, {}", percentiles(&mut times)),
        );
    }
    for connections in [1, 16] {
        let path = format!("{CONFIG_MAPS}/bench-0");
        let (figure, mut times) = load(target, connections, move || (Method::GET, path.clone(), Bytes::new())).await?;
        table.row(
            format!("GET, {connections} connections"),
            format!("{figure}, {}", percentiles(&mut times)),
        );
    }
    let mut connection = target.connect().await?;
    connection.expect(Method::DELETE, CONFIG_MAPS, Bytes::new()).await?;
    store_pods(target, stored).await?;
    lists(machine.daemon("skiff-controlplane")?, target, table, stored).await
}

/// Measures one client's list of all pods, and sixteen lists at once.
async fn lists(server: i32, target: &Target, table: &mut Table, stored: usize) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..7 {
        let start = now();
        size = connection.expect(Method::GET, PODS, Bytes::new()).await?.len();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    table.row(
        format!("LIST of {stored} pods"),
        format!("{}, {} KiB", milliseconds(middle), size / 1024),
    );
    let before = process::reset_peak(server)?;
    let mut readers = JoinSet::new();
    for _ in 0..16 {
        let mut connection = target.connect().await?;
        readers.spawn(async move {
            // The body is not kept: the benchmark measures the server.
            let mut body = connection.open(Method::GET, PODS, Bytes::new()).await?.into_body();
            while let Some(frame) = body.frame().await {
                frame?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    let more = process::peak_kib(server)?.saturating_sub(before);
    table.row(
        format!("16 LISTs of {stored} pods at once, more memory"),
        format!("{} MiB", more.div_ceil(1024)),
    );
    Ok(())
}

fn config_map(number: usize) -> Bytes {
    let filling = "x".repeat(1900);
    let map = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("bench-{number}")},
        "data": {"filling": filling},
    });
    Bytes::from(map.to_string())
}

/// Stores pods that no scheduler and no node touches.
async fn store_pods(target: &Target, count: usize) -> anyhow::Result<()> {
    let mut writers = JoinSet::new();
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..64 {
        let (mut connection, next) = (target.connect().await?, Arc::clone(&next));
        writers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let pod = serde_json::json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("stored-{number}"), "labels": {"app": "stored"}},
                    "spec": {
                        "schedulerName": "nobody",
                        "containers": [{"name": "web", "image": "nginx:1", "ports": [{"containerPort": 80}]}],
                    },
                });
                connection
                    .expect(Method::POST, PODS, Bytes::from(pod.to_string()))
                    .await?;
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Sends the requests of `make` over `connections` connections for a fixed span, each waiting for
/// its response.
async fn load(
    target: &Target,
    connections: usize,
    make: impl Fn() -> (Method, String, Bytes) + Clone + Send + 'static,
) -> anyhow::Result<(String, Vec<Duration>)> {
    let mut workers = JoinSet::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(target.connect().await?);
    }
    let start = now();
    for mut connection in open {
        let make = make.clone();
        workers.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < SPAN {
                let (method, path, body) = make();
                let sent = now();
                connection.expect(method, &path, body).await?;
                times.push(sent.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = workers.join_next().await {
        times.extend(ended??);
    }
    Ok((rate(times.len(), start.elapsed()), times))
}
