//! All containers of a pod begin anew.

use agent_plan::pods;
use tracing::info;

use super::Worker;

impl Worker {
    /// All containers begin anew. They are told apart by what ended them: only one that asked for it has a delay to wait for.
    pub(super) fn reset(&mut self) {
        info!(pod = %self.id(), "all containers begin anew");
        for container in pods::all_containers(&self.pod) {
            if let Some(instance) = self
                .view
                .instances
                .get_mut(&container.name)
                .and_then(|instances| instances.last_mut())
            {
                instance.reset = true;
            }
            if let Some(memory) = self.view.memory.get_mut(&container.name) {
                memory.failure = None;
            }
        }
    }
}
