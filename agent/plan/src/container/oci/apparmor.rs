//! The `AppArmor` profile of a container.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

/// The default profile.
pub const DEFAULT: &str = "skiff-default";

/// Text of [`DEFAULT`]: allows everything that the container's other restrictions leave, except
/// mounts, writes to sysctls, and ptrace of or signals to processes not confined by it.
pub const DEFAULT_TEXT: &str = "profile skiff-default flags=(attach_disconnected,mediate_deleted) {
  capability,
  network,
  unix,
  file,
  umount,
  deny mount,

  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (send, receive) peer=skiff-default,
  ptrace (trace, read, tracedby, readby) peer=skiff-default,

  deny /proc/* w,
  deny /proc/{sysrq-trigger,kcore,kmem,mem} rwklx,
  deny /proc/{acpi,asound,bus,driver,fs,irq,scsi,sysvipc,tty}/** w,
  deny /proc/sys/{abi,crypto,debug,dev,fs,net,sunrpc,user,vm}/** w,
  deny /proc/sys/kernel/[^s]** w,
  deny /proc/sys/kernel/s[^h]** w,
  deny /proc/sys/kernel/sh[^m]** w,

  deny /sys/{block,bus,class,dev,devices,hypervisor,kernel,module,power}/** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/{firmware,kernel/security,devices/virtual/powercap}/** rwklx,
}
";

/// The machine's `AppArmor` support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The kernel has `AppArmor` enabled.
    pub enabled: bool,
    /// The agent can load profiles.
    pub loads: bool,
}

/// Confinement of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// No profile.
    Nothing,
    /// [`DEFAULT`].
    Default,
    /// A profile (`Localhost`) that must have been loaded already.
    Own(&'a str),
}

/// True if the container, or its pod, names a profile.
pub fn asks(pod: &Pod, container: &Container) -> bool {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    own.is_some_and(|own| own.app_armor_profile.is_some())
        || of_pod.is_some_and(|of_pod| of_pod.app_armor_profile.is_some())
}

/// Returns the container's confinement on this machine, or the reason for which it is not
/// available. A container without a profile that is not privileged gets the default profile where
/// there is one.
pub fn wanted<'a>(pod: &'a Pod, container: &'a Container, machine: Machine) -> Result<Wanted<'a>, &'static str> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let profile = own.and_then(|own| own.app_armor_profile.as_ref());
    let profile = profile.or_else(|| of_pod.and_then(|of_pod| of_pod.app_armor_profile.as_ref()));
    let usable = machine.enabled && machine.loads;
    let privileged = own.and_then(|own| own.privileged) == Some(true);
    let plain = if privileged { Wanted::Nothing } else { Wanted::Default };
    match profile {
        None if usable => Ok(plain),
        None => Ok(Wanted::Nothing),
        Some(profile) if profile.type_ == "Unconfined" => Ok(Wanted::Nothing),
        Some(_) if !usable => Err("apparmor is not supported"),
        Some(AppArmorProfile {
            localhost_profile: Some(name),
            type_,
        }) if type_ == "Localhost" => Ok(Wanted::Own(name)),
        Some(_) => Ok(plain),
    }
}

/// True if a profile is in the kernel's list: one line each, the name followed by the mode in
/// parentheses.
pub fn is_loaded(listing: &str, name: &str) -> bool {
    let mut names = listing.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0));
    names.any(|loaded| loaded == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::selinux::Labels;
    use super::super::{Abilities, Image, Inputs};
    use super::*;
    use crate::container::environment::{Sources, Surroundings};

    const ON: Machine = Machine {
        enabled: true,
        loads: true,
    };

    fn decided(of_pod: &Value, own: &Value, machine: Machine) -> String {
        let container = json!({"name": "a", "securityContext": own});
        let spec = json!({"containers": [container], "securityContext": {"appArmorProfile": of_pod}});
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        match wanted(&pod, container, machine) {
            Ok(wanted) => format!("{wanted:?}"),
            Err(why) => why.to_owned(),
        }
    }

    #[test]
    fn a_container_has_its_own_profile_or_the_pods_or_the_default() {
        let (default, none) = (json!({"type": "RuntimeDefault"}), json!(null));
        let (free, local) = (
            json!({"type": "Unconfined"}),
            json!({"type": "Localhost", "localhostProfile": "strict"}),
        );
        let profile = |profile: &Value| json!({"appArmorProfile": profile});
        let privileged = |profile: &Value| json!({"privileged": true, "appArmorProfile": profile});
        let loader = Machine { loads: false, ..ON };
        let refused = "apparmor is not supported";
        for (of_pod, own, machine, expected) in [
            (&none, json!(null), ON, "Default"),
            (&none, privileged(&none), ON, "Nothing"),
            (&none, json!(null), loader, "Nothing"),
            (&none, json!(null), Machine::default(), "Nothing"),
            (&default, json!(null), ON, "Default"),
            (&default, privileged(&none), ON, "Nothing"),
            (&free, json!(null), ON, "Nothing"),
            (&free, json!(null), Machine::default(), "Nothing"),
            (&free, profile(&local), ON, "Own(\"strict\")"),
            (&local, json!(null), ON, "Own(\"strict\")"),
            (&local, profile(&free), ON, "Nothing"),
            (&local, privileged(&none), ON, "Own(\"strict\")"),
            (&none, profile(&default), loader, refused),
            (&none, profile(&local), Machine::default(), refused),
        ] {
            assert_eq!(decided(of_pod, &own, machine), expected, "{of_pod} {own} {machine:?}");
        }
    }

    #[test]
    fn the_runtime_is_told_the_profile_and_the_labels() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {"containers": []}})).unwrap();
        let container: Container = serde_json::from_value(json!({"name": "a", "command": ["true"]})).unwrap();
        let labels = Labels {
            process: Some("u:r:t".to_owned()),
            mount: "u:o:f".to_owned(),
        };
        for profile in [None, Some("strict")] {
            let spec = super::super::build(&Inputs {
                pod: &pod,
                container: &container,
                image: &Image::default(),
                sources: &Sources::default(),
                surroundings: &Surroundings::default(),
                mounts: &[],
                devices: &[],
                abilities: &Abilities {
                    capabilities: BTreeSet::new(),
                    memory: 1 << 30,
                    pids: 100,
                    all_users: true,
                    thermal: vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()],
                },
                seccomp: None,
                app_armor: profile,
                se_linux: Some(&labels),
            });
            let spec = spec.unwrap();
            let process = spec.process().as_ref().unwrap();
            assert_eq!(process.apparmor_profile().as_deref(), profile);
            assert_eq!(process.selinux_label().as_deref(), Some("u:r:t"));
            let linux = spec.linux().as_ref().unwrap();
            assert_eq!(linux.mount_label().as_deref(), Some("u:o:f"));
            let masked = linux.masked_paths().as_deref().unwrap_or_default();
            assert!(masked.iter().any(|path| path.ends_with("/cpu0/thermal_throttle")));
        }
    }

    #[test]
    fn loaded_profiles_are_found_by_their_whole_names() {
        let listing = "/usr/bin/man (enforce)\nskiff-default (enforce)\nodd (name) (complain)\n";
        for (name, expected) in [
            ("skiff-default", true),
            ("odd (name)", true),
            ("skiff", false),
            ("man", false),
            ("", false),
        ] {
            assert_eq!(is_loaded(listing, name), expected, "{name}");
        }
        assert!(DEFAULT_TEXT.starts_with(&format!("profile {DEFAULT} ")));
    }
}
