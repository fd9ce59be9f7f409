//! The past in etcd: reading it, and compaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use store::{BackendError, Change, History, Operation, Prefix, Record};
use tokio::runtime::Handle;

use crate::ledger::{Shared, backend_error, number};
use crate::members::Failure;
use crate::row::Row;

/// Rows that are read at a time.
const PAGE: i64 = 100;
/// Rows that one transaction visits: it may delete two for each, and etcd takes 128 operations.
const SWEEP: usize = 60;

/// Reads the past beside the writer.
pub(crate) struct Past {
    pub(crate) ledger: Shared,
    pub(crate) runtime: Handle,
    pub(crate) floor: AtomicU64,
}

impl History for Past {
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError> {
        self.runtime
            .block_on(self.read(prefix, after, until, limit))
            .map_err(backend_error)
    }

    fn blocks(&self) -> bool {
        true
    }

    fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }
}

impl Past {
    async fn read(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, Failure> {
        let mut changes: Vec<Change> = Vec::new();
        let mut from = after.saturating_add(1);
        while from <= until && changes.len() < limit {
            let (rows, more) = self.page(from, until).await?;
            from = rows.last().map_or(until, |last| last.record.revision).saturating_add(1);
            let wanted = rows.into_iter().filter(|row| prefix.contains(&row.record.key));
            let wanted: Vec<Record> = wanted.map(|row| row.record).take(limit - changes.len()).collect();
            for record in wanted {
                let previous = self.bytes(record.previous).await?;
                changes.push(Change { record, previous });
            }
            if !more {
                break;
            }
        }
        // Read last: everything removed meanwhile is below it.
        self.ask_floor().await?;
        Ok(changes)
    }

    async fn page(&self, from: u64, until: u64) -> Result<(Vec<Row>, bool), Failure> {
        let names = &self.ledger.names;
        let (from, end) = (names.row(from), names.row(until.saturating_add(1)));
        let page = self.ledger.range(&from, &end, 0, PAGE).await?;
        let rows = page.kvs().iter().map(|pair| self.ledger.decode(pair));
        Ok((rows.collect::<Result<_, _>>()?, page.more()))
    }

    async fn bytes(&self, revision: u64) -> Result<Option<Bytes>, Failure> {
        if revision == 0 {
            return Ok(None);
        }
        let (rows, _) = self.page(revision, revision).await?;
        Ok(rows.into_iter().next().map(|row| row.record.bytes))
    }

    async fn ask_floor(&self) -> Result<(), Failure> {
        let (floor, _) = marks(&self.ledger).await?;
        self.floor.fetch_max(floor, Ordering::Relaxed);
        Ok(())
    }
}

/// The floor, and the revision up to which compaction has come.
async fn marks(ledger: &Shared) -> Result<(u64, u64), Failure> {
    let names = &ledger.names;
    let txn = Txn::new().and_then([
        TxnOp::get(names.floor.as_str(), None),
        TxnOp::get(names.swept.as_str(), None),
    ]);
    let mut marks = Vec::new();
    for response in ledger.txn(txn).await.1?.op_responses() {
        if let TxnOpResponse::Get(found) = response {
            marks.push(found.kvs().first().map(number).transpose()?.unwrap_or(0));
        }
    }
    let [floor, swept] = <[u64; 2]>::try_from(marks).unwrap_or_default();
    Ok((floor, swept))
}

/// Compares a number with the value that was read.
fn still(key: &str, value: u64) -> Compare {
    Compare::value(key, CompareOp::Equal, value.to_string())
}

/// Runs one step of compaction; `true` if there is more to do. Any process may do it: the second
/// one finds it done.
pub(crate) async fn sweep(ledger: &Shared, floor: u64, limit: usize) -> Result<bool, Failure> {
    let names = &ledger.names;
    let (known, swept) = marks(ledger).await?;
    if floor > known {
        // The floor is raised first, so that no reader takes an incomplete past for a complete one.
        let raise = Txn::new().when([still(&names.floor, known)]).and_then([TxnOp::put(
            names.floor.as_str(),
            floor.to_string(),
            None,
        )]);
        if !ledger.txn(raise).await.1?.succeeded() {
            return Ok(true);
        }
    }
    if floor <= swept {
        return Ok(false);
    }
    let limit = limit.min(SWEEP);
    let (from, end) = (names.row(swept.saturating_add(1)), names.row(floor.saturating_add(1)));
    let page = i64::try_from(limit).unwrap_or(1);
    let found = ledger.range(&from, &end, 0, page).await?;
    let mut deletions = Vec::new();
    let mut reached = swept;
    for pair in found.kvs() {
        let record = ledger.decode(pair)?.record;
        reached = record.revision;
        if record.previous > 0 {
            deletions.push(TxnOp::delete(names.row(record.previous), None));
        }
        if record.operation == Operation::Delete {
            deletions.push(TxnOp::delete(names.row(record.revision), None));
        }
    }
    let more = found.more();
    let reached = if more { reached } else { floor };
    deletions.push(TxnOp::put(names.swept.as_str(), reached.to_string(), None));
    let txn = Txn::new().when([still(&names.swept, swept)]).and_then(deletions);
    Ok(!ledger.txn(txn).await.1?.succeeded() || more)
}

/// A reader of the past.
pub(crate) fn past(ledger: &Shared, runtime: &Handle, floor: u64) -> Arc<Past> {
    Arc::new(Past {
        ledger: Arc::clone(ledger),
        runtime: runtime.clone(),
        floor: AtomicU64::new(floor),
    })
}
