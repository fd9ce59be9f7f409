//! Records of sandboxes: in memory, and in one small file each for the next agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::files::record;
use crate::{Container, Sandbox, SandboxSpec};

/// Record of a sandbox in its directory.
const FILE: &str = "sandbox.json";
/// Directory of containers, in the sandbox's.
pub(super) const CONTAINERS: &str = "containers";

/// `sandbox.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) sandbox: Sandbox,
    pub(super) spec: SandboxSpec,
    /// Init process of the shared PID namespace.
    pub(super) pause: Option<super::sandbox::pause::Process>,
    /// Containers that may have run, whatever their state: an agent was about to start them.
    #[serde(default)]
    pub(super) starting: BTreeSet<String>,
}

/// Sandbox in this process's memory.
pub(super) struct Entry {
    pub(super) record: Record,
    /// Locked while containers are created or removed: a shim serves the whole pod, and must not be
    /// started twice.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// The sandbox is being removed: nothing more is created in it.
    pub(super) leaving: bool,
}

/// All sandboxes.
pub(super) struct Records {
    folder: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Records {
    /// Reads the records of an earlier agent. Directories without a record are returned separately:
    /// their creation was not finished.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<String>)> {
        let (mut entries, mut unfinished) = (BTreeMap::new(), Vec::new());
        for found in fs::read_dir(folder)? {
            let found = found?;
            let Some(id) = found.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            match record::read::<Record>(&found.path().join(FILE)) {
                Ok(Some(record)) => drop(entries.insert(id, Entry::new(record))),
                Ok(None) => unfinished.push(id),
                Err(error) => {
                    tracing::warn!(sandbox = id, %error, "the record of a sandbox is damaged; the sandbox is removed");
                    unfinished.push(id);
                }
            }
        }
        let folder = folder.to_owned();
        Ok((Self { folder, entries }, unfinished))
    }

    pub(super) fn get(&self, sandbox: &str) -> Option<&Entry> {
        self.entries.get(sandbox)
    }

    pub(super) fn get_mut(&mut self, sandbox: &str) -> Option<&mut Entry> {
        self.entries.get_mut(sandbox)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Adds a sandbox, on disk first.
    pub(super) fn insert(&mut self, record: Record) -> io::Result<()> {
        let id = record.sandbox.id.clone();
        self.write(&record)?;
        self.entries.insert(id, Entry::new(record));
        Ok(())
    }

    pub(super) fn remove(&mut self, sandbox: &str) {
        self.entries.remove(sandbox);
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        record::write(&self.folder.join(&record.sandbox.id).join(FILE), record)
    }

    /// Returns the sandbox of a container.
    pub(super) fn owner(&self, container: &str) -> Option<String> {
        let holds = |entry: &&Entry| entry.record.containers().iter().any(|known| known.id == container);
        self.entries
            .values()
            .find(holds)
            .map(|entry| entry.record.sandbox.id.clone())
    }

    pub(super) fn container(&self, sandbox: &str, container: &str) -> Option<&Container> {
        let entry = self.entries.get(sandbox)?;
        entry.record.containers().iter().find(|known| known.id == container)
    }

    /// Changes a sandbox's containers, in memory and on disk. `None` if there is no such sandbox.
    pub(super) fn change<T>(
        &mut self,
        sandbox: &str,
        change: impl FnOnce(&mut Vec<Container>) -> T,
    ) -> Option<io::Result<T>> {
        let entry = self.entries.get_mut(sandbox)?;
        let Record { sandbox, starting, .. } = &mut entry.record;
        let result = change(&mut sandbox.containers);
        starting.retain(|id| sandbox.containers.iter().any(|known| known.id == *id));
        let record = entry.record.clone();
        Some(self.write(&record).map(|()| result))
    }

    /// Records that a container is about to be started. `None` if there is no such sandbox.
    pub(super) fn begin(&mut self, sandbox: &str, container: &str) -> Option<io::Result<()>> {
        let entry = self.entries.get_mut(sandbox)?;
        entry.record.starting.insert(container.to_owned());
        let record = entry.record.clone();
        Some(self.write(&record))
    }
}

impl Record {
    pub(super) fn containers(&self) -> &[Container] {
        &self.sandbox.containers
    }
}

impl Entry {
    fn new(record: Record) -> Self {
        Self {
            record,
            turn: Arc::default(),
            leaving: false,
        }
    }
}
