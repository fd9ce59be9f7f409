//! Backend of the store in etcd.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use store::{Backend, BackendError, Followed, History, Limits, Loaded, Options, Peers, Record, Wake};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use crate::address::{Address, Identity};
use crate::feed::{Fed, Feed, channel, compact};
use crate::history::{past, sweep};
use crate::ledger::{Ledger, Missed, Shared, TIMEOUT, backend_error};
use crate::members::{Failure, Members};
use crate::room::Room;
use crate::row::{Batch, Names, Row, encode};
use crate::{BoxFuture, OpenError};

/// Largest batch for one append: etcd takes 128 operations, two for each change, and 1.5 MiB.
pub(crate) const LIMITS: Limits = Limits {
    writes: 40,
    bytes: 1 << 20,
};
/// Timeout of the first request: members that start together elect a leader first.
const OPENING: Duration = Duration::from_secs(30);
/// Rows that a refused append returns at once.
const OVERTAKEN: i64 = 64;
/// First revision of a ledger that replaces a lost one: above all that clients may have seen.
const FAR: u64 = 1 << 40;
/// Error message after another process has deleted the reserve.
const GIVEN: &str = "another control plane has given the space that was kept for deletions";

/// A ledger in etcd.
pub struct Etcd {
    runtime: Handle,
    ledger: Shared,
    loaded: Option<Loaded>,
    floor: u64,
    /// The newest revision that the store knows.
    revision: u64,
    /// Received rows that are not yet followed, without gaps after `revision`.
    pending: VecDeque<Row>,
    anew: Option<Loaded>,
    lost: Option<String>,
    received: mpsc::Receiver<Fed>,
    wake: Arc<OnceLock<Wake>>,
    writer: u64,
    batches: u64,
    room: Room,
    tasks: JoinSet<()>,
}

impl Etcd {
    /// Connects to the members, loads the ledger, and starts to watch it. The current runtime
    /// serves it from then on: the store must be used from a thread that is not one of its workers.
    pub fn open<'a>(
        address: &'a Address,
        identity: &'a Identity,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<Self, OpenError>> {
        Box::pin(Self::connect(address, identity, options))
    }

    async fn connect(address: &Address, identity: &Identity, options: &Options) -> Result<Self, OpenError> {
        let asked = |source| OpenError::Ask {
            members: address.members.join(","),
            source,
        };
        let ledger = Arc::new(Ledger {
            members: Members::connect(address, identity).await?,
            names: Names::new(&address.prefix),
        });
        if ledger.head(OPENING).await.map_err(asked)?.0.is_none() {
            if options.existed && !options.accept_loss {
                return Err(OpenError::Lost {
                    address: address.to_string(),
                });
            }
            let at = if options.existed { FAR } else { 0 };
            ledger.begin(at).await.map_err(asked)?;
        }
        let mut room = Room::default();
        if let Err(failure) = room.take(&ledger).await {
            // If another process has given it, the first transaction finds out.
            room.kept = matches!(failure, Failure::Full(_));
            warn!(
                error = &failure as &dyn std::error::Error,
                "keep room for deletions in etcd"
            );
        }
        let snapshot = ledger.load().await.map_err(asked)?;
        let (sender, received) = channel();
        let wake = Arc::default();
        let feed = Feed {
            ledger: Arc::clone(&ledger),
            sender,
            wake: Arc::clone(&wake),
            seen: snapshot.loaded.revision,
            etcd: snapshot.etcd,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(feed.run());
        tasks.spawn(compact(Arc::clone(&ledger)));
        Ok(Self {
            runtime: Handle::current(),
            ledger,
            floor: snapshot.loaded.floor,
            revision: snapshot.loaded.revision,
            loaded: Some(snapshot.loaded),
            pending: VecDeque::new(),
            anew: None,
            lost: None,
            received,
            wake,
            writer: rand::random(),
            batches: 0,
            room,
            tasks,
        })
    }

    /// The newest received revision.
    fn known(&self) -> u64 {
        self.pending.back().map_or(self.revision, |row| row.record.revision)
    }

    fn take(&mut self, fed: Fed) {
        match fed {
            Fed::Rows(rows) => self.take_rows(rows),
            Fed::Anew(loaded) => {
                // Earlier rows may or may not be included.
                if loaded.revision >= self.known() {
                    self.pending.clear();
                    self.anew = Some(loaded);
                }
            }
            Fed::Lost(reason) => self.lost = Some(reason),
        }
    }

    fn take_rows(&mut self, rows: Vec<Row>) {
        for row in rows {
            let known = self.anew.as_ref().map_or(0, |anew| anew.revision).max(self.known());
            let revision = row.record.revision;
            if revision == known.saturating_add(1) {
                self.pending.push_back(row);
            } else if revision > known {
                self.lost = Some(format!("revision {revision} of the ledger came after {known}"));
            }
        }
    }

    /// Waits until a message arrives that is not followed yet.
    async fn wait(&mut self) -> Result<(), BackendError> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while self.pending.is_empty() && self.anew.is_none() && self.lost.is_none() {
            match tokio::time::timeout_at(deadline, self.received.recv()).await {
                Ok(Some(fed)) => self.take(fed),
                Ok(None) => self.lost = Some("the watch has ended".to_owned()),
                Err(elapsed) => return Err(BackendError::Io(elapsed.into())),
            }
        }
        Ok(())
    }

    async fn store(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Ok(());
        };
        if self.room.is_given() {
            return Err(BackendError::Full(GIVEN.into()));
        }
        self.batches += 1;
        let batch = Batch {
            writer: self.writer,
            number: self.batches,
        };
        let (sent, answer) = self.ledger.txn(self.transaction(records, batch, last.revision)).await;
        // etcd may say so of a transaction that it has done (`quotaApplierV3` of
        // `server/etcdserver/apply`, v3.5), and of an earlier attempt it says nothing.
        let unclear = sent > 1 || matches!(answer, Err(Failure::Full(_)));
        let missed = match answer {
            Ok(answer) if answer.succeeded() => {
                self.revision = last.revision;
                return Ok(());
            }
            Ok(answer) => {
                self.room.notice(&answer);
                self.ledger.in_order(self.known(), &answer).map_err(backend_error)?
            }
            Err(failure) if unclear && failure.is_answer() => self.changed_beside(failure, sent).await?,
            Err(failure) => return Err(backend_error(failure)),
        };
        self.take_rows(missed.map(|missed| missed.rows).unwrap_or_default());
        let waited = if self.room.is_given() {
            Ok(())
        } else {
            self.wait().await
        };
        let next = self.pending.front().filter(|_| self.anew.is_none());
        match next.map(|row| row.batch == batch && row.record.revision == first.revision) {
            // Done, though the answer was lost or said otherwise.
            Some(true) => {
                self.revision = last.revision;
                self.pending.retain(|row| row.record.revision > last.revision);
                Ok(())
            }
            None if unclear => Err(BackendError::Unknown(
                "the changes meanwhile are not to be had any more".into(),
            )),
            Some(false) | None if self.room.is_given() => Err(BackendError::Full(GIVEN.into())),
            Some(false) | None => waited.and(Err(BackendError::Overtaken)),
        }
    }

    /// Changes since the newest known one, after a refusal for another reason. While nothing has
    /// changed, an earlier attempt may still be done; the only one was refused.
    async fn changed_beside(&self, refusal: Failure, sent: u32) -> Result<Option<Missed>, BackendError> {
        match self.ledger.missed(self.known()).await {
            Ok(Some(missed)) if missed.rows.is_empty() && self.pending.is_empty() => Err(if sent > 1 {
                BackendError::Unknown(refusal.into())
            } else {
                backend_error(refusal)
            }),
            Ok(missed) => Ok(missed),
            Err(failure) => Err(BackendError::Unknown(failure.into())),
        }
    }

    fn transaction(&self, records: &[Record], batch: Batch, newest: u64) -> Txn {
        let names = &self.ledger.names;
        let mut operations = vec![TxnOp::put(names.head.as_str(), newest.to_string(), None)];
        for record in records {
            operations.push(TxnOp::put(names.row(record.revision), encode(record, batch), None));
            // A row of the same batch is left to compaction: no two operations of a transaction may
            // touch the same key.
            if record.drop_previous && record.previous <= self.revision {
                operations.push(TxnOp::delete(names.row(record.previous), None));
            }
        }
        let rows = GetOptions::new().with_range(names.row(u64::MAX)).with_limit(OVERTAKEN);
        let newest = Compare::value(names.head.as_str(), CompareOp::Equal, self.revision.to_string());
        let conditions = std::iter::once(newest).chain(self.room.condition(&self.ledger));
        Txn::new()
            .when(conditions.collect::<Vec<_>>())
            .and_then(operations)
            .or_else([
                TxnOp::get(names.head.as_str(), None),
                TxnOp::get(names.row(self.known().saturating_add(1)), Some(rows)),
                Room::question(&self.ledger),
            ])
    }
}

