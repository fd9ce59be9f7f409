//! Pods that have the storage of a claim mounted.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of volumes of pods, besides the one with this UID, that have this file or directory
/// mounted as a claim. Only mounts from the same file system are accessed: others may hang.
pub(crate) fn count(root: &Path, wanted: &File, besides: Option<&str>) -> io::Result<usize> {
    let root = match root.canonicalize() {
        Ok(root) => root,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let found = wanted.metadata()?;
    let table = trees::mounts::read()?;
    let device = device(&table, wanted)?;
    let own = besides.map(|uid| root.join(uid));
    let mut users = 0;
    let mut claims: Vec<PathBuf> = trees::mounts::parse(&table)
        .filter_map(|mount| claim(&mount, device, &root))
        .filter(|claim| own.as_ref().is_none_or(|own| !claim.starts_with(own)))
        .collect();
    claims.sort();
    claims.dedup();
    for claim in claims {
        match fs::metadata(&claim) {
            Ok(other) => users += usize::from((other.dev(), other.ino()) == (found.dev(), found.ino())),
            // Unmounted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// Device number of the file system of a file, as in the mount table.
fn device<'a>(table: &'a str, file: &File) -> io::Result<&'a str> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let mount = about
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .map(str::trim);
    let found = trees::mounts::parse(table).find(|found| Some(found.id) == mount);
    found
        .map(|found| found.device)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its mount is not in the table"))
}

/// Mount point of a line of the mount table, if it is that of a pod's claim on this device.
fn claim(mount: &trees::mounts::Mount<'_>, device: &str, root: &Path) -> Option<PathBuf> {
    let below = mount.point.strip_prefix(root).ok()?;
    let parts: Vec<_> = below.components().map(std::path::Component::as_os_str).collect();
    let is_claim = matches!(parts.as_slice(), [_, claims, _] if *claims == super::DIRECTORY);
    (is_claim && mount.device == device).then(|| mount.point.to_path_buf())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use nix::mount::{MntFlags, MsFlags, mount as bind, umount2};

    use super::*;

    #[test]
    fn another_file_system_that_does_not_answer_is_not_asked() {
        let home = tempfile::tempdir().expect("a directory");
        let pods = home.path().join("pods");
        let (dead, used, wanted) = (
            pods.join("a/claims/data"),
            pods.join("b/claims/data"),
            home.path().join("wanted"),
        );
        for directory in [&dead, &used, &wanted] {
            fs::create_dir_all(directory).expect("made");
        }
        bind(Some(&wanted), &used, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bound");
        // A FUSE server that never answers requests of the kernel.
        let server = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("opened");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        bind(
            Some("fuse"),
            &dead,
            Some("fuse"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("mounted");
        let (tell, told) = std::sync::mpsc::channel();
        let counting = std::thread::spawn(move || {
            let wanted = File::open(wanted).expect("opened");
            let count = |besides| count(&pods, &wanted, besides);
            tell.send((count(None), count(Some("b")))).expect("heard");
        });
        let counted = told.recv_timeout(std::time::Duration::from_secs(20));
        // Blocked requests continue.
        drop(server);
        for target in [&dead, &used] {
            umount2(target, MntFlags::MNT_DETACH).expect("unmounted");
        }
        counting.join().expect("it ends");
        let (all, others) = counted.expect("it does not wait");
        assert_eq!((all.expect("counted"), others.expect("counted")), (1, 0));
    }
}
