//! Mounts of a pod's volumes into a container.

pub(crate) mod nested;
pub(crate) mod shared;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use agent_plan::container::environment::{Environment, expand_known};
use agent_plan::container::oci;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use crate::{Error, Volumes, claims, component, io_error, is_claim, make_directory, subpath};

/// Directory of image volumes below a pod's directory.
const IMAGES: &str = "images";
/// Length of the part of an image's digest that distinguishes it within the pod, in a name that
/// becomes part of longer ones.
const IMAGE_NAME: usize = 16;

/// Directory of an image volume.
#[derive(Debug)]
pub struct ImagePlace {
    /// Path of the directory.
    pub path: PathBuf,
    /// True if the image is mounted there.
    pub mounted: bool,
}

impl Volumes {
    /// Directory of an `emptyDir` volume; `None` if the pod has no such volume.
    pub fn empty_directory(&self, pod: &Pod, name: &str) -> Result<Option<PathBuf>, Error> {
        let found = pods::volumes(pod).iter().find(|volume| volume.name == name);
        let found = found.filter(|volume| volume.empty_dir.is_some());
        found.map(|volume| self.volume_directory(pod, volume)).transpose()
    }

    /// Directory at which an image volume is mounted for the containers of a sandbox, and whether
    /// it is mounted. The directory is created.
    pub fn image_directory(&self, uid: &str, sandbox: &str, image: &str) -> Result<ImagePlace, Error> {
        let name = image.rsplit(':').next().unwrap_or_default();
        let name = component(name.get(..IMAGE_NAME).unwrap_or(name))?;
        let path = self
            .pod_directory(uid)?
            .join(IMAGES)
            .join(component(sandbox)?)
            .join(name);
        make_directory(&path)?;
        let mounted = subpath::is_mounted(&path).map_err(|error| io_error("find the mount at", &path, error))?;
        Ok(ImagePlace { path, mounted })
    }

    /// True if a volume's files belong to the pod alone, so that they get its `SELinux` label.
    fn gets_label(&self, pod: &Pod, volume: &Volume) -> Result<bool, Error> {
        if volume.host_path.is_some() || volume.image.is_some() {
            return Ok(false);
        }
        Ok(!is_claim(volume) || claims::gets_label(&self.volume_directory(pod, volume)?))
    }

    /// Mounts of a container. `variables` are for `subPathExpr`; `images` returns the directories
    /// of image volumes.
    pub fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        variables: &Environment,
        images: &BTreeMap<String, PathBuf>,
    ) -> Result<Vec<oci::Mount>, Error> {
        let volumes = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.volumes.as_deref())
            .unwrap_or(&[]);
        let mut mounts = Vec::new();
        for (index, wanted) in container.volume_mounts.iter().flatten().enumerate() {
            let volume = volumes
                .iter()
                .find(|volume| volume.name == wanted.name)
                .ok_or_else(|| Error::Missing(wanted.name.clone()))?;
            let labelled = self.gets_label(pod, volume)?;
            let source = match (&volume.host_path, images.get(&volume.name)) {
                (Some(host_path), _) => PathBuf::from(&host_path.path),
                (None, Some(image)) => image.clone(),
                (None, None) => self.volume_directory(pod, volume)?,
            };
            let below = match (&wanted.sub_path, &wanted.sub_path_expr) {
                (Some(path), _) if !path.is_empty() => path.clone(),
                (_, Some(expression)) => expand_known(expression, variables)?,
                (_, None) => String::new(),
            };
            let source = if below.is_empty() {
                source
            } else {
                relative(&below)?;
                let uid = self.pod_directory(pods::uid(pod))?;
                let target = uid
                    .join("subpaths")
                    .join(component(&container.name)?)
                    .join(index.to_string());
                let bound = subpath::bind(&source, &below, &target);
                let (volume, container) = (volume.name.clone(), container.name.clone());
                bound.map_err(|cause| {
                    // The volume is read-only: a retry does not help.
                    let fixed = cause.kind() == io::ErrorKind::ReadOnlyFilesystem;
                    if fixed && images.contains_key(&volume) {
                        let path = below.clone();
                        let source = io::Error::other("no such file or directory");
                        return Error::ImagePath { volume, path, source };
                    }
                    Error::SubPath {
                        volume,
                        container,
                        cause,
                    }
                })?;
                target
            };
            let written_by_agent = volume.host_path.is_none() && volume.empty_dir.is_none() && !is_claim(volume);
            let claim = volume.persistent_volume_claim.as_ref();
            let read_only = wanted.read_only.unwrap_or(false)
                || claim.is_some_and(|claim| claim.read_only == Some(true))
                || volume.csi.as_ref().is_some_and(|csi| csi.read_only == Some(true));
            mounts.push(oci::Mount {
                source,
                destination: cleaned(&wanted.mount_path),
                access: oci::Access::of(wanted, read_only || written_by_agent),
                propagation: oci::Propagation::of(wanted),
                own: false,
                labelled,
            });
        }
        Ok(mounts)
    }
}

/// Validates a path within a volume, into which variables may have been expanded.
fn relative(path: &str) -> Result<(), Error> {
    let problem = if path.starts_with('/') {
        format!("error SubPath `{path}` must not be an absolute path")
    } else if path.split('/').any(|part| part == "..") {
        format!("unable to provision SubPath `{path}`: must not contain '..'")
    } else {
        return Ok(());
    };
    Err(Error::NoSubPath { problem })
}

/// Normalizes a path in the container, without `.` and `..`, as runtimes take it, so that checks of
/// the path see its target.
pub fn cleaned(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::cleaned;

    #[test]
    fn paths_say_where_they_lead() {
        for (path, expected) in [
            ("/x/../dev", "/dev"),
            ("/dev/../mnt/", "/mnt"),
            ("/a//./b", "/a/b"),
            ("data", "/data"),
            ("/../..", "/"),
        ] {
            assert_eq!(cleaned(path), expected, "{path}");
        }
    }
}
