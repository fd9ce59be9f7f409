//! File systems of block devices, made where there is none (`FormatAndMount`,
//! `k8s.io/mount-utils/mount_linux.go`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::LocalVolumeSource;
use nix::sys::stat::{major, minor};
use tracing::{info, warn};

use super::program;

/// Held while a device is looked at, formatted and mounted: of two pods, one finds what the other
/// has made.
static TURN: Mutex<()> = Mutex::new(());

/// Mounts the file system of a device. The kernel has it once, however often it is mounted.
pub(super) fn mount(
    target: &Path,
    options: &[String],
    source: &LocalVolumeSource,
    read_only: bool,
) -> Result<(), String> {
    let disk = &source.path;
    let kind = source.fs_type.as_deref().filter(|kind| !kind.is_empty());
    let kind = kind.unwrap_or("ext4");
    let mut options: BTreeSet<&str> = options.iter().map(String::as_str).collect();
    options.extend(["defaults"].into_iter().chain(read_only.then_some("ro")));
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = format_of(disk).map_err(|why| format!("failed to get disk format of disk {disk}: {why}"))?;
    match found.as_deref() {
        None if options.contains("ro") => {
            return Err(format!(
                "cannot mount unformatted disk {disk} as we are manipulating it in read-only mode"
            ));
        }
        None => format(disk, kind)?,
        Some(found) => {
            if found != kind {
                warn!(disk, kind, found, "a disk has another format than its volume says");
            }
            if !options.contains("ro") && !is_mounted(disk) {
                repair(disk)?;
            }
        }
    }
    program::mount(kind, &options, disk.as_ref(), target)
}

/// Returns the format of a disk; `None` if it has none (`getDiskFormat`).
fn format_of(disk: &str) -> Result<Option<String>, String> {
    let words = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", disk];
    let (code, said) = program::run("blkid", &words.map(OsString::from))?;
    match code {
        0 => Ok(Some(parsed(&said))),
        // Nothing is known of it.
        2 => Ok(None),
        code => Err(format!("exit status {code}: {said}")),
    }
}

fn parsed(said: &str) -> String {
    let value = |key: &str| said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    if value("PTTYPE").is_some_and(|kind| !kind.is_empty()) {
        return "unknown data, probably partitions".to_owned();
    }
    // Anything else that it says is no leave to format the disk.
    value("TYPE").unwrap_or("unknown data").to_owned()
}

fn format(disk: &str, kind: &str) -> Result<(), String> {
    info!(disk, kind, "a disk is formatted");
    let flags: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let words: Vec<OsString> = flags.iter().chain(&[disk]).map(OsString::from).collect();
    let failed = |why: &str, said: &str| {
        Err(format!(
            "format of disk {disk:?} failed: type:({kind:?}) errcode:({why}) output:({said}) "
        ))
    };
    match program::run(&format!("mkfs.{kind}"), &words) {
        Ok((0, _)) => Ok(()),
        Ok((code, said)) => failed(&format!("exit status {code}"), &said),
        Err(why) => failed(&why, ""),
    }
}

/// Repairs what can be repaired without asking (`checkAndRepairFilesystem`).
fn repair(disk: &str) -> Result<(), String> {
    match program::run("fsck", &["-a", disk].map(OsString::from)) {
        Ok((4, said)) => Err(format!(
            "'fsck' found errors on device {disk} but could not correct them: {said}"
        )),
        Ok((code, said)) => {
            if code > 0 {
                info!(disk, code, said, "fsck had something to say");
            }
            Ok(())
        }
        // Without the program, the kernel's own check has to do.
        Err(why) => {
            warn!(disk, why, "a disk is mounted unchecked");
            Ok(())
        }
    }
}

/// True if the file system of a disk is mounted somewhere, or that cannot be told.
fn is_mounted(disk: &str) -> bool {
    let Ok(metadata) = std::fs::metadata(disk) else {
        return true;
    };
    let number = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
    trees::mounts::read().map_or(true, |table| {
        trees::mounts::parse(&table).any(|mount| mount.device == number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_without_anything_is_formatted() {
        assert_eq!(parsed("DEVNAME=/dev/a\nTYPE=xfs\n"), "xfs");
        assert_eq!(parsed("PTTYPE=gpt\n"), "unknown data, probably partitions");
        assert_eq!(parsed("DEVNAME=/dev/a\n"), "unknown data");
        let blank = tempfile::NamedTempFile::new().unwrap();
        blank.as_file().set_len(1 << 20).unwrap();
        let path = blank.path().display().to_string();
        assert_eq!(format_of(&path), Ok(None));
        let source = LocalVolumeSource {
            path: path.clone(),
            fs_type: None,
        };
        let refused = mount(Path::new("/nowhere"), &["ro".to_owned()], &source, false);
        let told = format!("cannot mount unformatted disk {path} as we are manipulating it in read-only mode");
        assert_eq!(refused, Err(told));
    }
}
