//! Volumes of pods, below one directory of the agent: `ROOT/UID/volumes/NAME`, and
//! `ROOT/UID/memory/NAME` for those that hold secrets.
//!
//! All calls block. Setup is idempotent; tear-down may be called in any state, repeatedly, and
//! continues past errors.

mod claims;
mod empty;
mod error;
mod host_path;
mod local_path;
mod memory;
mod mounts;
mod payload;
mod subpath;
mod tree;
mod turns;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use agent_plan::container::environment::{Sources, Surroundings};
use agent_plan::node::storage;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use nix::unistd::{Gid, chown};

pub use error::Error;
pub use local_path::{LocalPath, LocalPathError};
pub use mounts::shared::{share, unshare};
pub use mounts::{ImagePlace, cleaned};
pub use payload::PayloadError;
pub use subpath::is_mounted;
pub use tree::label::{has_label, label};
pub use tree::usage::measure;
pub use turns::{Turn, Turns};

pub(crate) use error::io_error;
use mounts::nested;

/// Directory of a pod's volumes that hold secrets.
const MEMORY: &str = "memory";

/// Volumes of all pods.
#[derive(Clone, Debug)]
pub struct Volumes {
    root: PathBuf,
    secrets_in_memory: bool,
    /// Turns by pod uid; only of pods that are being worked on.
    turns: Arc<Mutex<BTreeMap<String, Weak<Turns>>>>,
    /// Claims that are being mounted right now.
    claiming: Arc<claims::Claiming>,
}

/// Validates a path component from an untrusted source.
fn component(name: &str) -> Result<&str, Error> {
    let plain = !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != "." && name != "..";
    if plain {
        Ok(name)
    } else {
        Err(Error::Name(name.to_owned()))
    }
}

impl Volumes {
    /// Volumes below `root`, which is created with the first one. Secrets are kept in memory, on a
    /// tmpfs for each pod, unless `secrets_in_memory` is false, for tests without the privilege to
    /// mount.
    pub fn new(root: PathBuf, secrets_in_memory: bool) -> Self {
        Self {
            root,
            secrets_in_memory,
            turns: Arc::default(),
            claiming: Arc::default(),
        }
    }

    /// Turns of a pod, shared by all tasks that work on it.
    pub fn turns(&self, uid: &str) -> Arc<Turns> {
        let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = all.get(uid).and_then(Weak::upgrade) {
            return turns;
        }
        all.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::default();
        all.insert(uid.to_owned(), Arc::downgrade(&turns));
        turns
    }

    /// Directory of a pod.
    pub fn pod_directory(&self, uid: &str) -> Result<PathBuf, Error> {
        Ok(self.root.join(component(uid)?))
    }

