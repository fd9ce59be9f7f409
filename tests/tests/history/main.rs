//! Many writers, readers and watchers while the control plane is killed again and again: is what they saw together
//! one history?
//!
//! Every request is recorded with its start and end. The watchers' events give the order in which
//! the changes took effect; `check` replays them and looks for responses that no single, durable
//! copy of the objects could have given.

#![allow(clippy::panic, reason = "a test fails by panicking")]

mod check;
mod clients;
mod lies;
mod record;
mod watchers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tests::machine::{Namespace, TIMEOUT};
use tests::server::Server;
use tokio::task::JoinSet;

use self::record::Record;
use self::watchers::Watcher;

/// Number of kills of the control plane.
const KILLS: u64 = 8;
const WRITERS: u64 = 8;
const READERS: u64 = 2;

#[tokio::test(flavor = "current_thread")]
async fn writers_and_watchers_share_one_history() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("history")?;
    namespace.enter()?;
    let mut server = Server::start(Some(namespace), "127.0.0.1:6443")?;
    let target = server.ready().await?;
    let record = Arc::new(Record::default());
    let mut watchers = JoinSet::new();
    for watcher in Watcher::every_sort() {
        watchers.spawn(watcher.follow(target.clone(), Arc::clone(&record)));
    }
    let followed = async {
        while record.following() < watchers.len() as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, followed)
        .await
        .context("the watchers begin")?;
    for round in 0..KILLS {
        server.ready().await.with_context(|| format!("round {round}"))?;
        let mut clients = JoinSet::new();
        record.killed(false);
        for number in 0..WRITERS {
            clients.spawn(clients::write(
                target.clone(),
                Arc::clone(&record),
                round * 100 + number,
            ));
        }
        for number in 0..READERS {
            clients.spawn(clients::read(target.clone(), Arc::clone(&record), round * 100 + number));
        }
        let (writes, reads) = (record.writes().len(), record.readings().len());
        let busy = async {
            while record.writes().len() < writes + 32 || record.readings().len() < reads + 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // Why they are idle is told when they have ended.
        tokio::time::timeout(TIMEOUT, busy).await.ok();
        // The moment of the kill differs from round to round.
        tokio::time::sleep(Duration::from_millis(300 + round * 37)).await;
        record.killed(true);
        server.kill()?;
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        server.again()?;
    }
    let target = server.ready().await?;
    record.last(clients::last(&target, &record).await?);
    clients::nudge(&target).await?;
    let seen = tokio::time::timeout(TIMEOUT, watchers.join_all())
        .await
        .context("the watchers see the last change")?;
    let seen = seen.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    check::history(&record, &seen)?;
    lies::are_found(&record, &seen)?;
    server.finish()
}
