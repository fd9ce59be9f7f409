//! The file with the devices of containers (`kubelet_internal_checkpoint`), in upstream's form
//! (`pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go`), except that nobody computes its
//! checksum.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::messages::ContainerAllocateResponse;
use super::{Grant, Grants};

/// Name of the file.
pub(super) const NAME: &str = "kubelet_internal_checkpoint";
/// Devices without a NUMA node.
const NO_NODE: &str = "-1";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Checkpoint {
    data: Data,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
    #[serde(rename = "AllocResp")]
    response: String,
}

/// Writes the file durably.
pub(super) fn write(path: &Path, grants: &Grants, registered: BTreeMap<String, Vec<String>>) -> io::Result<()> {
    let entries = grants.iter().map(|((pod, container, resource), grant)| Entry {
        pod: pod.clone(),
        container: container.clone(),
        resource: resource.clone(),
        ids: BTreeMap::from([(NO_NODE.to_owned(), grant.ids.iter().cloned().collect())]),
        response: STANDARD.encode(grant.response.encode_to_vec()),
    });
    let registered = registered.into_iter().map(|(name, ids)| (name, Some(ids)));
    let written = Checkpoint {
        data: Data {
            pod_device_entries: Some(entries.collect()),
            registered_devices: Some(registered.collect()),
        },
        checksum: 0,
    };
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(&serde_json::to_vec(&written)?)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent()
        .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Returns the devices of containers, and the names of the resources that plugins had registered.
pub(super) fn read(path: &Path) -> io::Result<(Grants, Vec<String>)> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Grants::new(), Vec::new())),
        read => read?,
    };
    let Checkpoint { data, .. } = serde_json::from_slice(&text)?;
    let mut grants = Grants::new();
    for entry in data.pod_device_entries.into_iter().flatten() {
        let bytes = STANDARD.decode(&entry.response).map_err(io::Error::other)?;
        let response = ContainerAllocateResponse::decode(bytes.as_slice()).map_err(io::Error::other)?;
        let ids = entry.ids.into_values().flatten().collect();
        let key = (entry.pod, entry.container, entry.resource);
        grants.insert(key, Grant { ids, response });
    }
    let registered = data.registered_devices.into_iter().flatten();
    Ok((grants, registered.map(|(name, _)| name).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert_eq!(read(&path).unwrap(), (Grants::new(), Vec::new()));
        let mut response = ContainerAllocateResponse::default();
        response.envs.insert("DEVICE".to_owned(), "a".to_owned());
        let ids = ["a".to_owned()].into();
        let key = ["u", "c", "example.com/x"].map(str::to_owned);
        let grants = Grants::from([(key.into(), Grant { ids, response })]);
        let registered = BTreeMap::from([("example.com/x".to_owned(), vec!["a".to_owned()])]);
        write(&path, &grants, registered).unwrap();
        assert_eq!(read(&path).unwrap(), (grants, vec!["example.com/x".to_owned()]));
    }

    #[test]
    fn a_kubelets_file_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let entry = r#"{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["a"],"1":["b"]},"AllocResp":"CgoKA0RFVhIDYS1i"}"#;
        let text =
            format!(r#"{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":{{"r":null}}}},"Checksum":17}}"#);
        fs::write(&path, text).unwrap();
        let (grants, registered) = read(&path).unwrap();
        let grant = grants.into_values().next().unwrap();
        assert_eq!(grant.ids, ["a", "b"].map(str::to_owned).into());
        assert_eq!(grant.response.envs["DEV"], "a-b");
        assert_eq!(registered, ["r"]);
    }
}
