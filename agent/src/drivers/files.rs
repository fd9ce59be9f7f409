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
/// Directory of the sockets at which plugins register.
pub(super) const REGISTRY: &str = "plugins_registry";
/// Directory of the staged volumes.
pub(super) const STAGED: &str = "plugins/kubernetes.io/csi";
/// Directory of block devices in it.
const DEVICES: &str = "volumeDevices";
/// Directories of the volumes in a pod's directory: file systems and block devices.
const PUBLISHED: &str = "volumes/kubernetes.io~csi";
const MAPPED: &str = "volumeDevices/kubernetes.io~csi";

/// Place at which a driver mounts a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Mount point; the driver makes that of a published block device.
    pub(crate) target: PathBuf,
    /// Directory of the file that says whose it is.
    record: PathBuf,
}

impl Place {
    /// True if there is a file that says whose it is.
    pub(super) fn is_known(&self) -> bool {
        self.record.join(DATA).exists()
    }
}

/// Volume that is, or was to be, published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Name of the persistent volume, or of the pod's own.
    pub(crate) name: String,
    pub(crate) place: Place,
    /// The volume.
    pub(crate) handle: Handle,
}

/// Place of a staged volume (`makeDeviceMountPath`, `pkg/volume/csi/csi_attacher.go`).
pub(crate) fn staging(kubelet: &Path, handle: &Handle) -> Place {
    let record = kubelet.join(STAGED).join(&handle.driver).join(hash(&handle.volume));
    Place {
        target: record.join("globalmount"),
        record,
    }
}

/// Place of a volume for a pod.
pub(crate) fn target(kubelet: &Path, uid: &str, name: &str) -> Place {
    let record = kubelet
        .join("pods")
        .join(uid)
        .join(PUBLISHED)
        .join(name.replace('/', "~"));
    Place {
        target: record.join("mount"),
        record,
    }
}

/// Place of a staged block device (`GetStagingPath`, `pkg/volume/csi/csi_block.go`).
pub(crate) fn device_staging(kubelet: &Path, name: &str) -> Place {
    let devices = kubelet.join(STAGED).join(DEVICES);
    Place {
        target: devices.join("staging").join(name),
        record: devices.join(name).join("data"),
    }
}

/// Place of a block device for a pod (`getPublishPath`).
pub(crate) fn device_target(kubelet: &Path, uid: &str, name: &str) -> Place {
    Place {
        target: kubelet.join(STAGED).join(DEVICES).join("publish").join(name).join(uid),
        record: kubelet.join("pods").join(uid).join(MAPPED).join(name),
    }
}

/// Pods with volumes of drivers.
pub(crate) fn pods(kubelet: &Path) -> Vec<String> {
    entries(&kubelet.join("pods"))
        .filter(|path| path.join(PUBLISHED).is_dir() || path.join(MAPPED).is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect()
}

/// Volumes of a pod.
pub(crate) fn of_pod(kubelet: &Path, uid: &str) -> Vec<Published> {
    let pod = kubelet.join("pods").join(uid);
    let published = |path: PathBuf, is_device: bool| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some(Published {
            place: if is_device {
                device_target(kubelet, uid, &name)
            } else {
                target(kubelet, uid, &name)
            },
            handle: read(&path)?,
            name,
        })
    };
    let mounted = entries(&pod.join(PUBLISHED)).filter_map(|path| published(path, false));
    let mapped = entries(&pod.join(MAPPED)).filter_map(|path| published(path, true));
    mounted.chain(mapped).collect()
}

