//! `skiff logs`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use tokio::time::Instant;

use crate::arguments::{LogsOptions, Place};
use crate::client::api::{Api, is_starting, with_query};
use crate::client::pods;
use crate::terminal;

/// Longest time for a container that is followed to start, and the time between two attempts, as
/// kubectl's.
const TIMEOUT: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(1);

pub(crate) async fn run(place: &Place, options: &LogsOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let pods = chosen(&api, options).await?;
    if pods.is_empty() {
        bail!("no pods found in {} namespace", options.scope.namespace);
    }
    let several = pods.len() > 1;
    if options.follow {
        let logs = pods.iter().map(|pod| follow(&api, pod, options, several));
        futures::future::try_join_all(logs).await?;
        return Ok(());
    }
    for pod in &pods {
        print(&api, pod, options, several).await?;
    }
    Ok(())
}

/// Returns the names of the selected pods.
async fn chosen(api: &Api, options: &LogsOptions) -> anyhow::Result<Vec<String>> {
    let namespace = &options.scope.namespace;
    if let Some(selector) = &options.selector {
        return pods::list(api, namespace, selector).await;
    }
    let target = options.target.as_deref().unwrap_or_default();
    Ok(vec![pods::one(api, namespace, target).await?])
}

/// Prints a log as it grows, once the container has started.
async fn follow(api: &Api, pod: &str, options: &LogsOptions, prefixed: bool) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        match print(api, pod, options, prefixed).await {
            Err(error) if is_starting(&error) && Instant::now() < end => terminal::note(format!("{error:#}")),
            outcome => return outcome,
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn print(api: &Api, pod: &str, options: &LogsOptions, prefixed: bool) -> anyhow::Result<()> {
    let flag = |set: bool| set.then_some("true");
    let tail = options.tail.map(|lines| lines.to_string());
    let path = with_query(
        &format!("/api/v1/namespaces/{}/pods/{pod}/log", options.scope.namespace),
        &[
            ("container", options.container.as_deref()),
            ("follow", flag(options.follow)),
            ("previous", flag(options.previous)),
            ("timestamps", flag(options.timestamps)),
            ("tailLines", tail.as_deref()),
        ],
    );
    let stream = api
        .stream(&path, false)
        .await
        .with_context(|| format!("the log of {pod}"))?;
    copy(
        stream,
        &if prefixed {
            format!("[pod/{pod}] ")
        } else {
            String::new()
        },
    )
    .await
}

/// Copies line by line; long lines in pieces.
async fn copy(stream: impl AsyncBufRead + Unpin, prefix: &str) -> anyhow::Result<()> {
    const PIECE: u64 = 64 << 10;
    let mut stream = stream;
    let mut begins = true;
    loop {
        let mut piece = Vec::new();
        if (&mut stream).take(PIECE).read_until(b'\n', &mut piece).await? == 0 {
            return Ok(());
        }
        if begins {
            terminal::write(prefix)?;
        }
        terminal::write_bytes(&piece)?;
        begins = piece.ends_with(b"\n");
    }
}
