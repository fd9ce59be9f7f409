//! Validation of volume mounts and block devices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use crate::value::invalid::Invalid;
use crate::workload::validation::{local_path, no_backsteps, one_of_or_none, required};

/// Validates the mounts of a container for these volumes.
pub(super) fn mounts(errors: &mut Vec<Invalid>, container: &Container, path: &str, volumes: &BTreeMap<&str, bool>) {
    let privileged = container.security_context.as_ref().and_then(|own| own.privileged) == Some(true);
    let mut points = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{path}[{index}]");
        let field = format!("{path}.name");
        if required(errors, &field, Some(&mount.name)) && !volumes.contains_key(mount.name.as_str()) {
            errors.push(Invalid::not_found(field, &mount.name));
        }
        let field = format!("{path}.mountPath");
        if required(errors, &field, Some(&mount.mount_path)) && !points.insert(mount.mount_path.as_str()) {
            errors.push(Invalid::value(field.as_str(), &mount.mount_path, "must be unique"));
        }
        let devices = container.volume_devices.as_deref().unwrap_or_default();
        if devices.iter().any(|device| device.name == mount.name) {
            let detail = "must not already exist in volumeDevices";
            errors.push(Invalid::value(format!("{path}.name"), &mount.name, detail));
        }
        if devices.iter().any(|device| device.device_path == mount.mount_path) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(Invalid::value(field, &mount.mount_path, detail));
        }
        let sub_path = mount.sub_path.as_deref().filter(|path| !path.is_empty());
        let expression = mount.sub_path_expr.as_deref().filter(|path| !path.is_empty());
        if let Some(sub_path) = sub_path {
            local_path(errors, &format!("{path}.subPath"), sub_path);
        }
        if let Some(expression) = expression {
            no_backsteps(errors, &format!("{path}.subPathExpr"), expression);
            if sub_path.is_some() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                errors.push(Invalid::value(format!("{path}.subPathExpr"), expression, detail));
            }
        }
        propagation(errors, mount, privileged, &path);
    }
}

/// Validates the block devices of a container for these volumes (`ValidateVolumeDevices`,
/// `pkg/apis/core/validation/validation.go`).
pub(super) fn devices(errors: &mut Vec<Invalid>, container: &Container, path: &str, volumes: &BTreeMap<&str, bool>) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let (name, device_path) = (device.name.as_str(), device.device_path.as_str());
        let field = format!("{path}[{index}].name");
        let mut refuse = |detail: &str| errors.push(Invalid::value(field.as_str(), name, detail));
        if !name.is_empty() && !names.insert(name) {
            refuse("must be unique");
        }
        if volumes.get(name) == Some(&false) {
            refuse("can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode");
        }
        if mounts.iter().any(|mount| mount.name == name) {
            refuse("must not already exist in volumeMounts");
        }
        required(errors, &field, Some(name));
        if !volumes.contains_key(name) {
            errors.push(Invalid::not_found(field, name));
        }
        let field = format!("{path}[{index}].devicePath");
        required(errors, &field, Some(device_path));
        let mut refuse = |detail: &str| errors.push(Invalid::value(field.as_str(), device_path, detail));
        if paths.contains(device_path) {
            refuse("must be unique");
        }
        if device_path.split('/').any(|part| part == "..") {
            refuse("can not contain backsteps ('..')");
        } else {
            paths.insert(device_path);
        }
        if mounts.iter().any(|mount| mount.mount_path == device_path) {
            refuse("must not already exist as a path in volumeMounts");
        }
    }
}

/// Validates mount propagation and recursive read-only mounts.
fn propagation(errors: &mut Vec<Invalid>, mount: &VolumeMount, privileged: bool, path: &str) {
    let later = mount.mount_propagation.as_deref();
    let field = format!("{path}.mountPropagation");
    one_of_or_none(errors, &field, later, &["Bidirectional", "HostToContainer", "None"]);
    if later == Some("Bidirectional") && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(Invalid::forbidden(field, detail));
    }
    let below = mount.recursive_read_only.as_deref();
    let field = format!("{path}.recursiveReadOnly");
    one_of_or_none(errors, &field, below, &["Disabled", "Enabled", "IfPossible"]);
    if matches!(below, Some("Enabled" | "IfPossible")) {
        if mount.read_only != Some(true) {
            errors.push(Invalid::forbidden(
                field.as_str(),
                "may only be specified when readOnly is true",
            ));
        }
        if later.is_some_and(|later| later != "None") {
            let detail = "may only be specified when mountPropagation is None or not specified";
            errors.push(Invalid::forbidden(field, detail));
        }
    }
}
