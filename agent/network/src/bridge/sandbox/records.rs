//! Records of the sandboxes' addresses: one small file each, so that a restarted agent knows the
//! addresses in use.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::leaving::sandboxes::Leaving;
use super::namespace;
use super::slots::{self, Slots};
use crate::bridge::{Place, names};
use crate::files::{read, read_whole, remove, write};
use crate::{AttachSpec, Attachment, Cidr, Error, PortMapping, Ranges};

/// Records of one state folder, cached in memory.
pub(in crate::bridge) struct Records {
    state: PathBuf,
    ranges: Option<Ranges>,
    attachments: BTreeMap<String, Record>,
    pub(in crate::bridge) leaving: Leaving,
    pub(in crate::bridge) slots: Slots,
    /// Host ends left over from an earlier process without a record.
    lost: Vec<String>,
    /// Index within the ranges of the last allocated address: the search continues behind it, so
    /// that an address is not reused at once.
    last: Option<u128>,
}

/// Contents of a sandbox's file.
#[derive(Clone, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    attachment: Attachment,
    /// Slot that the sandbox has taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<u64>,
    /// Host end of its veth pair. Missing in records of versions whose names of links did not
    /// depend on the state folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

impl Record {
    fn link(&self) -> String {
        let earlier = || {
            let everywhere = Path::new("");
            let named = || names::host_link(everywhere, &self.attachment.sandbox_id);
            self.slot.map_or_else(named, |number| slots::link(everywhere, number))
        };
        self.link.clone().unwrap_or_else(earlier)
    }
}

/// Result of [`Records::reserve`].
pub(in crate::bridge) enum Reservation {
    /// The sandbox is attached.
    Known(Attachment),
    /// The address is reserved; the kernel objects are to be created.
    New(Attachment),
}

impl Records {
    /// Reads the existing records; those whose namespace is gone are removed.
    pub(in crate::bridge) fn open(state: &Path) -> Result<Self, Error> {
        let folder = state.join("attachments");
        std::fs::create_dir_all(&folder).map_err(|source| Error::io("create", &folder, source))?;
        let mut records = Self {
            state: state.to_path_buf(),
            ranges: read(&state.join("range.json"))?,
            attachments: BTreeMap::new(),
            leaving: Leaving::default(),
            slots: Slots::default(),
            lost: Vec::new(),
            last: None,
        };
        for entry in std::fs::read_dir(&folder).map_err(|source| Error::io("read", &folder, source))? {
            let path = entry.map_err(|source| Error::io("read", &folder, source))?.path();
            match read_whole::<Record>(&path)? {
                Some(record) if namespace::is_held(&record.attachment.netns) => {
                    let first = record.attachment.addresses.first();
                    records.last = first.map(|held| held.offset()).max(records.last);
                    record.slot.iter().for_each(|number| records.slots.skip(*number));
                    let sandbox = record.attachment.sandbox_id.clone();
                    records.attachments.insert(sandbox, record);
                }
                Some(record) => {
                    // The kernel deletes the link with the namespace, asynchronously.
                    records.lost.push(record.link());
                    remove(&path)?;
                }
                None => remove(&path)?,
            }
        }
        records.release_others()?;
        Ok(records)
    }

    /// Removes namespaces and files of a killed process that no record refers to.
    fn release_others(&mut self) -> Result<(), Error> {
        let known = |sandbox: &str| self.attachments.contains_key(sandbox);
        let names = namespace::files(&self.state.join("netns"))?;
        let lost = names
            .iter()
            .filter_map(|name| name.to_str())
            .filter(|name| !known(name));
        let mut lost: Vec<String> = lost.map(|name| names::host_link(&self.state, name)).collect();
        namespace::release_others(&self.state, known)?;
        let taken: BTreeSet<u64> = self.attachments.values().filter_map(|record| record.slot).collect();
        for number in slots::left(&self.state)? {
            self.slots.skip(number);
            // A slot taken just before the end is mounted under its pod's name, too.
            lost.extend((!taken.contains(&number)).then(|| slots::link(&self.state, number)));
        }
        namespace::release_but(&names::slots(&self.state), |_| false)?;
        self.lost.extend(lost);
        Ok(())
    }

