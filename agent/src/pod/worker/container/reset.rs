//! Restart of all containers of a pod (`RestartAllContainers`).

use agent_plan::pod::pods;
use tracing::info;

use crate::pod::worker::Worker;

impl Worker {
    /// Restarts all containers. Only a container whose own rule requested it is backed off.
    pub(in crate::pod::worker) fn reset(&mut self) {
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
