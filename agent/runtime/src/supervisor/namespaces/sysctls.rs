//! Sysctls of a pod's namespaces.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::SandboxSpec;

/// Sysctls of an IPC namespace, besides all of `fs.mqueue.`.
const IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// Sets the pod's sysctls, in the namespaces of this process; never in those of the machine.
pub(in crate::supervisor) fn set(spec: &SandboxSpec) -> io::Result<()> {
    for (name, value) in &spec.sysctls {
        let path = path(spec, name)?;
        fs::write(&path, value).map_err(|error| io::Error::new(error.kind(), format!("{name} = {value}: {error}")))?;
    }
    Ok(())
}

fn path(spec: &SandboxSpec, name: &str) -> io::Result<PathBuf> {
    let refuse = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: {why}"));
    let parts: Vec<&str> = name.split('.').collect();
    let plain = |part: &&str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    if !parts.iter().all(plain) {
        return Err(refuse("no name of a setting"));
    }
    let own = if name.starts_with("net.") {
        spec.netns.is_some()
    } else if IPC.contains(&name) || name.starts_with("fs.mqueue.") {
        !spec.host_ipc
    } else {
        return Err(refuse("belongs to the whole machine"));
    };
    if !own {
        return Err(refuse("the pod has the machine's namespace for it"));
    }
    Ok(Path::new("/proc/sys").join(parts.join("/")))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::path;
    use crate::{PodId, SandboxSpec};

    #[test]
    fn attack_19_only_settings_of_the_pods_own_namespaces_are_written() {
        let mut spec = SandboxSpec {
            id: "a".to_owned(),
            pod: PodId {
                namespace: String::new(),
                name: String::new(),
                uid: String::new(),
            },
            attempt: 0,
            hostname: String::new(),
            netns: Some(PathBuf::from("/run/netns/a")),
            share_process_namespace: false,
            host_pid: false,
            host_ipc: false,
            limits: crate::Limits::default(),
            user_ids: None,
            se_linux_level: None,
            handler: String::new(),
            class: crate::Class::Guaranteed,
            sysctls: Vec::new(),
        };
        let written = |spec: &SandboxSpec, name: &str| path(spec, name).ok();
        let own = "net.ipv4.ip_unprivileged_port_start";
        let file = Path::new("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        assert_eq!(written(&spec, own).as_deref(), Some(file));
        assert!(written(&spec, "kernel.shm_rmid_forced").is_some());
        for bad in [
            "kernel.core_pattern",
            "net..core_pattern",
            "net./../kernel/core_pattern",
            "net",
            "",
        ] {
            assert_eq!(written(&spec, bad), None, "{bad}");
        }
        spec.netns = None;
        spec.host_ipc = true;
        assert_eq!(written(&spec, own), None);
        assert_eq!(written(&spec, "kernel.shm_rmid_forced"), None);
    }
}
