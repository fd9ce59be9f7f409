//! Moves of a whole ledger to etcd or from there, while no control plane runs.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, DeleteOptions, Txn, TxnOp};
use store::{Loaded, Record};

use crate::address::{Address, Identity};
use crate::backend::LIMITS;
use crate::ledger::{Ledger, TIMEOUT};
use crate::members::{Failure, Members};
use crate::row::{Batch, Names, encode};
use crate::{BoxFuture, OpenError};

/// Time without a write after which no control plane runs: one that does renews its Leases far more
/// often.
const QUIET: Duration = Duration::from_secs(5);

/// Reason why a ledger could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The connection to etcd cannot be set up.
    #[error("connect to etcd")]
    Open(#[from] OpenError),
    /// A request failed.
    #[error("ask etcd at {address}")]
    Ask {
        /// Members and prefix.
        address: Address,
        /// The cause.
        #[source]
        source: Failure,
    },
    /// There is no ledger to be moved.
    #[error("{0} holds no ledger")]
    Empty(Address),
    /// A control plane still writes.
    #[error("{0} is written to: stop all its control planes first")]
    InUse(Address),
    /// There is a ledger already.
    #[error("{0} holds a ledger already: name another prefix, or remove what is there")]
    Taken(Address),
    /// The ledger that was written reads differently.
    #[error("{0} does not hold what was written to it")]
    Differs(Address),
}

/// Reads a whole ledger, which no control plane may be writing to.
///
/// # Errors
/// Also if there is no ledger, or a control plane runs.
pub fn read<'a>(address: &'a Address, identity: &'a Identity) -> BoxFuture<'a, Result<Loaded, MoveError>> {
    Box::pin(read_whole(address, identity))
}

async fn read_whole(address: &Address, identity: &Identity) -> Result<Loaded, MoveError> {
    let ledger = open(address, identity).await?;
    let asked = |source| ask(address, source);
    if ledger.head(TIMEOUT).await.map_err(asked)?.0.is_none() {
        return Err(MoveError::Empty(address.clone()));
    }
    let loaded = ledger.load().await.map_err(asked)?.loaded;
    tokio::time::sleep(QUIET).await;
    if ledger.head(TIMEOUT).await.map_err(asked)?.0 != Some(loaded.revision) {
        return Err(MoveError::InUse(address.clone()));
    }
    Ok(loaded)
}

/// Stores a whole ledger at its own revisions, and verifies it. Lists and watches from before are
/// refused. The remains of an interrupted attempt are removed first; the ledger exists only once
/// all of it is there.
///
/// # Errors
/// Also if there is a ledger.
pub fn fill<'a>(
    address: &'a Address,
    identity: &'a Identity,
    loaded: &'a Loaded,
) -> BoxFuture<'a, Result<(), MoveError>> {
    Box::pin(fill_whole(address, identity, loaded))
}

async fn fill_whole(address: &Address, identity: &Identity, loaded: &Loaded) -> Result<(), MoveError> {
    let ledger = open(address, identity).await?;
    let names = &ledger.names;
    let remains = TxnOp::delete(names.log.as_str(), Some(DeleteOptions::new().with_prefix()));
    write(&ledger, address, vec![remains]).await?;
    let mut operations = Vec::new();
    let mut bytes = 0;
    for record in &loaded.heads {
        if operations.len() >= LIMITS.writes || bytes + record.bytes.len() > LIMITS.bytes {
            write(&ledger, address, std::mem::take(&mut operations)).await?;
            bytes = 0;
        }
        bytes += record.bytes.len();
        operations.push(put(&ledger, record));
    }
    write(&ledger, address, operations).await?;
    let there = ledger.load().await.map_err(|source| ask(address, source))?;
    if !there.loaded.has_same_objects(loaded) {
        return Err(MoveError::Differs(address.clone()));
    }
    let at = loaded.revision.to_string();
    let marks = [&names.head, &names.floor, &names.swept];
    let marks = marks.map(|mark| TxnOp::put(mark.as_str(), at.as_str(), None));
    write(&ledger, address, marks.into()).await
}

/// Ends a ledger that has moved: its rows stay, but no control plane starts on them.
///
/// # Errors
/// Also if the ledger has changed meanwhile.
pub fn end<'a>(address: &'a Address, identity: &'a Identity, revision: u64) -> BoxFuture<'a, Result<(), MoveError>> {
    Box::pin(end_moved(address, identity, revision))
}

async fn end_moved(address: &Address, identity: &Identity, revision: u64) -> Result<(), MoveError> {
    let ledger = open(address, identity).await?;
    let (head, moved) = (ledger.names.head.as_str(), format!("{}/moved", address.prefix));
    let revision = revision.to_string();
    let txn = Txn::new()
        .when([Compare::value(head, CompareOp::Equal, revision.as_str())])
        .and_then([TxnOp::delete(head, None), TxnOp::put(moved, revision, None)]);
    match ledger.txn(txn).await {
        (_, Ok(answer)) if answer.succeeded() => Ok(()),
        // An earlier attempt whose answer was lost has done it.
        (sent, Ok(_)) if sent > 1 && ledger.head(TIMEOUT).await.is_ok_and(|(head, _)| head.is_none()) => Ok(()),
        (_, Ok(_)) => Err(MoveError::InUse(address.clone())),
        (_, Err(source)) => Err(ask(address, source)),
    }
}

async fn open(address: &Address, identity: &Identity) -> Result<Ledger, MoveError> {
    Ok(Ledger {
        members: Members::connect(address, identity).await?,
        names: Names::new(&address.prefix),
    })
}

/// Writes on the condition that there is no ledger.
async fn write(ledger: &Ledger, address: &Address, operations: Vec<TxnOp>) -> Result<(), MoveError> {
    let absent = Compare::version(ledger.names.head.as_str(), CompareOp::Equal, 0);
    let txn = Txn::new().when([absent]).and_then(operations);
    match ledger.txn(txn).await.1 {
        Ok(answer) if answer.succeeded() => Ok(()),
        Ok(_) => Err(MoveError::Taken(address.clone())),
        Err(source) => Err(ask(address, source)),
    }
}

fn put(ledger: &Ledger, record: &Record) -> TxnOp {
    let batch = Batch { writer: 0, number: 0 };
    TxnOp::put(ledger.names.row(record.revision), encode(record, batch), None)
}

fn ask(address: &Address, source: Failure) -> MoveError {
    MoveError::Ask {
        address: address.clone(),
        source,
    }
}
