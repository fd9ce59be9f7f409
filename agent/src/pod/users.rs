//! User and group IDs of the node for pods with user namespaces (`hostUsers: false`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_plan::container::user_ids;
use k8s_openapi::api::core::v1::PodSpec;
use runtime::Runtime;

/// User namespace range of each sandbox; rebuilt from the runtime when the agent starts.
pub(crate) struct UserIds {
    by_sandbox: Mutex<BTreeMap<String, u32>>,
    near: u64,
}

impl UserIds {
    pub(crate) fn new(state_directory: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        state_directory.hash(&mut hasher);
        Self {
            by_sandbox: Mutex::default(),
            near: hasher.finish(),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.by_sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts a sandbox of an earlier agent.
    pub(crate) fn adopt(&self, sandbox: &runtime::Sandbox) {
        if let Some(first) = sandbox.user_ids {
            self.held().insert(sandbox.id.clone(), first);
        }
    }

    /// Releases the range of a removed sandbox.
    pub(crate) fn release(&self, sandbox: &str) {
        self.held().remove(sandbox);
    }

    fn take(&self, sandbox: &str) -> Option<u32> {
        let mut held = self.held();
        if let Some(known) = held.get(sandbox) {
            return Some(*known);
        }
        let mut promised = Vec::new();
        for file in ["/etc/subuid", "/etc/subgid"] {
            promised.extend(user_ids::promised(&std::fs::read_to_string(file).unwrap_or_default()));
        }
        let taken: BTreeSet<u32> = held.values().copied().collect();
        let found = user_ids::free(&taken, &promised, self.near)?;
        held.insert(sandbox.to_owned(), found);
        Some(found)
    }

    /// Returns the first ID of a sandbox's range on the node; `None` for pods in the node's user
    /// namespace.
    pub(crate) fn of(&self, runtime: &dyn Runtime, spec: &PodSpec, sandbox: &str) -> Result<Option<u32>, String> {
        if spec.host_users != Some(false) {
            return Ok(None);
        }
        let refused =
            |why: &str| format!("can't set `spec.HostUsers: false`, runtime does not support user namespaces: {why}");
        if let Some(why) = runtime.lacks_users() {
            return Err(refused(why));
        }
        let found = self.take(sandbox);
        found.map(Some).ok_or_else(|| refused("no ids are left"))
    }
}
