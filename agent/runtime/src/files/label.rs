//! `SELinux` labels of a configuration: those of processes and of files that belong to one
//! container.

use std::io;
use std::path::Path;

use oci_spec::runtime::Spec;
use rustix::fs::{XattrFlags, setxattr};

/// Mount option that labels all files of the mount.
pub(crate) const OPTION: &str = "context";
/// File systems of one container alone, except those whose files the policy labels by their names.
const OWN: [&str; 2] = ["tmpfs", "devpts"];

/// Formats the option for a comma-separated list.
pub(crate) fn quoted(label: &str) -> String {
    format!("{OPTION}=\"{label}\"")
}

/// Label of a container's files.
pub(crate) fn of_mounts(spec: &Spec) -> Option<&str> {
    spec.linux().as_ref()?.mount_label().as_deref()
}

/// Moves the label from the configuration to the options of the mounts that accept it: libcontainer
/// would add it to others, too.
pub(crate) fn settle(spec: &mut Spec) {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let Some(label) = linux.mount_label().clone() else {
        return;
    };
    linux.set_mount_label(None);
    spec.set_linux(Some(linux));
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for mount in &mut mounts {
        if mount.typ().as_deref().is_some_and(|kind| OWN.contains(&kind)) {
            let mut options = mount.options().clone().unwrap_or_default();
            options.push(format!("{OPTION}={label}"));
            mount.set_options(Some(options));
        }
    }
    spec.set_mounts(Some(mounts));
}

/// Labels a directory without its contents.
pub(crate) fn set(path: &Path, label: &str) -> io::Result<()> {
    // The kernel stores labels with a trailing zero.
    let mut value = label.as_bytes().to_vec();
    value.push(0);
    match setxattr(path, "security.selinux", &value, XattrFlags::empty()) {
        Err(rustix::io::Errno::NOTSUP) => Ok(()),
        labelled => Ok(labelled?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_the_containers_own_are_mounted_with_its_label() {
        let spec = r#"{"ociVersion": "1.0.2", "linux": {"mountLabel": "u:o:f:s0:c1,c2"}, "mounts": [
            {"destination": "/dev", "type": "tmpfs", "options": ["mode=755"]}, {"destination": "/dev/pts", "type": "devpts"},
            {"destination": "/proc", "type": "proc"}, {"destination": "/dev/mqueue", "type": "mqueue"},
            {"destination": "/v", "type": "bind", "options": ["rbind"]}]}"#;
        let mut spec: Spec = serde_json::from_str(spec).unwrap();
        assert_eq!(of_mounts(&spec), Some("u:o:f:s0:c1,c2"));
        settle(&mut spec);
        assert_eq!(of_mounts(&spec), None);
        let label = "context=u:o:f:s0:c1,c2";
        let options: Vec<String> = spec
            .mounts()
            .iter()
            .flatten()
            .map(|mount| mount.options().iter().flatten().cloned().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(options, [&format!("mode=755 {label}"), label, "", "", "rbind"]);
        assert_eq!(quoted("u:o:f:s0:c1,c2"), "context=\"u:o:f:s0:c1,c2\"");
    }
}
