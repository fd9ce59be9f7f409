//! Requests to the ledger in etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use store::{Loaded, Operation};

use crate::members::{Failure, Members};
use crate::row::{Names, Row, decode};

/// Timeout of a request, over all members.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(8);
/// Rows in a page.
const PAGE: i64 = 250;

/// The ledger of one prefix.
pub(crate) struct Ledger {
    pub(crate) members: Members,
    pub(crate) names: Names,
}

/// The whole ledger at one of etcd's revisions.
pub(crate) struct Snapshot {
    pub(crate) loaded: Loaded,
    pub(crate) etcd: i64,
}

/// Changes after a known revision.
pub(crate) struct Missed {
    /// In order, from the known revision to the head without gaps.
    pub(crate) rows: Vec<Row>,
    pub(crate) etcd: i64,
}

impl Ledger {
    /// The newest revision, and etcd's own; `None` if there is no ledger yet.
    pub(crate) async fn head(&self, limit: Duration) -> Result<(Option<u64>, i64), Failure> {
        let names = &self.names;
        let ask = |mut kv: etcd_client::KvClient| async move { kv.get(names.head.as_str(), None).await };
        let answer = self.members.call(limit, ask).await.1?;
        let head = answer.kvs().first().map(number).transpose()?;
        Ok((head, revision(&answer)))
    }

    /// Creates the ledger, unless it exists.
    pub(crate) async fn begin(&self, at: u64) -> Result<(), Failure> {
        let head = self.names.head.as_str();
        let marks = [head, self.names.floor.as_str(), self.names.swept.as_str()];
        let txn = Txn::new()
            .when([Compare::version(head, CompareOp::Equal, 0)])
            .and_then(marks.map(|mark| TxnOp::put(mark, at.to_string(), None)));
        self.txn(txn).await.1.map(drop)
    }

    /// Runs a transaction; also returns how often it was sent.
    pub(crate) async fn txn(&self, txn: Txn) -> (u32, Result<TxnResponse, Failure>) {
        let ask = |mut kv: etcd_client::KvClient| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        };
        self.members.call(TIMEOUT, ask).await
    }

    /// Key-value pairs of a range at one of etcd's revisions, 0 for the newest.
    pub(crate) async fn range(&self, from: &str, end: &str, at: i64, limit: i64) -> Result<GetResponse, Failure> {
        let options = GetOptions::new().with_range(end).with_revision(at).with_limit(limit);
        let ask = |mut kv: etcd_client::KvClient| {
            let options = options.clone();
            async move { kv.get(from, Some(options)).await }
        };
        self.members.call(TIMEOUT, ask).await.1
    }

    /// Loads the whole ledger, in pages of one snapshot.
    pub(crate) async fn load(&self) -> Result<Snapshot, Failure> {
        let names = &self.names;
        let txn = Txn::new().and_then([
            TxnOp::get(names.head.as_str(), None),
            TxnOp::get(names.floor.as_str(), None),
        ]);
        let answer = self.txn(txn).await.1?;
        let etcd = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let mut numbers = Vec::new();
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(found) = response {
                numbers.push(found.kvs().first().map(number).transpose()?.unwrap_or(0));
            }
        }
        let [head, floor] = <[u64; 2]>::try_from(numbers).unwrap_or_default();
        let mut heads = BTreeMap::new();
        let mut from = names.row(0);
        loop {
            let page = self.range(&from, &names.row(u64::MAX), etcd, PAGE).await?;
            for pair in page.kvs() {
                let row = self.decode(pair)?;
                match row.record.operation {
                    Operation::Delete => heads.remove(&row.record.key),
                    Operation::Create | Operation::Update => heads.insert(row.record.key.clone(), row.record),
                };
            }
            match page.kvs().last().and_then(|last| last.key_str().ok()) {
                Some(last) if page.more() => from = format!("{last}\0"),
                _ => break,
            }
        }
        Ok(Snapshot {
            loaded: Loaded {
                revision: head,
                floor,
                heads: heads.into_values().collect(),
            },
            etcd,
        })
    }

    /// Returns the changes after a revision, if all of them still exist and are not too many.
    pub(crate) async fn missed(&self, known: u64) -> Result<Option<Missed>, Failure> {
        let names = &self.names;
        let rows = GetOptions::new().with_range(names.row(u64::MAX)).with_limit(PAGE);
        let txn = Txn::new().and_then([
            TxnOp::get(names.head.as_str(), None),
            TxnOp::get(names.row(known.saturating_add(1)), Some(rows)),
        ]);
        self.in_order(known, &self.txn(txn).await.1?)
    }

    /// Extracts the changes after a revision from an answer with the head and the rows.
    pub(crate) fn in_order(&self, known: u64, answer: &TxnResponse) -> Result<Option<Missed>, Failure> {
        let found = answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(found) => Some(found),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
        });
        let found: Vec<GetResponse> = found.collect();
        let [head, rows, ..] = found.as_slice() else {
            return Ok(None);
        };
        let head = head.kvs().first().map(number).transpose()?.unwrap_or(0);
        let mut missed = Vec::new();
        let mut next = known;
        for pair in rows.kvs() {
            let row = self.decode(pair)?;
            if row.record.revision != next.saturating_add(1) {
                return Ok(None);
            }
            next = row.record.revision;
            missed.push(row);
        }
        Ok((next == head).then(|| Missed {
            rows: missed,
            etcd: answer.header().map_or(0, etcd_client::ResponseHeader::revision),
        }))
    }

    pub(crate) fn decode(&self, pair: &KeyValue) -> Result<Row, Failure> {
        decode(&self.names, pair).ok_or_else(|| foreign(pair))
    }
}

impl store::Peers for Ledger {
    fn newest(&self) -> store::Newest<'_> {
        Box::pin(async move {
            let (head, _) = self.head(TIMEOUT).await.map_err(backend_error)?;
            Ok(head.unwrap_or(0))
        })
    }
}

/// The ledger, shared by its users.
pub(crate) type Shared = Arc<Ledger>;

/// Parses a value as a decimal number.
pub(crate) fn number(pair: &KeyValue) -> Result<u64, Failure> {
    let text = pair.value_str().ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| foreign(pair))
}

fn foreign(pair: &KeyValue) -> Failure {
    Failure::Foreign {
        key: String::from_utf8_lossy(pair.key()).into_owned(),
    }
}

fn revision(answer: &GetResponse) -> i64 {
    answer.header().map_or(0, etcd_client::ResponseHeader::revision)
}

/// Converts a failure to the store's error.
pub(crate) fn backend_error(failure: Failure) -> store::BackendError {
    match failure {
        Failure::Full(_) => store::BackendError::Full(failure.into()),
        Failure::Silent { .. } => store::BackendError::Unknown(failure.into()),
        Failure::Foreign { .. } => store::BackendError::Corrupt(failure.into()),
        Failure::Compacted | Failure::Refused(_) => store::BackendError::Io(failure.into()),
    }
}
