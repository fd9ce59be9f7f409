//! Preserves the exit of a container that ends while containerd is down. Since 1.7, containerd
//! treats a task without processes that it finds at its start as the remains of a failed start and
//! drops its exit code, unless its sandbox store has an entry of the same name.

use std::collections::{BTreeSet, HashMap};

use agent_containerd::OWNER;
use containerd_client::services::v1::sandbox::{
    StoreCreateRequest, StoreDeleteRequest, StoreListRequest, StoreListResponse,
};
use containerd_client::types::Sandbox;
use containerd_client::types::sandbox::Runtime;

use crate::Error;
use crate::containerd::Shared;
use crate::containerd::client::{CALL, Meaning, meaning, within};
use crate::containerd::container::handlers::SHIM;

impl Shared {
    /// Adds the entry of a container. Called for each start, as soon as the task exists.
    pub(in crate::containerd) async fn keep_end(&self, container: &str) -> Result<(), Error> {
        let sandbox = Sandbox {
            sandbox_id: container.to_owned(),
            runtime: Some(Runtime {
                name: SHIM.to_owned(),
                options: None,
            }),
            labels: HashMap::from([(OWNER.to_owned(), self.owner())]),
            ..Sandbox::default()
        };
        let request = self.client.request(StoreCreateRequest { sandbox: Some(sandbox) });
        let kept = within(
            CALL,
            "keep the end of a container",
            self.client.sandboxes().create(request),
        )
        .await;
        unless(kept, Meaning::Exists).map(drop)
    }

    /// Removes the entry of a container.
    pub(in crate::containerd) async fn forget_end(&self, container: &str) -> Result<(), Error> {
        let request = self.client.request(StoreDeleteRequest {
            sandbox_id: container.to_owned(),
        });
        let forgotten = within(
            CALL,
            "forget the end of a container",
            self.client.sandboxes().delete(request),
        )
        .await;
        unless(forgotten, Meaning::NotFound).map(drop)
    }

    /// Adds the entries of all running containers: an earlier agent or containerd may not have
    /// known of them.
    pub(super) async fn keep_ends(&self) -> Result<(), Error> {
        let Some(kept) = self.kept_ends().await? else {
            return Ok(());
        };
        for (_, container, _) in self.running() {
            if kept.contains(&container) {
                continue;
            }
            self.keep_end(&container).await?;
            if self.records().owner(&container).is_none() {
                // It was removed meanwhile.
                self.forget_end(&container).await?;
            }
        }
        Ok(())
    }

    /// Containers of this runtime that have an entry; `None` if containerd needs none.
    pub(in crate::containerd) async fn kept_ends(&self) -> Result<Option<BTreeSet<String>>, Error> {
        let filters = vec![format!("labels.\"{OWNER}\"=={:?}", self.owner())];
        let request = self.client.request(StoreListRequest { filters });
        let listed = within(CALL, "list sandboxes", self.client.sandboxes().list(request)).await;
        let names = |listed: StoreListResponse| listed.list.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
        Ok(unless(listed, Meaning::NoSuchCall)?.map(names))
    }
}

/// Returns `None` if a call failed for this reason, or because containerd has no such call: older
/// versions keep all exits.
fn unless<T>(called: Result<T, Error>, reason: Meaning) -> Result<Option<T>, Error> {
    match called {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if [reason, Meaning::NoSuchCall].contains(&meaning(&error)) => Ok(None),
        Err(error) => Err(error),
    }
}