    /// Host ends left over from an earlier process: returned once.
    pub(in crate::bridge) fn lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost)
    }

    /// Fails if these ranges cannot be served, since pods have addresses of the earlier ones.
    pub(in crate::bridge) fn allows(&self, ranges: Ranges) -> Result<(), Error> {
        match self.ranges {
            Some(known) if known != ranges && !self.attachments.is_empty() => Err(Error::RangeInUse(known)),
            Some(_) | None => Ok(()),
        }
    }

    /// Sets the ranges from which addresses are allocated.
    pub(in crate::bridge) fn serve(&mut self, ranges: Ranges) -> Result<(), Error> {
        self.allows(ranges)?;
        if self.ranges != Some(ranges) {
            write(&self.state.join("range.json"), &ranges)?;
            self.ranges = Some(ranges);
            self.last = None;
        }
        Ok(())
    }

    /// The ranges, once they are known.
    pub(in crate::bridge) fn ranges(&self) -> Option<Ranges> {
        self.ranges
    }

    /// All sandboxes with an address that are not being detached.
    pub(in crate::bridge) fn attachments(&self) -> Vec<Attachment> {
        self.staying().map(|record| record.attachment.clone()).collect()
    }

    /// Host ports of the sandbox.
    pub(in crate::bridge) fn ports(&self, sandbox: &str) -> Vec<PortMapping> {
        let known = self.attachments.get(sandbox);
        known.map(|known| known.attachment.ports.clone()).unwrap_or_default()
    }

    /// Reserves an address for a sandbox, on disk before it is used.
    pub(in crate::bridge) fn reserve(
        &mut self,
        spec: &AttachSpec,
        place: Option<&Place>,
    ) -> Result<Reservation, Error> {
        let sandbox = spec.sandbox_id.as_str();
        if let Some(known) = self.attachments.get(sandbox) {
            return Ok(Reservation::Known(known.attachment.clone()));
        }
        let (addresses, number) = self.next()?;
        let gateway = gateway(&addresses)?;
        let attachment = Attachment {
            sandbox_id: sandbox.to_owned(),
            netns: place.map_or_else(|| namespace::path(&self.state, sandbox), |place| place.netns.clone()),
            addresses,
            gateway,
            interface: place.map_or_else(|| "eth0".to_owned(), |place| place.interface.clone()),
            ports: spec.ports.clone(),
        };
        self.put(Record {
            link: Some(names::host_link(&self.state, sandbox)),
            attachment: attachment.clone(),
            slot: None,
        })?;
        self.last = Some(number);
        Ok(Reservation::New(attachment))
    }

    fn put(&mut self, record: Record) -> Result<(), Error> {
        let sandbox = record.attachment.sandbox_id.clone();
        write(&self.file(&sandbox), &record)?;
        self.attachments.insert(sandbox, record);
        Ok(())
    }

    /// Next free addresses, and their index within the ranges.
    fn next(&self) -> Result<(Vec<Cidr>, u128), Error> {
        let ranges = self.ranges.ok_or(Error::NotStarted)?;
        let number = self.free(ranges).ok_or(Error::Exhausted(ranges))?;
        Ok((ranges.iter().map(|range| range.at(number)).collect(), number))
    }

    /// Allocates the addresses of a slot that is to be created.
    pub(in crate::bridge) fn plan_slot(&mut self) -> Result<(u64, Attachment), Error> {
        let (addresses, number) = self.next()?;
        let gateway = gateway(&addresses)?;
        self.last = Some(number);
        Ok(self.slots.plan(&self.state, |name, netns| Attachment {
            sandbox_id: name,
            netns,
            addresses,
            gateway,
            interface: "eth0".to_owned(),
            ports: Vec::new(),
        }))
    }

    /// Assigns a slot to the sandbox, on disk before it is used; its namespace is to be mounted
    /// under the sandbox's name next. A sandbox that has an attachment already keeps that.
    pub(in crate::bridge) fn take(&mut self, spec: &AttachSpec, slot: u64) -> Result<Reservation, Error> {
        if let Some(known) = self.attachments.get(&spec.sandbox_id) {
            self.slots.offer(slot);
            return Ok(Reservation::Known(known.attachment.clone()));
        }
        let made = self.slots.get(slot).ok_or(Error::NotStarted)?.clone();
        let attachment = Attachment {
            sandbox_id: spec.sandbox_id.clone(),
            netns: namespace::path(&self.state, &spec.sandbox_id),
            ports: spec.ports.clone(),
            ..made
        };
        let put = self.put(Record {
            link: Some(slots::link(&self.state, slot)),
            attachment: attachment.clone(),
            slot: Some(slot),
        });
        if put.is_err() {
            self.slots.offer(slot);
        } else {
            self.slots.remove(slot);
        }
        put.map(|()| Reservation::New(attachment))
    }

    /// Attachment of a sandbox, if it has one.
    pub(in crate::bridge) fn known(&self, sandbox: &str) -> Option<Attachment> {
        self.attachments.get(sandbox).map(|record| record.attachment.clone())
    }

    /// Host end of a sandbox's veth pair.
    pub(in crate::bridge) fn link(&self, sandbox: &str) -> String {
        let known = self.attachments.get(sandbox);
        known.map_or_else(|| names::host_link(&self.state, sandbox), Record::link)
    }

    /// Host ends of all expected links, each with its attachment.
    pub(in crate::bridge) fn links(&self) -> BTreeMap<String, Attachment> {
        self.staying()
            .map(|record| (record.link(), record.attachment.clone()))
            .collect()
    }

    /// True if a link is expected.
    pub(in crate::bridge) fn has_link(&self, link: &str) -> bool {
        self.staying().any(|record| record.link() == link)
    }

    /// Records of the sandboxes that are not being detached.
    fn staying(&self) -> impl Iterator<Item = &Record> {
        let all = self.attachments.iter();
        let staying = all.filter(move |(sandbox, _)| !self.leaving.has(sandbox));
        staying.map(|(_, record)| record)
    }

    /// Number of addresses of each range that are not free.
    pub(in crate::bridge) fn taken(&self) -> usize {
        self.attachments.len() + self.slots.len() + 2
    }

    /// Frees a sandbox's address. Succeeds if it has none.
    pub(in crate::bridge) fn release(&mut self, sandbox: &str) -> Result<(), Error> {
        remove(&self.file(sandbox))?;
        self.attachments.remove(sandbox);
        self.leaving.stay(sandbox);
        Ok(())
    }

    /// Removes all record files.
    pub(in crate::bridge) fn forget(&mut self) -> Result<(), Error> {
        self.attachments.clear();
        self.ranges = None;
        remove(&self.state.join("range.json"))?;
        let folder = self.state.join("attachments");
        match std::fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::io("remove", &folder, source)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Free index within the ranges. A pod's addresses have the same index in each range: they are
    /// allocated together, and its hardware address is derived from one of them.
    pub(in crate::bridge) fn free(&self, ranges: Ranges) -> Option<u128> {
        let known = self.attachments.values().map(|record| &record.attachment);
        let held = known.chain(self.slots.attachments()).flat_map(|known| &known.addresses);
        let taken: BTreeSet<u128> = held.map(|held| held.offset()).collect();
        // The network address and the gateway are not for pods.
        let (first, end) = (2, ranges.size());
        let behind = self.last.map_or(first, |last| last + 1).clamp(first, end.max(first));
        (behind..end)
            .chain(first..behind)
            .find(|candidate| !taken.contains(candidate))
    }

    fn file(&self, sandbox: &str) -> PathBuf {
        self.state.join("attachments").join(format!("{sandbox}.json"))
    }
}

