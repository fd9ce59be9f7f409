//! Reserve for deletions in an etcd whose quota is used up: a deletion takes space, too.
//!
//! Some space is reserved from the beginning, as on the disk of a single-process database. When the
//! quota is used up, the reserve is deleted, etcd's history is compacted, its files are
//! defragmented, and the `NOSPACE` alarm is disarmed.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, DeleteOptions, KvClient, PutOptions};
use tracing::warn;

use crate::ledger::{PATIENCE, Shared};
use crate::members::{Failure, Member};

/// Values that make up the reserve, and the size of each: below the limit of a request.
const VALUES: usize = 8;
const SIZE: usize = 1 << 20;
/// Timeout of a member's defragmentation.
const REWRITING: Duration = Duration::from_mins(1);

/// State of the reserve, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) kept: bool,
    /// Size of the database when it was too large.
    most: i64,
}

impl Room {
    /// Takes the reserve.
    pub(crate) async fn take(&mut self, ledger: &Shared) -> Result<(), Failure> {
        for number in 0..VALUES {
            let key = format!("{}{number}", ledger.names.reserve);
            let ask = |mut kv: KvClient| {
                let (key, value) = (key.as_str(), vec![0_u8; SIZE]);
                async move {
                    let there = kv
                        .get(key, Some(etcd_client::GetOptions::new().with_count_only()))
                        .await?;
                    if there.count() == 0 {
                        kv.put(key, value, None::<PutOptions>).await?;
                    }
                    Ok(())
                }
            };
            ledger.members.call(PATIENCE, ask).await.1?;
        }
        self.kept = true;
        Ok(())
    }

    /// Takes the reserve again when twice as much space is free.
    pub(crate) async fn retake(&mut self, ledger: &Shared) -> Result<bool, Failure> {
        if self.kept {
            return Ok(true);
        }
        let wanted = i64::try_from(2 * VALUES * SIZE).unwrap_or(i64::MAX);
        for member in ledger.members.all() {
            // A member that does not answer holds no more than the others.
            if let Some((_, used)) = sizes(member).await
                && used.saturating_add(wanted) > self.most
            {
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
            most = sizes(member).await.map_or(most, |(size, _)| most.max(size));
        }
        let prefix = ledger.names.reserve.as_str();
        let ask = |mut kv: KvClient| async move { kv.delete(prefix, Some(DeleteOptions::new().with_prefix())).await };
        let deleted = ledger.members.call(PATIENCE, ask).await.1?.deleted();
        (self.kept, self.most) = (false, most);
        rewrite(ledger).await?;
        warn!(
            values = deleted,
            "etcd has no space left: what was kept there for deletions is given to them"
        );
        Ok(deleted > 0)
    }
}

/// The size of a member's database, and how much of it is in use.
async fn sizes(member: &Member) -> Option<(i64, i64)> {
    let mut maintenance = member.maintenance.clone();
    let status = tokio::time::timeout(PATIENCE, maintenance.status()).await.ok()?.ok()?;
    Some((status.db_size(), status.raft_used_db_size()))
}

/// Compacts etcd's history, defragments every member, and disarms the alarms.
async fn rewrite(ledger: &Shared) -> Result<(), Failure> {
    let (_, now) = ledger.head(PATIENCE).await?;
    let options = etcd_client::CompactionOptions::new().with_physical();
    let ask = |mut kv: KvClient| {
        let options = options.clone();
        async move { kv.compact(now, Some(options)).await }
    };
    match ledger.members.call(PATIENCE, ask).await.1 {
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
