//! Capabilities of containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Capabilities;

/// Capabilities of a container without `securityContext.capabilities`.
const DEFAULT: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// All capabilities of Linux, in the order of their numbers.
pub const ALL: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The names of the capabilities in a mask of `/proc/PID/status`.
pub fn from_mask(mask: u64) -> BTreeSet<String> {
    let held = ALL.iter().enumerate().filter(|(number, _)| mask >> number & 1 == 1);
    held.map(|(_, name)| (*name).to_owned()).collect()
}

/// Returns the default set without the dropped and with the added capabilities, or everything;
/// never more than `available`.
pub(super) fn build(wanted: Option<&Capabilities>, privileged: bool, available: &BTreeSet<String>) -> BTreeSet<String> {
    if privileged {
        return available.clone();
    }
    let mut set: BTreeSet<String> = DEFAULT.iter().map(|name| (*name).to_owned()).collect();
    let all = || ALL.iter().map(|name| (*name).to_owned());
    let added = names(wanted.and_then(|wanted| wanted.add.as_deref()));
    let dropped = names(wanted.and_then(|wanted| wanted.drop.as_deref()));
    if added.contains("ALL") {
        set.extend(all());
    }
    if dropped.contains("ALL") {
        set.clear();
        if added.contains("ALL") {
            set.extend(all());
        }
    }
    set.retain(|name| !dropped.contains(name));
    set.extend(added.into_iter().filter(|name| name != "ALL"));
    set.retain(|name| available.contains(name));
    set
}

/// Full names. Unknown capabilities are ignored, as with containerd and runc; this includes names
/// that begin with `CAP_`, since a pod's spec has them without the prefix.
fn names(list: Option<&[String]>) -> BTreeSet<String> {
    let named = list.unwrap_or(&[]).iter().map(|name| name.to_ascii_uppercase());
    named
        .map(|upper| if upper == "ALL" { upper } else { format!("CAP_{upper}") })
        .filter(|name| name == "ALL" || ALL.contains(&name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(add: &[&str], drop: &[&str], available: u64) -> Vec<String> {
        let list = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let wanted = Capabilities {
            add: list(add),
            drop: list(drop),
        };
        build(Some(&wanted), false, &from_mask(available)).into_iter().collect()
    }

    #[test]
    fn nothing_beyond_the_agents_own_is_given() {
        assert_eq!(check(&[], &[], u64::MAX).len(), 14);
        assert_eq!(check(&["NET_ADMIN"], &["ALL"], u64::MAX), ["CAP_NET_ADMIN"]);
        assert_eq!(
            check(&["SYS_RESOURCE"], &["ALL"], 0x1ff_feff_ffff),
            Vec::<String>::new()
        );
        assert_eq!(check(&["ALL"], &["ALL"], u64::MAX).len(), 41, "added after dropped");
    }

    #[test]
    fn names_that_linux_does_not_have_mean_nothing() {
        assert_eq!(
            check(&["NOPE", "CAP_NET_ADMIN", "net_raw"], &["ALL"], u64::MAX),
            ["CAP_NET_RAW"]
        );
        assert_eq!(check(&[], &["CAP_CHOWN"], u64::MAX).len(), 14);
    }
}