fn gateway(addresses: &[Cidr]) -> Result<IpAddr, Error> {
    addresses.first().map(|first| first.gateway()).ok_or(Error::NotStarted)
}

#[cfg(test)]
mod tests {
    use super::{Records, Reservation};
    use crate::{AttachSpec, Attachment, Error};

    fn spec(sandbox: &str) -> AttachSpec {
        AttachSpec {
            sandbox_id: sandbox.to_owned(),
            ..AttachSpec::default()
        }
    }

    fn attach(records: &mut Records, sandbox: &str) -> Result<Attachment, Error> {
        match records.reserve(&spec(sandbox), None)? {
            Reservation::Known(attachment) | Reservation::New(attachment) => Ok(attachment),
        }
    }

    #[test]
    fn addresses_rest_before_they_are_given_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        assert!(matches!(records.reserve(&spec("a"), None), Err(Error::NotStarted)));
        records.serve("10.9.0.0/29".parse().unwrap()).unwrap();
        let address = |attachment: Attachment| attachment.addresses[0].to_string();
        assert_eq!(address(attach(&mut records, "a").unwrap()), "10.9.0.2/29");
        assert_eq!(address(attach(&mut records, "a").unwrap()), "10.9.0.2/29");
        assert_eq!(address(attach(&mut records, "b").unwrap()), "10.9.0.3/29");
        records.release("a").unwrap();
        records.release("a").unwrap();
        assert_eq!(address(attach(&mut records, "c").unwrap()), "10.9.0.4/29");
        for sandbox in ["d", "e"] {
            attach(&mut records, sandbox).unwrap();
        }
        assert_eq!(address(attach(&mut records, "f").unwrap()), "10.9.0.2/29");
        assert!(matches!(attach(&mut records, "g"), Err(Error::Exhausted(_))));
        assert!(matches!(
            records.serve("10.8.0.0/24".parse().unwrap()),
            Err(Error::RangeInUse(_))
        ));
    }

    #[test]
    fn addresses_of_both_families_go_together() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        let shown = |attachment: &Attachment| {
            let held = attachment.addresses.iter().map(ToString::to_string);
            format!("{} by {}", held.collect::<Vec<_>>().join(" "), attachment.gateway)
        };
        records.serve("fd00:9::/64,10.9.0.0/29".parse().unwrap()).unwrap();
        let a = attach(&mut records, "a").unwrap();
        assert_eq!(shown(&a), "fd00:9::2/64 10.9.0.2/29 by fd00:9::1");
        for sandbox in ["b", "c", "d"] {
            attach(&mut records, sandbox).unwrap();
        }
        let last = attach(&mut records, "e").unwrap();
        assert_eq!(shown(&last), "fd00:9::6/64 10.9.0.6/29 by fd00:9::1");
        let full = attach(&mut records, "f").unwrap_err().to_string();
        assert_eq!(full, "no free address in fd00:9::/64,10.9.0.0/29");
        for sandbox in ["a", "b", "c", "d", "e"] {
            records.release(sandbox).unwrap();
        }
        records.serve("fd00:9::/64".parse().unwrap()).unwrap();
        let alone = attach(&mut records, "a").unwrap();
        assert_eq!(shown(&alone), "fd00:9::2/64 by fd00:9::1");
    }

    #[test]
    fn records_without_a_namespace_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        records.serve("10.9.0.0/29".parse().unwrap()).unwrap();
        attach(&mut records, "a").unwrap();
        std::fs::write(folder.path().join("attachments/b.json"), "{\"cut").unwrap();
        let records = Records::open(folder.path()).unwrap();
        assert!(records.attachments().is_empty());
        assert_eq!(records.ranges().unwrap().to_string(), "10.9.0.0/29");
        assert_eq!(std::fs::read_dir(folder.path().join("attachments")).unwrap().count(), 0);
    }
}