    /// Uids of all pods with a directory.
    pub fn pods(&self) -> Result<Vec<String>, Error> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("read", &self.root, error)),
        };
        let mut uids: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        uids.sort();
        Ok(uids)
    }

    /// Sets up missing volumes of a pod and updates those with contents from the API. Does nothing
    /// if a later turn has done so, or if the volumes were removed.
    pub fn prepare(&self, turn: &Turn, pod: &Pod, sources: &Sources, surroundings: &Surroundings) -> Result<(), Error> {
        turn.use_for(|| self.make(pod, sources, surroundings))
    }

    /// Creates the directories of a pod's volumes, if directories are sufficient until `prepare` is
    /// called; returns whether every volume has its directory. Does nothing if the volumes were
    /// removed or while they are being set up; never waits.
    pub fn place(&self, turns: &Turns, pod: &Pod, surroundings: &Surroundings) -> Result<bool, Error> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        if volumes.clone().any(|volume| !is_ours(volume)) {
            return Ok(false);
        }
        let Some(_state) = turns.try_hold().filter(|state| !state.removed) else {
            return Ok(false);
        };
        for volume in volumes {
            let directory = self.volume_directory(pod, volume)?;
            let placed = match &volume.empty_dir {
                Some(empty) => make_empty(&directory, empty, pod, surroundings),
                None => self.make_place(&directory, pod, volume),
            };
            placed.map_err(|error| error.of(&volume.name))?;
        }
        Ok(true)
    }

    fn make(&self, pod: &Pod, sources: &Sources, surroundings: &Surroundings) -> Result<(), Error> {
        let volumes = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.volumes.as_deref())
            .unwrap_or(&[]);
        let (mut left, points) = (payload::MOST, nested::points(pod));
        let made = volumes.iter().map(|volume| {
            let made = self.prepare_one(pod, volume, sources, surroundings, &mut left, &points);
            made.map_err(|error| error.of(&volume.name))
        });
        let mut failures: Vec<Error> = made.filter_map(Result::err).collect();
        match failures.pop() {
            None => Ok(()),
            Some(only) if failures.is_empty() => Err(only),
            Some(last) => {
                failures.push(last);
                Err(Error::Several(failures))
            }
        }
    }

    fn prepare_one(
        &self,
        pod: &Pod,
        volume: &Volume,
        sources: &Sources,
        surroundings: &Surroundings,
        left: &mut usize,
        points: &nested::Points,
    ) -> Result<(), Error> {
        if let Some(host_path) = &volume.host_path {
            return host_path::check(&volume.name, host_path);
        }
        if volume.image.is_some() {
            // Mounted when a container that uses it starts.
            return Ok(());
        }
        if volume.git_repo.is_some() {
            // The gate is off and locked (`pkg/volume/git_repo/git_repo.go`).
            let problem = "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling \
                           the feature-gate `GitRepoVolumeDriver`";
            return Err(Error::SetUp {
                volume: volume.name.clone(),
                problem: problem.to_owned(),
            });
        }
        let directory = self.volume_directory(pod, volume)?;
        if is_claim(volume) {
            return claims::mount(&self.root, &self.claiming, &directory, pod, volume, sources);
        }
        if let Some(empty) = &volume.empty_dir {
            return make_empty(&directory, empty, pod, surroundings);
        }
        let payload = payload::build(pod, volume, sources, surroundings, left)
            .map_err(|source| Error::Payload {
                volume: volume.name.clone(),
                source,
            })?
            .ok_or_else(|| Error::Unsupported(volume.name.clone()))?;
        self.make_place(&directory, pod, volume)?;
        let points = points.get(&volume.name);
        let make = || points.map_or(Ok(()), |points| nested::make(&directory, points, &payload));
        make()?;
        payload::atomic::write(&directory, &payload, fs_group(pod))?;
        // A file in the place of the mount point may have been removed only now.
        make()
    }

    /// Directory of a volume with contents from the API.
    fn make_place(&self, directory: &Path, pod: &Pod, volume: &Volume) -> Result<(), Error> {
        if self.secrets_in_memory && is_secret(volume) {
            memory::mount(&self.memory_directory(pod)?)?;
        }
        if directory.exists() {
            return Ok(());
        }
        let group = fs_group(pod);
        make_directory(directory)?;
        chown(directory, None, group).map_err(|error| io_error("chown", directory, error))?;
        set_mode(directory, empty::mode(group))
    }

    fn volume_directory(&self, pod: &Pod, volume: &Volume) -> Result<PathBuf, Error> {
        let volumes = if self.secrets_in_memory && is_secret(volume) {
            let earlier = self.pod_directory(pods::uid(pod))?.join("volumes");
            let earlier = earlier.join(component(&volume.name)?);
            // The pod was started by an agent that kept these on disk.
            if volume.secret.is_none() && earlier.exists() {
                return Ok(earlier);
            }
            self.memory_directory(pod)?
        } else if is_claim(volume) {
            self.pod_directory(pods::uid(pod))?.join(claims::DIRECTORY)
        } else {
            self.pod_directory(pods::uid(pod))?.join("volumes")
        };
        Ok(volumes.join(component(&volume.name)?))
    }

    fn memory_directory(&self, pod: &Pod) -> Result<PathBuf, Error> {
        Ok(self.pod_directory(pods::uid(pod))?.join(MEMORY))
    }

    /// Link to the block device behind a claim of the pod.
    pub fn device(&self, uid: &str, volume: &str) -> Option<PathBuf> {
        let directory = self.pod_directory(uid).ok()?.join(claims::DIRECTORY);
        let link = claims::device_link(&directory.join(component(volume).ok()?))?;
        link.is_symlink().then_some(link)
    }

    /// True if the storage of a claim is mounted for the pod, or its block device is there.
    pub fn is_mounted(&self, uid: &str, volume: &str) -> Result<bool, Error> {
        let directory = self
            .pod_directory(uid)?
            .join(claims::DIRECTORY)
            .join(component(volume)?);
        claims::is_mounted(&directory)
    }

    /// Mount point of a claim's storage for the pod, if it is mounted.
    pub fn mounted(&self, uid: &str, volume: &str) -> Option<PathBuf> {
        let directory = self.pod_directory(uid).ok()?.join(claims::DIRECTORY);
        let directory = directory.join(component(volume).ok()?);
        is_mounted(&directory).is_ok_and(|is| is).then_some(directory)
    }

    /// Groups that the containers of a pod get for its claims.
    pub fn groups(&self, uid: &str) -> Vec<u32> {
        let directory = self.pod_directory(uid);
        directory.map_or_else(|_invalid| Vec::new(), |directory| claims::groups(&directory))
    }

    /// Directories of the volumes that use the node's disk, by name.
    pub fn on_disk(&self, pod: &Pod) -> Result<Vec<(String, PathBuf)>, Error> {
        let volumes = storage::volumes(pod);
        volumes
            .map(|(volume, _)| Ok((volume.name.clone(), self.volume_directory(pod, volume)?)))
            .collect()
    }

    /// Directories of the pod's other volumes in the agent's directory, by name: those in memory,
    /// and those with contents from the API.
    pub fn others(&self, pod: &Pod) -> Vec<(String, PathBuf)> {
        let in_memory = |volume: &Volume| {
            let medium = volume.empty_dir.as_ref().and_then(|source| source.medium.as_ref());
            medium.is_some_and(|medium| !medium.is_empty())
        };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let others = volumes.filter(|volume| is_secret(volume) || volume.config_map.is_some() || in_memory(volume));
        others
            .filter_map(|volume| Some((volume.name.clone(), self.volume_directory(pod, volume).ok()?)))
            .collect()
    }

    /// Removes everything of a pod: mounts, volumes and files. Succeeds if there is nothing.
    pub fn tear_down(&self, uid: &str) -> Result<(), Error> {
        let directory = self.pod_directory(uid)?;
        let turns = self.turns(uid);
        let mut state = turns.hold();
        state.removed = true;
        if self.remove_plain(&directory) {
            return Ok(());
        }
        let mut failures = Vec::new();
        for target in mounts_below(&directory, &mut failures) {
            if let Err(error) = subpath::unmount(&target) {
                failures.push(format!("unmount {}: {error}", target.display()));
            }
        }
        // With a mount left, a removal would delete files of others: for claims, only the mount
        // points are removed.
        if failures.is_empty() {
            claims::remove(&directory, &mut failures);
        }
        if failures.is_empty()
            && let Err(error) = self.remove(&directory)
        {
            failures.push(format!("remove {}: {error}", directory.display()));
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(Error::Incomplete(failures))
        }
    }

    /// Removes the directory of a pod below which nothing is mounted except its memory, without the
    /// mount table, which grows with the node's pods. Stops at any other mount, and returns whether
    /// there was none.
    fn remove_plain(&self, directory: &Path) -> bool {
        let has_claims = directory.join(claims::DIRECTORY).symlink_metadata().is_ok();
        !has_claims && subpath::unmount(&directory.join(MEMORY)).is_ok() && self.remove(directory).is_ok()
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        let root = match std::fs::File::open(&self.root) {
            Ok(root) => root,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        trees::remove_in(&root, directory.file_name().unwrap_or_default())
    }
}

