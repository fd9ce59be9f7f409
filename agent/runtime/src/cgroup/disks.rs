//! Reads and writes of a group on the machine's disks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Cgroups, check};
use crate::Transfers;

impl Cgroups {
    /// Reads the transfers of a group, or of the whole machine, by device.
    pub(crate) fn transfers(&self, group: Option<&Path>) -> BTreeMap<String, Transfers> {
        if group.is_some_and(|group| check(group).is_err()) {
            return BTreeMap::new();
        }
        let group = group.unwrap_or(Path::new(""));
        let read = |mount: &Path, name: &str| fs::read_to_string(mount.join(group).join(name)).unwrap_or_default();
        let all = match (self.controller("blkio"), &self.v2) {
            (Some(mount), _) => of_v1(
                &read(mount, "blkio.throttle.io_service_bytes_recursive"),
                &read(mount, "blkio.throttle.io_serviced_recursive"),
            ),
            (None, Some(mount)) => of_v2(&read(mount, "io.stat")),
            (None, None) => BTreeMap::new(),
        };
        let named = all.into_iter().filter_map(|(numbers, of)| Some((name(&numbers)?, of)));
        named.collect()
    }
}

/// Returns the path of a device, if it is a disk (`GetBlockDeviceInfo` of cAdvisor,
/// `utils/sysinfo/sysinfo.go`).
fn name(numbers: &str) -> Option<String> {
    let about = fs::read_to_string(Path::new("/sys/dev/block").join(numbers).join("uevent")).ok()?;
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let is_disk = !["loop", "ram", "sr"].iter().any(|kind| name.starts_with(kind));
    is_disk.then(|| format!("/dev/{name}"))
}

/// Parses lines such as `8:0 Read 123`, of bytes and of operations.
fn of_v1(bytes: &str, operations: &str) -> BTreeMap<String, Transfers> {
    let mut all = BTreeMap::<String, Transfers>::new();
    let bytes = bytes.lines().filter_map(row).map(|row| ("bytes", row));
    let operations = operations.lines().filter_map(row).map(|row| ("operations", row));
    for (what, (device, kind, count)) in bytes.chain(operations) {
        let of = all.entry(device.to_owned()).or_default();
        match (what, kind) {
            ("bytes", "Read") => of.bytes_read = count,
            ("bytes", "Write") => of.bytes_written = count,
            ("operations", "Read") => of.reads = count,
            ("operations", "Write") => of.writes = count,
            _ => {}
        }
    }
    all
}

fn row(line: &str) -> Option<(&str, &str, u64)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?, words.next()?.parse().ok()?))
}

/// Parses lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn of_v2(stat: &str) -> BTreeMap<String, Transfers> {
    let parsed = stat.lines().filter_map(|line| {
        let (device, rest) = line.split_once(' ')?;
        let value = |key: &str| -> Option<u64> {
            let found = rest.split_whitespace().find_map(|word| word.strip_prefix(key));
            found?.parse().ok()
        };
        let transfers = Transfers {
            bytes_read: value("rbytes=")?,
            bytes_written: value("wbytes=")?,
            reads: value("rios=")?,
            writes: value("wios=")?,
        };
        Some((device.to_owned(), transfers))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_counted_by_device() {
        let expected = BTreeMap::from([(
            "8:0".to_owned(),
            Transfers {
                bytes_read: 4096,
                bytes_written: 8192,
                reads: 1,
                writes: 2,
            },
        )]);
        let bytes = "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Total 12288\nTotal 12288\n";
        let operations = "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n";
        assert_eq!(of_v1(bytes, operations), expected);
        // A device that was not used has no counts.
        let stat = "7:0 \n8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n";
        assert_eq!(of_v2(stat), expected);
    }
}
