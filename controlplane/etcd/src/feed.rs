//! The watch of the log: appends of all processes, in order.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{WatchFilterType, WatchOptions, WatchStream};
use store::{Loaded, Wake};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::ledger::{Shared, TIMEOUT};
use crate::members::Failure;
use crate::row::Row;

/// Capacity of the queue from the watch to the writer.
const QUEUE: usize = 256;
/// Interval of compaction in etcd: the watch and paged loads need no longer history.
const COMPACTION: Duration = Duration::from_mins(5);
/// Pause between two attempts to resume the watch.
const PAUSE: Duration = Duration::from_millis(100);

/// A message of the watch.
pub(crate) enum Fed {
    /// Changes, including this process' own.
    Rows(Vec<Row>),
    /// The whole ledger: changes in between are compacted.
    Anew(Loaded),
    /// The ledger was replaced or lost.
    Lost(String),
}

/// State of the watch's task.
pub(crate) struct Feed {
    pub(crate) ledger: Shared,
    pub(crate) sender: mpsc::Sender<Fed>,
    pub(crate) wake: Arc<OnceLock<Wake>>,
    /// The newest revision that was sent.
    pub(crate) seen: u64,
    /// etcd's revision up to which all changes were sent.
    pub(crate) etcd: i64,
}

/// Reason why a stream ended.
enum End {
    /// The receiver was dropped.
    Closed,
    /// The stream broke, or another member is used now.
    Broken(String),
    /// The revision to resume from is compacted.
    Compacted,
}

/// The queue between the task and the writer.
pub(crate) fn channel() -> (mpsc::Sender<Fed>, mpsc::Receiver<Fed>) {
    mpsc::channel(QUEUE)
}

impl Feed {
    /// Sends changes until the receiver is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let at = self.ledger.members.current().0;
            let end = match self.stream(at).await {
                Ok(end) => end,
                Err(error) => End::Broken(error.to_string()),
            };
            match end {
                End::Closed => return,
                End::Broken(reason) => {
                    debug!(reason, "the watch of etcd broke");
                    self.ledger.members.leave(at).await;
                }
                End::Compacted => match self.catch_up().await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(failure) => warn!(error = &failure as &dyn std::error::Error, "catch up with etcd"),
                },
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn stream(&mut self, at: usize) -> Result<End, etcd_client::Error> {
        let ledger = Arc::clone(&self.ledger);
        let (_, Some(mut member)) = ledger.members.current() else {
            return Ok(End::Closed);
        };
        let log = ledger.names.log.as_str();
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(self.etcd.saturating_add(1))
            .with_filters([WatchFilterType::NoDelete]);
        let opening = tokio::time::timeout(Duration::from_secs(2), member.watch.watch(log, Some(options))).await;
        let mut stream: WatchStream = match opening {
            Ok(stream) => stream?,
            Err(_elapsed) => return Ok(End::Broken("no answer".to_owned())),
        };
        loop {
            let message = tokio::select! {
                message = stream.message() => message?,
                () = ledger.members.left(at) => return Ok(End::Broken("another member is asked".to_owned())),
                () = self.sender.closed() => return Ok(End::Closed),
            };
            let Some(message) = message else {
                return Ok(End::Broken("the stream ended".to_owned()));
            };
            if message.compact_revision() > 0 {
                return Ok(End::Compacted);
            }
            if message.canceled() {
                return Ok(End::Broken(message.cancel_reason().to_owned()));
            }
            let pairs = message.events().iter().filter_map(etcd_client::Event::kv);
            let mut rows = Vec::new();
            for pair in pairs {
                self.etcd = self.etcd.max(pair.mod_revision());
                match ledger.decode(pair) {
                    Ok(row) => rows.push(row),
                    Err(failure) => {
                        self.send(Fed::Lost(failure.to_string())).await;
                        return Ok(End::Closed);
                    }
                }
            }
            rows.sort_by_key(|row| row.record.revision);
            if !self.send_rows(rows).await {
                return Ok(End::Closed);
            }
        }
    }

    async fn send_rows(&mut self, rows: Vec<Row>) -> bool {
        let Some(last) = rows.last() else { return true };
        self.seen = self.seen.max(last.record.revision);
        self.send(Fed::Rows(rows)).await
    }

    async fn send(&self, fed: Fed) -> bool {
        let sent = self.sender.send(fed).await.is_ok();
        if let Some(wake) = self.wake.get() {
            wake();
        }
        sent
    }

    /// Resumes after a compaction in etcd. `false` if the watch must end.
    async fn catch_up(&mut self) -> Result<bool, Failure> {
        let (head, _) = self.ledger.head(TIMEOUT).await?;
        let head = head.unwrap_or(0);
        if head < self.seen {
            let reason = format!(
                "etcd is at revision {head} of the ledger, which was at {} already",
                self.seen
            );
            self.send(Fed::Lost(reason)).await;
            return Ok(false);
        }
        if let Some(missed) = self.ledger.missed(self.seen).await? {
            self.etcd = missed.etcd;
            return Ok(self.send_rows(missed.rows).await);
        }
        let snapshot = self.ledger.load().await?;
        (self.seen, self.etcd) = (snapshot.loaded.revision, snapshot.etcd);
        Ok(self.send(Fed::Anew(snapshot.loaded)).await)
    }
}

/// Compacts etcd's history at intervals; whichever process comes first does it.
pub(crate) async fn compact(ledger: Shared) {
    let mut before = 0;
    loop {
        tokio::time::sleep(COMPACTION).await;
        if before > 0 {
            let ask = |mut kv: etcd_client::KvClient| async move { kv.compact(before, None).await };
            match ledger.members.call(TIMEOUT, ask).await.1 {
                Ok(_) => info!(revision = before, "etcd's past is compacted"),
                // Another process was first.
                Err(Failure::Compacted) => {}
                Err(failure) => warn!(error = &failure as &dyn std::error::Error, "compact etcd"),
            }
        }
        before = ledger.head(TIMEOUT).await.map_or(before, |(_, etcd)| etcd);
    }
}