/// Topmost mount points below a directory.
fn mounts_below(directory: &Path, failures: &mut Vec<String>) -> Vec<PathBuf> {
    let Ok(directory) = directory.canonicalize() else {
        return Vec::new();
    };
    let table = match trees::mounts::read() {
        Ok(table) => table,
        Err(error) => {
            failures.push(format!("read /proc/self/mountinfo: {error}"));
            return Vec::new();
        }
    };
    let mut targets: Vec<PathBuf> = trees::mounts::parse(&table)
        .map(|mount| mount.point)
        .filter(|target| target.starts_with(&directory))
        .map(Cow::into_owned)
        .collect();
    targets.sort();
    targets.dedup_by(|below, above| below.starts_with(above));
    targets
}

fn is_claim(volume: &Volume) -> bool {
    let is_others = volume.csi.is_some() || volume.nfs.is_some();
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || is_others
}

/// True for a volume with a directory of its own, which the agent creates.
fn is_ours(volume: &Volume) -> bool {
    is_secret(volume) || volume.config_map.is_some() || volume.empty_dir.is_some()
}

fn make_empty(
    directory: &Path,
    volume: &EmptyDirVolumeSource,
    pod: &Pod,
    surroundings: &Surroundings,
) -> Result<(), Error> {
    let allocatable = surroundings.allocatable.get("memory").map(|milli| milli / 1000);
    empty::make(directory, volume, fs_group(pod), pod, allocatable)
}

/// True for a volume whose contents must not be on disk, or never are upstream.
fn is_secret(volume: &Volume) -> bool {
    volume.secret.is_some() || volume.downward_api.is_some() || volume.projected.is_some()
}

fn fs_group(pod: &Pod) -> Option<Gid> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok().map(Gid::from_raw)
}

pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|error| io_error("create", path, error))
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| io_error("chmod", path, error))
}
