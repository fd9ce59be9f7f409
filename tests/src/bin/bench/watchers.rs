//! Cost of many watchers, and the latency of their events.

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tests::http::Target;
use tests::machine::Machine;
use tests::process;
use tokio::task::JoinSet;

use crate::figures::{Table, now, rate};

const WATCHERS: usize = 10_000;
const A_CONNECTION: usize = 100;
const CHANGES: usize = 100;
const OBJECTS: &str = "/api/v1/namespaces/kube-public/configmaps";

/// Ten thousand watchers of one namespace over a hundred connections, and a hundred changes that
/// all of them receive.
pub(crate) async fn measure(machine: &Machine, target: &Target, table: &mut Table) -> anyhow::Result<()> {
    let server = machine.daemon("skiff-controlplane")?;
    let before = process::pss_kib(server)?;
    let path = format!("{OBJECTS}?watch=true&timeoutSeconds=600");
    let mut readers = JoinSet::new();
    let mut drivers = Vec::new();
    for _ in 0..WATCHERS / A_CONNECTION {
        let watches = target.watches(&path, A_CONNECTION).await?;
        drivers.push(watches.driver);
        for body in watches.bodies {
            readers.spawn(read(body));
        }
    }
    let held = process::pss_kib(server)?.saturating_sub(before);
    // In hundredths: a watcher takes some KiB.
    let each = held * 100 / u64::try_from(WATCHERS)?;
    table.row(
        format!("{WATCHERS} watchers, each"),
        format!("{}.{:02} KiB", each / 100, each % 100),
    );
    let mut writer = target.connect().await?;
    let begun = now();
    for number in 0..CHANGES {
        let map = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("told-{number}")},
        });
        writer
            .expect(Method::POST, OBJECTS, Bytes::from(map.to_string()))
            .await?;
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    table.row(
        format!("{CHANGES} changes told to each of them"),
        format!("{} deliveries", rate(WATCHERS * CHANGES, begun.elapsed())),
    );
    writer.expect(Method::DELETE, OBJECTS, Bytes::new()).await?;
    Ok(())
}

/// Reads until all of the changes have arrived; other objects of the namespace come first.
async fn read(mut body: Incoming) -> anyhow::Result<()> {
    const MARK: &[u8] = b"\"name\":\"told-";
    let mut told = 0;
    let mut rest: Vec<u8> = Vec::new();
    while told < CHANGES {
        let frame = body.frame().await.context("the server ended a watch")??;
        let Ok(data) = frame.into_data() else { continue };
        rest.extend_from_slice(&data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = rest.drain(..=end);
            told += usize::from(line.as_slice().windows(MARK.len()).any(|part| part == MARK));
        }
    }
    Ok(())
}
