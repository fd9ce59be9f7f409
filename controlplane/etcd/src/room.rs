//! Reserve for deletions in an etcd whose quota is used up: a deletion takes space, too.
//!
//! Some space is reserved from the beginning, as on the disk of a single-process database. When the
//! quota is used up, the reserve is deleted, etcd's history is compacted, its files are
//! defragmented, and the `NOSPACE` alarm is disarmed.
//!
//! All processes share the reserve. Every transaction has the condition that it exists, so once one
//! process has deleted it, the others also accept nothing but deletions. After one of them has
//! taken it again, the others find it.

use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Compare, CompareOp, DeleteOptions, GetOptions, KvClient, PutOptions, TxnOp,
    TxnOpResponse, TxnResponse,
};
use tracing::warn;

use crate::ledger::{Shared, TIMEOUT};
use crate::members::{Failure, Member};

/// Values that make up the reserve, and the size of each: below the limit of a request. etcd looks
/// at its size when it commits a batch (`--backend-batch-interval`, 100 ms): quick writes go beyond
/// the quota by what they write meanwhile, which the reserve has to make good.
const VALUES: usize = 24;
const SIZE: usize = 1 << 20;
/// Timeout of a member's defragmentation.
const REWRITING: Duration = Duration::from_mins(1);

/// State of the reserve, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) kept: bool,
    /// Another process has deleted it, and this process' writer does not know yet.
    given: bool,
    /// Size of the database when it was too large.
    most: i64,
}

impl Room {
    /// Takes the reserve.
    pub(crate) async fn take(&mut self, ledger: &Shared) -> Result<(), Failure> {
        // The first key is written last: it marks the whole reserve as taken.
        for number in (0..VALUES).rev() {
            let key = format!("{}{number}", ledger.names.reserve);
            let ask = |mut kv: KvClient| {
                let (key, value) = (key.as_str(), vec![0_u8; SIZE]);
                async move {
                    let there = kv.get(key, Some(GetOptions::new().with_count_only())).await?;
                    if there.count() == 0 {
                        kv.put(key, value, None::<PutOptions>).await?;
                    }
                    Ok(())
                }
            };
            ledger.members.call(TIMEOUT, ask).await.1?;
        }
        self.kept = true;
        Ok(())
    }

    /// Condition that the reserve exists, unless this process knows that it does not.
    pub(crate) fn condition(&self, ledger: &Shared) -> Option<Compare> {
        self.kept
            .then(|| Compare::version(ledger.names.room(), CompareOp::Greater, 0))
    }

    /// Last operation of a failed transaction, for [`Self::notice`]: reads whether the reserve exists.
    pub(crate) fn question(ledger: &Shared) -> TxnOp {
        TxnOp::get(ledger.names.room(), Some(GetOptions::new().with_count_only()))
    }

    /// Records whether a failed transaction found the reserve.
    pub(crate) fn notice(&mut self, answer: &TxnResponse) {
        let gone = matches!(answer.op_responses().last(), Some(TxnOpResponse::Get(found)) if found.count() == 0);
        if self.kept && gone {
            (self.kept, self.given) = (false, true);
        }
    }

    /// True if another process has deleted the reserve, until [`Self::give`] is called.
    pub(crate) fn is_given(&self) -> bool {
        self.given
    }

    /// Takes the reserve again when twice as much space is free, or finds it taken by another process.
    pub(crate) async fn retake(&mut self, ledger: &Shared) -> Result<bool, Failure> {
        let room = ledger.names.room();
        let ask = |mut kv: KvClient| {
            let key = room.as_str();
            async move { kv.get(key, Some(GetOptions::new().with_count_only())).await }
        };
        if !self.kept {
            self.kept = ledger.members.call(TIMEOUT, ask).await.1?.count() > 0;
        }
        if self.kept {
            return Ok(true);
        }
        let wanted = i64::try_from(2 * VALUES * SIZE).unwrap_or(i64::MAX);
        for member in ledger.members.all() {
            // A member that does not answer holds no more than the others.
            if let Some((_, used)) = sizes(&member).await
                && used.saturating_add(wanted) > self.most
            {
                // While the alarm is armed, not even the ledger's history can be shortened.
                if is_armed(&member).await {
                    rewrite(ledger).await?;
                }
                return Ok(false);
            }
        }
        rewrite(ledger).await?;
        self.take(ledger).await?;
        Ok(true)
    }

    /// Releases the reserve for the writes that follow. `false` if there was none.
    pub(crate) async fn give(&mut self, ledger: &Shared) -> Result<bool, Failure> {
        let mut most = 0;
        for member in ledger.members.all() {
            most = sizes(&member).await.map_or(most, |(size, _)| most.max(size));
        }
        self.most = most;
        if std::mem::take(&mut self.given) {
            return Ok(true);
        }
        let prefix = ledger.names.reserve.as_str();
        let ask = |mut kv: KvClient| async move { kv.delete(prefix, Some(DeleteOptions::new().with_prefix())).await };
        let deleted = ledger.members.call(TIMEOUT, ask).await.1?.deleted();
        rewrite(ledger).await?;
        let kept = std::mem::take(&mut self.kept);
        warn!(
            values = deleted,
            "etcd has no space left: what was kept there for deletions is given to them"
        );
        // If it existed and is gone, another process was first.
        Ok(kept || deleted > 0)
    }
}

/// The size of a member's database, and how much of it is in use.
async fn sizes(member: &Member) -> Option<(i64, i64)> {
    let mut maintenance = member.maintenance.clone();
    let status = tokio::time::timeout(TIMEOUT, maintenance.status()).await.ok()?.ok()?;
    Some((status.db_size(), status.raft_used_db_size()))
}

/// True if the members refuse writes for want of space.
async fn is_armed(member: &Member) -> bool {
    let mut maintenance = member.maintenance.clone();
    let asked = maintenance.alarm(AlarmAction::Get, AlarmType::Nospace, None);
    let answer = tokio::time::timeout(TIMEOUT, asked).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|alarms| !alarms.alarms().is_empty()))
}

/// Compacts etcd's history, defragments every member, and disarms the alarms.
async fn rewrite(ledger: &Shared) -> Result<(), Failure> {
    let (_, now) = ledger.head(TIMEOUT).await?;
    let options = etcd_client::CompactionOptions::new().with_physical();
    let ask = |mut kv: KvClient| {
        let options = options.clone();
        async move { kv.compact(now, Some(options)).await }
    };
    match ledger.members.call(TIMEOUT, ask).await.1 {
        Ok(_) | Err(Failure::Compacted) => {}
        Err(failure) => return Err(failure),
    }
    for member in ledger.members.all() {
        let mut maintenance = member.maintenance.clone();
        let rewriting = async {
            let status = maintenance.status().await?;
            maintenance.defragment().await?;
            // Every member has its own alarm, which is disarmed by member id.
            let mut own = AlarmOptions::new();
            own.with_member(status.header().map_or(0, etcd_client::ResponseHeader::member_id));
            maintenance
                .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(own))
                .await
        };
        match tokio::time::timeout(REWRITING, rewriting).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => warn!(%error, "a member of etcd does not rewrite its database"),
            Err(_elapsed) => warn!("a member of etcd takes long to rewrite its database"),
        }
    }
    Ok(())
}