/// Volumes that are staged.
pub(crate) fn staged(kubelet: &Path) -> Vec<(Handle, Place)> {
    let volumes = entries(&kubelet.join(STAGED)).flat_map(|driver| entries(&driver));
    let mounted = volumes.filter_map(|volume| {
        let handle = read(&volume)?;
        Some((handle.clone(), staging(kubelet, &handle)))
    });
    let devices = entries(&kubelet.join(STAGED).join(DEVICES)).filter_map(|device| {
        let place = device_staging(kubelet, device.file_name()?.to_str()?);
        Some((read(&place.record)?, place))
    });
    mounted.chain(devices).collect()
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

/// Creates a directory and those above it, closed to others.
pub(crate) fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Records whose a place is.
pub(crate) fn write(place: &Place, data: &BTreeMap<&str, &str>) -> io::Result<()> {
    make(&place.record)?;
    let mut text = serde_json::to_vec(data)?;
    text.push(b'\n');
    // Replaced at once: a driver's volume without its owner would stay mounted for good.
    let new = place.record.join(".vol_data.json");
    fs::write(&new, text)?;
    fs::rename(new, place.record.join(DATA))
}

/// Removes a mount point on which nothing is mounted, the record of it, and their directories
/// (`removeMountDir`, `pkg/volume/csi/csi_mounter.go`).
pub(crate) fn remove(place: &Place) -> Result<(), String> {
    let Place { target, record } = place;
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
    let data = record.join(DATA);
    gone(fs::remove_file(&data)).map_err(|error| failed("delete volume data file", &data, &error))?;
    gone(fs::remove_dir(record)).map_err(|error| failed("delete volume path", record, &error))?;
    if !target.starts_with(record) {
        // A device's, which other pods may use.
        for directory in [target.parent(), record.parent()].into_iter().flatten() {
            fs::remove_dir(directory).ok();
        }
    }
    Ok(())
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
    let own = [PUBLISHED, "volumes", MAPPED, DEVICES, ""];
    for directory in own.map(|name| pod.join(name)) {
        // What is not empty stays.
        fs::remove_dir(directory).ok();
    }
}

/// Removes the records of all volumes, which are not mounted any more: another cluster's agent would
/// take them for its own. Returns a line for each whose driver was not asked.
pub(super) fn clean(kubelet: &Path) -> io::Result<Vec<String>> {
    let mut volumes = staged(kubelet);
    for uid in pods(kubelet) {
        let published = of_pod(kubelet, &uid).into_iter();
        volumes.extend(published.map(|volume| (volume.handle, volume.place)));
    }
    let (mut told, mut failures) = (Vec::new(), Vec::new());
    for (handle, place) in volumes {
        failures.extend(remove(&place).err());
        let (name, target) = (handle.unique_name(), place.target.display());
        told.push(format!(
            "what the storage driver, which was not asked, keeps of {name} at {target}"
        ));
    }
    for uid in pods(kubelet) {
        remove_pod(kubelet, &uid);
    }
    let devices = kubelet.join(STAGED).join(DEVICES);
    let own = ["staging", "publish"].map(|name| devices.join(name));
    for directory in own.into_iter().chain(entries(&kubelet.join(STAGED))) {
        // What is not empty stays.
        fs::remove_dir(directory).ok();
    }
    if failures.is_empty() {
        Ok(told)
    } else {
        Err(io::Error::other(failures.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_agent_finds_the_volumes_and_removes_only_what_is_empty() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let handle = Handle {
            driver: "d".to_owned(),
            volume: "h".to_owned(),
        };
        let (mount, device) = (target(home, "uid", "pv"), device_target(home, "uid", "pv"));
        assert!(mount.target.ends_with("pods/uid/volumes/kubernetes.io~csi/pv/mount"));
        assert!(device.target.ends_with("csi/volumeDevices/publish/pv/uid"));
        let data = BTreeMap::from([("driverName", "d"), ("volumeHandle", "h"), ("specVolID", "pv")]);
        let places = [staging(home, &handle), device_staging(home, "pv")];
        for place in places.iter().chain([&mount, &device]) {
            write(place, &data).unwrap();
        }
        assert_eq!(staged(home), places.map(|place| (handle.clone(), place)));
        let published = [mount.clone(), device.clone()].map(|place| Published {
            name: "pv".to_owned(),
            place,
            handle: handle.clone(),
        });
        assert_eq!(of_pod(home, "uid"), published);

        make(&mount.target).unwrap();
        fs::write(mount.target.join("file"), "a user's").unwrap();
        remove(&mount).unwrap_err();
        remove_pod(home, "uid");
        assert_eq!(of_pod(home, "uid"), published, "the next attempt needs it");
        fs::remove_file(mount.target.join("file")).unwrap();
        for place in [&mount, &mount, &device] {
            remove(place).unwrap();
        }
        remove_pod(home, "uid");
        assert!(pods(home).is_empty());

        write(&mount, &data).unwrap();
        assert_eq!(clean(home).unwrap().len(), 3, "the pod's, and where it is staged");
        assert!(pods(home).is_empty() && staged(home).is_empty());
        assert_eq!(entries(&home.join(STAGED)).count(), 0);
    }
}
