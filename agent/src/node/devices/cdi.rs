//! Devices of the Container Device Interface: files of the machine say what a container gets with
//! them (`SPEC.md` of `cncf-tags/container-device-interface`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use tracing::warn;

/// Directories of the files, as containerd's `cdi_spec_dirs`: what is in the last one counts.
pub(super) const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const FAILED: &str = "CDI device injection failed";

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    /// Vendor and class, as `vendor.com/class`.
    kind: String,
    devices: Vec<Device>,
    container_edits: Edits,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

/// What a container gets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Edits {
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<Node>,
    pub(super) mounts: Vec<Mount>,
    /// Other edits, such as hooks, which are not made.
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) path: String,
    pub(super) host_path: Option<String>,
    pub(super) permissions: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Mount {
    pub(super) host_path: String,
    pub(super) container_path: String,
    pub(super) options: Vec<String>,
}

/// Returns the edits for devices, such as `vendor.com/class=name`; blocks.
pub(super) fn resolve(directories: &[&Path], names: &[String]) -> Result<Vec<Edits>, String> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let specs: Vec<Spec> = directories.iter().flat_map(|directory| read(directory)).collect();
    let (mut edits, mut missing, mut used) = (Vec::new(), Vec::new(), BTreeSet::new());
    for name in names {
        let of = |(index, spec): (usize, &Spec)| {
            let own = name.strip_prefix(&spec.kind)?.strip_prefix('=')?;
            let device = spec.devices.iter().find(|device| device.name == own)?;
            Some((index, spec.container_edits.clone(), device.container_edits.clone()))
        };
        if let Some((index, of_all, own)) = specs.iter().enumerate().rev().find_map(of) {
            edits.extend(used.insert(index).then_some(of_all));
            edits.push(own);
        } else {
            missing.push(name.as_str());
        }
    }
    if !missing.is_empty() {
        return Err(format!("{FAILED}: unresolvable CDI devices {}", missing.join(", ")));
    }
    let mut others = edits.iter().flat_map(|edits: &Edits| edits.others.keys());
    match others.next() {
        Some(other) => Err(format!("{FAILED}: {other} of {} are not supported", names.join(", "))),
        None => Ok(edits),
    }
}

/// Reads the files of a directory in the order of their names. A file that is not valid counts for
/// nothing.
fn read(directory: &Path) -> Vec<Spec> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let parsed = paths.into_iter().filter_map(|path| {
        let text = || fs::read(&path);
        let parsed: io::Result<Spec> = match path.extension()?.to_str()? {
            "json" => text().and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other)),
            "yaml" => text().and_then(|text| serde_yaml::from_slice(&text).map_err(io::Error::other)),
            _ => return None,
        };
        let told = |error: &io::Error| warn!(path = %path.display(), %error, "a CDI specification is not valid");
        parsed.inspect_err(told).ok()
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_in_the_machines_files() {
        let (first, last) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let yaml = "
cdiVersion: 0.5.0
kind: example.com/gpu
containerEdits: {env: [ALL=1]}
devices:
- name: a
  containerEdits: {env: [OLD=1]}
- name: b
  containerEdits:
    hooks: [{hookName: createContainer, path: /bin/true}]
";
        fs::write(first.path().join("a.yaml"), yaml).unwrap();
        fs::write(first.path().join("b.yaml"), "{").unwrap();
        let json = r#"{"kind": "example.com/gpu", "devices": [{"name": "a", "containerEdits": {
            "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/null"}],
            "mounts": [{"hostPath": "/x", "containerPath": "/y", "options": ["ro", "bind"]}]}}]}"#;
        fs::write(last.path().join("a.json"), json).unwrap();
        let of = |directories: &[&Path], names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            resolve(directories, &names)
        };
        let both = [first.path(), last.path()];
        let found = of(&both, &["example.com/gpu=a"]).unwrap();
        assert_eq!((found.len(), found[1].device_nodes[0].path.as_str()), (2, "/dev/a"));
        assert_eq!(found[1].mounts[0].options, ["ro", "bind"]);
        let found = of(&both[..1], &["example.com/gpu=a", "example.com/gpu=a"]).unwrap();
        let env: Vec<_> = found.iter().flat_map(|edits| edits.env.clone()).collect();
        assert_eq!(env, ["ALL=1", "OLD=1", "OLD=1"]);
        assert_eq!(
            of(&both, &["example.com/gpu=a", "example.com/gpu=c"]).unwrap_err(),
            "CDI device injection failed: unresolvable CDI devices example.com/gpu=c"
        );
        assert_eq!(
            of(&both, &["example.com/gpu=b"]).unwrap_err(),
            "CDI device injection failed: hooks of example.com/gpu=b are not supported"
        );
        assert!(of(&both, &[]).unwrap().is_empty());
    }
}
