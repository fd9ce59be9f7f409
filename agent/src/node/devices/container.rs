//! What a container gets with its devices (`GetDeviceRunContainerOptions`,
//! `pkg/kubelet/cm/devicemanager/manager.go`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use agent_plan::container::oci;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Container, Pod};
use nix::sys::stat::{major, minor};

use super::messages::{DeviceSpec, Mount};
use super::{Devices, cdi};

/// Entries of a directory that are no devices of its own (`getDevices`, containerd's `pkg/oci`).
const SKIPPED: [&str; 8] = ["console", "pts", "shm", "fd", "mqueue", ".lxc", ".lxd-cgroup", ".udev"];

/// What a container gets. Of two plugins that say something else of one name or path, the first
/// one counts.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    environment: BTreeMap<String, String>,
    /// Annotations of its configuration.
    pub(crate) annotations: BTreeMap<String, String>,
    mounts: BTreeMap<String, Mount>,
    devices: BTreeMap<String, DeviceSpec>,
    cdi: Vec<String>,
}

impl Devices {
    /// Returns what a container gets, before it is started. One without devices, which it asks for,
    /// gets them.
    pub(crate) async fn prepare(self: &Arc<Self>, pod: &Pod, container: &Container) -> Result<Extras, String> {
        let (uid, name) = (pods::uid(pod), &container.name);
        let mut lacking = false;
        for (resource, wanted) in self.asked(container) {
            if wanted > 0 {
                self.pre_start(uid, name, &resource).await?;
                let key = (uid.to_owned(), name.clone(), resource);
                lacking |= !self.state().grants.contains_key(&key);
            }
        }
        if lacking {
            self.allocate(pod).await?;
        }
        let mut extras = Extras::default();
        let state = self.state();
        let own = state
            .grants
            .iter()
            .filter(|((of, known, _), _)| of == uid && known == name);
        for (_, grant) in own {
            let response = grant.response.clone();
            add(&mut extras.environment, response.envs);
            add(&mut extras.annotations, response.annotations);
            let mounts = response.mounts.into_iter();
            add(
                &mut extras.mounts,
                mounts.map(|mount| (mount.container_path.clone(), mount)),
            );
            let devices = response.devices.into_iter();
            add(
                &mut extras.devices,
                devices.map(|device| (device.container_path.clone(), device)),
            );
            extras.cdi.extend(response.cdi_devices.into_iter().map(|cdi| cdi.name));
        }
        Ok(extras)
    }

    /// Calls `PreStartContainer` if the plugin asks for it (`callPreStartContainerIfNeeded`).
    async fn pre_start(&self, pod: &str, container: &str, resource: &str) -> Result<(), String> {
        let (plugin, ids) = {
            let state = self.state();
            let known = state.resources.get(resource).filter(|known| !known.is_expired());
            let missing = || format!("endpoint not found in cache for a registered resource: {resource}");
            let known = known.ok_or_else(missing)?;
            if !known.options.pre_start_required {
                return Ok(());
            }
            let key = (pod.to_owned(), container.to_owned(), resource.to_owned());
            let none = || {
                let whose = format!("pod {pod}, container {container}, resource {resource}");
                format!("no devices found allocated in local cache for {whose}")
            };
            let grant = state.grants.get(&key).ok_or_else(none)?;
            (known.plugin.clone(), grant.ids.iter().cloned().collect())
        };
        let called = match plugin {
            Some(plugin) => plugin.pre_start(ids).await,
            None => Err("endpoint has been stopped".to_owned()),
        };
        called.map_err(|why| format!("device plugin PreStartContainer rpc failed with err: {why}"))
    }
}

/// Adds what is not there.
fn add<V>(all: &mut BTreeMap<String, V>, more: impl IntoIterator<Item = (String, V)>) {
    for (name, value) in more {
        all.entry(name).or_insert(value);
    }
}

impl Extras {
    /// Adds what the machine's files say of CDI devices, as CRI runtimes do; blocks.
    pub(crate) fn resolved(mut self) -> Result<Self, String> {
        for edits in cdi::resolve(&cdi::DIRECTORIES.map(Path::new), &self.cdi)? {
            let variables = edits.env.iter().filter_map(|variable| variable.split_once('='));
            let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            add(&mut self.environment, owned);
            let nodes = edits.device_nodes.into_iter().map(|node| {
                let device = DeviceSpec {
                    container_path: node.path.clone(),
                    host_path: node.host_path.unwrap_or_else(|| node.path.clone()),
                    permissions: node.permissions,
                };
                (node.path, device)
            });
            add(&mut self.devices, nodes);
            let mounts = edits.mounts.into_iter().map(|mount| {
                let read_only = mount.options.iter().any(|option| option == "ro");
                let (container_path, host_path) = (mount.container_path, mount.host_path);
                let own = Mount {
                    container_path: container_path.clone(),
                    host_path,
                    read_only,
                };
                (container_path, own)
            });
            add(&mut self.mounts, mounts);
        }
        Ok(self)
    }

