//! Snapshot directories left behind by a killed containerd.
//!
//! containerd creates a snapshot's directory before it records the snapshot. If it is killed in
//! between, it assigns the same number to the next snapshot, fails because the directory exists,
//! and removes the directory: the next attempt succeeds.

use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::{Client, Error, Failure, TASK, within};

/// Maximum number of stale directories in the way of one snapshot; each kill leaves one.
const LEFT: u32 = 3;

impl Failure {
    /// The directory of the next snapshot existed already.
    fn is_stale_directory(&self) -> bool {
        self.code == Code::Unknown && self.message.contains("failed to rename") && self.message.contains("file exists")
    }
}

impl Client {
    /// Calls `make` to create a snapshot, again if a stale directory was in its way.
    pub async fn snapshot<T, F>(
        &self,
        doing: &'static str,
        make: impl Fn(SnapshotsClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        for _ in 0..LEFT {
            match within(TASK, doing, make(self.snapshots())).await {
                Err(error) if error.source.is_stale_directory() => {
                    tracing::warn!(doing, failure = %error.source, "containerd left a directory; asking again");
                }
                answer => return answer,
            }
        }
        within(TASK, doing, make(self.snapshots())).await
    }
}
