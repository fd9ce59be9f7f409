//! Directories of drivers' volumes below the kubelet's, with a file that says whose they are
//! (`saveVolumeData`, `pkg/volume/csi/csi_util.go`). Never removes anything recursively: data of
//! users are mounted there.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::registered::{Handle, hash};

const DATA: &str = "vol_data.json";
/// Directory of the staged volumes.
const STAGED: &str = "plugins/kubernetes.io/csi";
/// Directory of the volumes in a pod's directory.
const PUBLISHED: &str = "volumes/kubernetes.io~csi";

/// Volume that is, or was to be, published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Name of the persistent volume, or of the pod's own.
    pub(crate) name: String,
    /// Mount point.
    pub(crate) target: PathBuf,
    /// The volume.
    pub(crate) handle: Handle,
}

/// Mount point of a staged volume (`makeDeviceMountPath`, `pkg/volume/csi/csi_attacher.go`).
pub(crate) fn staging(kubelet: &Path, handle: &Handle) -> PathBuf {
    let directory = kubelet.join(STAGED).join(&handle.driver);
    directory.join(hash(&handle.volume)).join("globalmount")
}

/// Mount point of a volume for a pod.
pub(crate) fn target(kubelet: &Path, uid: &str, name: &str) -> PathBuf {
    let directory = kubelet.join("pods").join(uid).join(PUBLISHED);
    directory.join(name.replace('/', "~")).join("mount")
}

/// Pods with volumes of drivers.
pub(crate) fn pods(kubelet: &Path) -> Vec<String> {
    entries(&kubelet.join("pods"))
        .filter(|path| path.join(PUBLISHED).is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect()
}

/// Volumes of a pod.
pub(crate) fn of_pod(kubelet: &Path, uid: &str) -> Vec<Published> {
    let volumes = entries(&kubelet.join("pods").join(uid).join(PUBLISHED));
    let read = volumes.filter_map(|path| {
        Some(Published {
            name: path.file_name()?.to_str()?.to_owned(),
            target: path.join("mount"),
            handle: read(&path)?,
        })
    });
    read.collect()
}

/// Volumes that are staged.
pub(crate) fn staged(kubelet: &Path) -> Vec<Handle> {
    let volumes = entries(&kubelet.join(STAGED)).flat_map(|driver| entries(&driver));
    volumes.filter_map(|volume| read(&volume)).collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn read(directory: &Path) -> Option<Handle> {
    let text = fs::read(directory.join(DATA)).ok()?;
    let mut data: BTreeMap<String, String> = serde_json::from_slice(&text).ok()?;
    Some(Handle {
        driver: data.remove("driverName")?,
        volume: data.remove("volumeHandle")?,
    })
}

/// True if there is a file that says whose this mount point is.
pub(crate) fn is_known(target: &Path) -> bool {
    target.parent().is_some_and(|directory| directory.join(DATA).exists())
}

/// Creates a directory and those above it, closed to others.
pub(crate) fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Writes beside a mount point whose it is.
pub(crate) fn write(target: &Path, data: &BTreeMap<&str, &str>) -> io::Result<()> {
    let Some(directory) = target.parent() else {
        return Ok(());
    };
    make(directory)?;
    let mut text = serde_json::to_vec(data)?;
    text.push(b'\n');
    // Replaced at once: a driver's volume without its owner would stay mounted for good.
    let new = directory.join(".vol_data.json");
    fs::write(&new, text)?;
    fs::rename(new, directory.join(DATA))
}

/// Removes a mount point on which nothing is mounted, the file beside it, and their directory
/// (`removeMountDir`, `pkg/volume/csi/csi_mounter.go`).
pub(crate) fn remove(target: &Path) -> Result<(), String> {
    let failed = |what: &str, path: &Path, error: &io::Error| {
        format!("kubernetes.io/csi: failed to {what} [{}]: {error}", path.display())
    };
    match volume::is_mounted(target) {
        Ok(false) => {}
        Ok(true) => return Err(format!("kubernetes.io/csi: [{}] is still mounted", target.display())),
        Err(error) => return Err(failed("look at", target, &error)),
    }
    // Some drivers publish a file.
    let mut removed = gone(fs::remove_dir(target));
    if matches!(&removed, Err(error) if error.kind() == io::ErrorKind::NotADirectory) {
        removed = gone(fs::remove_file(target));
    }
    removed.map_err(|error| failed("remove dir", target, &error))?;
    let Some(directory) = target.parent() else {
        return Ok(());
    };
    let data = directory.join(DATA);
    gone(fs::remove_file(&data)).map_err(|error| failed("delete volume data file", &data, &error))?;
    gone(fs::remove_dir(directory)).map_err(|error| failed("delete volume path", directory, &error))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the directories of a pod that has no more volumes; others stay.
pub(crate) fn remove_pod(kubelet: &Path, uid: &str) {
    let pod = kubelet.join("pods").join(uid);
    for directory in [pod.join(PUBLISHED), pod.join("volumes"), pod] {
        // What is not empty stays.
        fs::remove_dir(directory).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_agent_finds_the_volumes_and_removes_only_what_is_empty() {
        let home = tempfile::tempdir().unwrap();
        let handle = Handle {
            driver: "d".to_owned(),
            volume: "h".to_owned(),
        };
        let mount_point = target(home.path(), "uid", "pv");
        assert!(mount_point.ends_with("pods/uid/volumes/kubernetes.io~csi/pv/mount"));
        let data = BTreeMap::from([("driverName", "d"), ("volumeHandle", "h"), ("specVolID", "pv")]);
        write(&mount_point, &data).unwrap();
        write(&staging(home.path(), &handle), &data).unwrap();
        assert_eq!(staged(home.path()), std::slice::from_ref(&handle));
        let published = Published {
            name: "pv".to_owned(),
            target: mount_point.clone(),
            handle,
        };
        assert_eq!(of_pod(home.path(), "uid"), [published]);

        make(&mount_point).unwrap();
        fs::write(mount_point.join("file"), "a user's").unwrap();
        remove(&mount_point).unwrap_err();
        remove_pod(home.path(), "uid");
        assert!(is_known(&mount_point), "the next attempt needs it");
        fs::remove_file(mount_point.join("file")).unwrap();
        remove(&mount_point).unwrap();
        remove(&mount_point).unwrap();
        remove_pod(home.path(), "uid");
        assert!(pods(home.path()).is_empty());
    }
}