    /// Adds a device of the machine at a path.
    pub(crate) fn add_device(&mut self, path: &str, host: &Path, permissions: &str) {
        let device = DeviceSpec {
            container_path: path.to_owned(),
            host_path: host.display().to_string(),
            permissions: permissions.to_owned(),
        };
        self.devices.insert(path.to_owned(), device);
    }

    /// Environment variables, as those of an image: the container's own take precedence.
    pub(crate) fn environment(&self) -> impl Iterator<Item = String> + '_ {
        self.environment.iter().map(|(name, value)| format!("{name}={value}"))
    }

    /// Mounts of the machine's files.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = oci::Mount> + '_ {
        self.mounts.iter().map(|(path, mount)| oci::Mount {
            source: mount.host_path.clone().into(),
            destination: volume::cleaned(path),
            access: if mount.read_only {
                oci::Access::ReadOnly
            } else {
                oci::Access::ReadWrite
            },
            propagation: oci::Propagation::Private,
            own: false,
            labelled: false,
        })
    }

    /// Returns the device nodes; blocks. The error is the reason that the container is not created: a
    /// user namespace can make no node.
    pub(crate) fn nodes(&self, pod: &Pod) -> Result<Vec<oci::Device>, String> {
        let shifted = pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false);
        let mut found = Vec::new();
        for (path, device) in &self.devices {
            if shifted {
                return Err(format!("device {path} cannot be made in a pod with hostUsers: false"));
            }
            let added = fs::canonicalize(&device.host_path)
                .and_then(|host| find(&host, Path::new(path), &device.permissions, &mut found));
            added.map_err(|error| format!("lstat {}: {error}", device.host_path))?;
        }
        Ok(found)
    }
}

/// Adds a device, or those in a directory.
fn find(host: &Path, path: &Path, permissions: &str, found: &mut Vec<oci::Device>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(host)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        for entry in fs::read_dir(host)? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let shown = kind.is_dir() || kind.is_block_device() || kind.is_char_device();
            if shown && !SKIPPED.iter().any(|skipped| name == **skipped) {
                find(&entry.path(), &path.join(&name), permissions, found)?;
            }
        }
        return Ok(());
    }
    if !kind.is_block_device() && !kind.is_char_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device node"));
    }
    let letters = |text: &str| text.chars().filter(|letter| "rwm".contains(*letter)).collect();
    let is_made = path.starts_with("/dev");
    found.push(oci::Device {
        mounted: (!is_made).then(|| host.to_owned()),
        path: path.to_owned(),
        block: kind.is_block_device(),
        numbers: (major(metadata.rdev()), minor(metadata.rdev())),
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        access: letters(if permissions.is_empty() { "rwm" } else { permissions }),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    #[test]
    fn the_machines_devices_are_found_by_path_link_and_directory() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let of = |host: &Path, permissions: &str| {
            let spec = DeviceSpec {
                container_path: "/dev/a".to_owned(),
                host_path: host.display().to_string(),
                permissions: permissions.to_owned(),
            };
            let extras = Extras {
                devices: [("/dev/a".to_owned(), spec)].into(),
                ..Extras::default()
            };
            extras.nodes(&Pod::default())
        };
        let found = of(&link, "rwx").unwrap();
        assert_eq!((found[0].numbers, found[0].access.as_str()), ((1, 3), "rw"));
        assert!(!found[0].block && found[0].path == Path::new("/dev/a"));
        assert!(
            of(folder.path(), "").unwrap().is_empty(),
            "links in directories are none"
        );
        fs::create_dir_all(folder.path().join("shm")).unwrap();
        for name in ["card", "shm/x"] {
            let (path, mode) = (folder.path().join(name), Mode::from_bits_truncate(0o640));
            mknod(&path, SFlag::S_IFCHR, mode, makedev(226, 0)).unwrap();
        }
        let all = of(folder.path(), "").unwrap();
        let all: Vec<_> = all
            .iter()
            .map(|device| (device.path.as_path(), device.access.as_str()))
            .collect();
        assert_eq!(all, [(Path::new("/dev/a/card"), "rwm")]);
        let missing = folder.path().join("none");
        assert!(of(&missing, "").unwrap_err().starts_with("lstat /"));
    }
}
