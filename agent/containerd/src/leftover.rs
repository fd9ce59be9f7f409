//! What a containerd that was killed leaves of a snapshot.
//!
//! It names a snapshot's directory first and notes the snapshot then. Killed in between, it gives the next snapshot the same number,
//! finds the directory there, refuses, and removes the directory: the next try has its place.

use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::{Client, Error, Failure, TASK, within};

/// So many directories may be in the way of one snapshot; each kill leaves one.
const LEFT: u32 = 3;

impl Failure {
    /// The directory of the next snapshot was there already.
    fn is_leftover(&self) -> bool {
        self.code == Code::Unknown && self.message.contains("failed to rename") && self.message.contains("file exists")
    }
}

impl Client {
    /// Has `make` make a snapshot, again when something that containerd left was in its way.
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
                Err(error) if error.source.is_leftover() => {
                    tracing::warn!(doing, failure = %error.source, "containerd left a directory; asking again");
                }
                answer => return answer,
            }
        }
        within(TASK, doing, make(self.snapshots())).await
    }
}
