//! Creation of sandboxes: cgroups, namespaces ([`holding`], [`pause`]), record.

pub(super) mod holding;
pub(super) mod pause;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::records::Record;
use super::{Shared, records};
use crate::clock::now;
use crate::error::io_error;
use crate::{Connected, Error, Sandbox, SandboxSpec};

impl Shared {
    /// Creates a sandbox. A failure leaves nothing.
    pub(super) async fn create_sandbox(
        self: &Arc<Self>,
        spec: SandboxSpec,
        connected: Connected,
    ) -> Result<Sandbox, Error> {
        let (id, directory) = (spec.id.clone(), self.directory(&spec.id));
        match self.spares.make(&directory, 0o700) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(Error::SandboxExists(id)),
            result => result.map_err(io_error("create", &directory))?,
        }
        failpoint::reach("directory made");
        let own = spec.clone();
        let furnished = self.blocking("make the sandbox", move |shared| shared.furnish(&own));
        // Run both to completion: a failure's remains are removed afterwards.
        let (furnished, connected) = tokio::join!(furnished, connected);
        let made = furnished.flatten().and_then(|pause| {
            connected.map_err(|_gone| Error::Unconnected(id.clone()))?;
            self.record_sandbox(spec, pause)
        });
        match made {
            Ok(sandbox) => {
                self.watch_pause(&id);
                Ok(sandbox)
            }
            Err(error) => {
                if let Err(failure) = self.remove(&id).await {
                    tracing::warn!(sandbox = id, %failure, "what a failed creation left is not all removed");
                }
                Err(error)
            }
        }
    }

    /// Creates all of a sandbox besides its network; returns the init process of its PID namespace,
    /// if it has one.
    fn furnish(&self, spec: &SandboxSpec) -> Result<Option<pause::Process>, Error> {
        let directory = self.directory(&spec.id);
        let containers = directory.join(records::CONTAINERS);
        fs::create_dir(&containers).map_err(io_error("create", &containers))?;
        let group = Path::new(&self.config.cgroup_root)
            .join(spec.class.folder())
            .join(&spec.id);
        let grouped = self
            .cgroups
            .create(&group)
            .and_then(|()| self.cgroups.limit(&group, &spec.limits));
        grouped.map_err(io_error("make the pod's cgroup", &group))?;
        holding::make(&directory, spec).map_err(io_error("make the namespaces of", &directory))?;
        failpoint::reach("group made");
        if spec.share_process_namespace && !spec.host_pid {
            return self.start_pause(&group).map(Some);
        }
        Ok(None)
    }

    fn record_sandbox(&self, spec: SandboxSpec, pause: Option<pause::Process>) -> Result<Sandbox, Error> {
        let directory = self.directory(&spec.id);
        if let Some(netns) = &spec.netns {
            fs::File::open(netns).map_err(io_error("open the network namespace", netns))?;
        }
        let sandbox = Sandbox {
            id: spec.id.clone(),
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            created_at: now(),
            user_ids: None,
            se_linux_level: spec.se_linux_level.clone(),
            lost: false,
            containers: Vec::new(),
        };
        let record = Record {
            sandbox: sandbox.clone(),
            spec,
            pause,
            starting: BTreeSet::new(),
        };
        let recorded = self.records().insert(record);
        recorded.map_err(io_error("write the record of", &directory))?;
        failpoint::reach("sandbox recorded");
        Ok(sandbox)
    }

    /// Starts it in its own group below the pod's, so that it is killed with that group in any
    /// case.
    fn start_pause(&self, group: &Path) -> Result<pause::Process, Error> {
        let failed = || io_error("make the shared pid namespace of", group);
        let process = pause::Process::start(&self.program).map_err(failed())?;
        let own = group.join("pause");
        let placed = self
            .cgroups
            .create(&own)
            .and_then(|()| self.cgroups.attach(&own, process.pid));
        if placed.is_err() {
            process.end();
        }
        placed.map_err(failed())?;
        Ok(process)
    }
}
