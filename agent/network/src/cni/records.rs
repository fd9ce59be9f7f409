//! Records of attachments and their configuration lists, written before a plugin runs: a restarted
//! agent detaches with the list that attached, not with the current one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::INTERFACE;
use crate::files::{read_whole, remove, write};
use crate::{AttachSpec, Attachment, Error, Ranges};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) spec: AttachSpec,
    pub(super) netns: PathBuf,
    /// Configuration list.
    pub(super) list: Value,
    /// Ranges of the node, which plugins get again at later calls.
    #[serde(rename = "range")]
    pub(super) ranges: Option<Ranges>,
    /// Result of its last plugin, once there is one.
    pub(super) result: Option<Value>,
    /// Attachment that was returned to the agent, once all plugins succeeded.
    pub(super) attachment: Option<Attachment>,
    /// True once its plugins were called with DEL, with unknown progress.
    #[serde(default)]
    pub(super) leaving: bool,
}

impl Record {
    /// Attachment that was returned to the agent, unless it is being undone.
    pub(super) fn whole(self) -> Option<Attachment> {
        self.attachment.filter(|_| !self.leaving)
    }

    /// Attachment that was returned to the agent, or one without addresses if there is only
    /// something to undo.
    pub(super) fn attached(self) -> Attachment {
        let left = Attachment {
            sandbox_id: self.spec.sandbox_id.clone(),
            netns: self.netns.clone(),
            addresses: Vec::new(),
            gateway: [0, 0, 0, 0].into(),
            interface: INTERFACE.to_owned(),
            ports: Vec::new(),
        };
        self.whole().unwrap_or(left)
    }
}

pub(super) struct Records {
    folder: PathBuf,
    all: BTreeMap<String, Record>,
}

impl Records {
    /// Reads the existing records; a truncated one is of an attachment that had not begun.
    pub(super) fn open(state: &Path) -> Result<Self, Error> {
        let folder = state.join("attachments");
        std::fs::create_dir_all(&folder).map_err(|source| Error::io("create", &folder, source))?;
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).map_err(|source| Error::io("read", &folder, source))? {
            let path = entry.map_err(|source| Error::io("read", &folder, source))?.path();
            match read_whole::<Record>(&path)? {
                Some(record) => drop(all.insert(record.spec.sandbox_id.clone(), record)),
                None => remove(&path)?,
            }
        }
        Ok(Self { folder, all })
    }

    pub(super) fn get(&self, sandbox: &str) -> Option<Record> {
        self.all.get(sandbox).cloned()
    }

    pub(super) fn all(&self) -> Vec<Record> {
        self.all.values().cloned().collect()
    }

    /// True if an attachment has this address.
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        let attached = self.all.values().filter_map(|record| record.attachment.as_ref());
        let mut held = attached.flat_map(|attachment| &attachment.addresses);
        held.any(|held| held.address == address)
    }

    pub(super) fn put(&mut self, record: Record) -> Result<(), Error> {
        write(&self.file(&record.spec.sandbox_id), &record)?;
        self.all.insert(record.spec.sandbox_id.clone(), record);
        Ok(())
    }

    pub(super) fn remove(&mut self, sandbox: &str) -> Result<(), Error> {
        remove(&self.file(sandbox))?;
        self.all.remove(sandbox);
        Ok(())
    }

    /// Removes the directory of the records.
    pub(super) fn forget(&self) -> Result<(), Error> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &self.folder, source))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn file(&self, sandbox: &str) -> PathBuf {
        self.folder.join(format!("{sandbox}.json"))
    }
}
