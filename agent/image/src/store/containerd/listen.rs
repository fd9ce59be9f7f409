//! Subscription to containerd's events about images and snapshots.

use std::sync::Arc;
use std::time::Duration;

use agent_containerd::Error;
use containerd_client::services::v1::SubscribeRequest;
use futures::future::BoxFuture;
use tokio::time::sleep;

use super::{Daemon, tasks};

/// Event topics that announce a changed image.
const TOPICS: [&str; 4] = ["/images/create", "/images/update", "/images/delete", "/snapshot/commit"];
/// Delay before reconnecting to containerd, and time after which a subscription is assumed to be
/// active, since containerd does not acknowledge it.
const PAUSE: Duration = Duration::from_secs(1);
/// Time in which successive events are merged into one refresh.
const TOGETHER: Duration = Duration::from_millis(50);

impl Daemon {
    /// Calls `refresh` after each change, until it returns that the store was dropped.
    pub(crate) fn listen(
        self: &Arc<Self>,
        refresh: impl Fn() -> BoxFuture<'static, Result<bool, Error>> + Send + Sync + 'static,
    ) {
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        // Not a reference to the store itself, which owns this task.
        tasks(&self.tasks).spawn(async move {
            loop {
                let filters = TOPICS.map(|topic| format!("topic==\"{topic}\",namespace==\"{namespace}\""));
                let request = client.request(SubscribeRequest {
                    filters: filters.to_vec(),
                });
                let mut events = client.events();
                let mut subscribing = Box::pin(events.subscribe(request));
                let subscribed = tokio::select! {
                    subscribed = &mut subscribing => subscribed,
                    () = sleep(PAUSE) => {
                        // Changes from before the subscription.
                        match refresh().await {
                            Ok(true) => subscribing.await,
                            Ok(false) => return,
                            Err(_) => continue,
                        }
                    }
                };
                let Ok(subscribed) = subscribed else {
                    sleep(PAUSE).await;
                    continue;
                };
                let mut stream = subscribed.into_inner();
                while let Ok(Some(_)) = stream.message().await {
                    while let Ok(Ok(Some(_))) = tokio::time::timeout(TOGETHER, stream.message()).await {}
                    match refresh().await {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(error) => {
                            tracing::warn!(%error, "the images in containerd could not be read");
                            break;
                        }
                    }
                }
            }
        });
    }
}