impl Backend for Etcd {
    fn load(&mut self) -> Result<Loaded, BackendError> {
        self.loaded
            .take()
            .ok_or_else(|| BackendError::Io("the ledger is loaded already".into()))
    }

    fn append(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.store(records))
    }

    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError> {
        self.runtime
            .block_on(sweep(&self.ledger, floor, limit))
            .map_err(backend_error)
    }

    fn history(&self) -> Result<Arc<dyn History>, BackendError> {
        Ok(past(&self.ledger, &self.runtime, self.floor))
    }

    fn reserve(&mut self) -> bool {
        if self.room.kept {
            return true;
        }
        let retaken = self.runtime.block_on(self.room.retake(&self.ledger));
        retaken.unwrap_or_else(|failure| {
            warn!(
                error = &failure as &dyn std::error::Error,
                "keep room for deletions in etcd"
            );
            false
        })
    }

    fn release(&mut self) -> bool {
        let given = self.runtime.block_on(self.room.give(&self.ledger));
        given.unwrap_or_else(|failure: Failure| {
            warn!(
                error = &failure as &dyn std::error::Error,
                "make room for deletions in etcd"
            );
            false
        })
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        Some(Arc::clone(&self.ledger) as Arc<dyn Peers>)
    }

    fn listen(&mut self, wake: Wake) {
        if self.wake.set(wake).is_err() {
            warn!("the ledger is listened to already");
        }
    }

    fn follow(&mut self) -> Result<Vec<Followed>, BackendError> {
        while let Ok(fed) = self.received.try_recv() {
            self.take(fed);
        }
        if let Some(reason) = &self.lost {
            return Err(BackendError::Corrupt(reason.clone().into()));
        }
        let mut followed = Vec::new();
        if let Some(anew) = self.anew.take() {
            self.revision = anew.revision;
            followed.push(Followed::Anew(anew));
        }
        if !self.pending.is_empty() {
            self.revision = self.known();
            let records = self.pending.drain(..).map(|row| row.record).collect();
            followed.push(Followed::Changes(records));
        }
        Ok(followed)
    }

    fn close(&mut self) -> Result<(), BackendError> {
        self.tasks.abort_all();
        Ok(())
    }
}
