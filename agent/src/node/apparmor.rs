//! `AppArmor` profiles on this machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use agent_plan::container::oci::apparmor::{DEFAULT, DEFAULT_TEXT, Machine, Wanted, asks, is_loaded, wanted};
use k8s_openapi::api::core::v1::{Container, Pod};

/// State of `AppArmor` on this machine, and paths to its files.
pub(crate) struct AppArmor {
    /// `/sys/module/apparmor/parameters/enabled`: begins with `Y` if enabled.
    enabled: PathBuf,
    /// Loaded profiles.
    profiles: PathBuf,
    /// Loads a profile.
    parser: PathBuf,
    /// True once the default profile was loaded since the start. Locked while it is being loaded.
    loaded: Mutex<bool>,
}

impl Default for AppArmor {
    fn default() -> Self {
        Self {
            enabled: "/sys/module/apparmor/parameters/enabled".into(),
            profiles: "/sys/kernel/security/apparmor/profiles".into(),
            parser: "/sbin/apparmor_parser".into(),
            loaded: Mutex::default(),
        }
    }
}

impl AppArmor {
    pub(crate) fn machine(&self) -> Machine {
        let enabled = std::fs::read(&self.enabled).is_ok_and(|text| text.starts_with(b"Y"));
        // Without the kernel's directory, or in a container, profiles cannot be loaded.
        let manageable = std::env::var_os("container").is_none_or(|kind| kind.is_empty()) && self.profiles.exists();
        Machine {
            enabled,
            loads: enabled && manageable && self.parser.exists(),
        }
    }

    /// Returns the profile of a container, which is loaded. Blocks.
    pub(crate) fn profile(&self, pod: &Pod, container: &Container) -> Result<Option<String>, String> {
        match wanted(pod, container, self.machine())? {
            Wanted::Nothing => Ok(None),
            Wanted::Own(name) if self.has(name)? => Ok(Some(name.to_owned())),
            Wanted::Own(name) => Err(format!("apparmor profile not found {name}")),
            Wanted::Default => match self.provide() {
                Ok(()) => Ok(Some(DEFAULT.to_owned())),
                // The profile was not requested: the container runs unconfined, as on a machine
                // without AppArmor.
                Err(why) if !asks(pod, container) => {
                    tracing::warn!(why, "a container that asks for no profile has none");
                    Ok(None)
                }
                Err(why) => Err(why),
            },
        }
    }

    /// True if the profile is known without waiting for `apparmor_parser`.
    pub(crate) fn knows(&self, pod: &Pod, container: &Container) -> bool {
        match wanted(pod, container, self.machine()) {
            Ok(Wanted::Nothing) | Err(_) => true,
            Ok(Wanted::Default) => self.loaded.try_lock().is_ok_and(|loaded| *loaded),
            Ok(Wanted::Own(_)) => false,
        }
    }

    fn has(&self, name: &str) -> Result<bool, String> {
        let listing = std::fs::read_to_string(&self.profiles);
        let listing = listing.map_err(|error| format!("open {}: {error}", self.profiles.display()))?;
        Ok(is_loaded(&listing, name))
    }

    /// Loads the default profile, once: a loaded one of this name may be of an older version. It is
    /// loaded again if it was removed: `aa-remove-unknown` does that to all that have no file.
    fn provide(&self) -> Result<(), String> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if !*loaded || self.has(DEFAULT) == Ok(false) {
            self.load()
                .map_err(|why| format!("cannot load AppArmor profile \"{DEFAULT}\": {why}"))?;
            *loaded = true;
        }
        Ok(())
    }

    fn load(&self) -> Result<(), String> {
        let mut parser = Command::new(&self.parser)
            .arg("-Kr")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.parser.display()))?;
        // The pipe is closed here, after the whole profile was written.
        let written = parser
            .stdin
            .take()
            .map(|mut stdin| stdin.write_all(DEFAULT_TEXT.as_bytes()));
        let ended = parser.wait_with_output().map_err(|error| error.to_string())?;
        match written {
            _ if !ended.status.success() => {
                let said: String = String::from_utf8_lossy(&ended.stderr).chars().take(1024).collect();
                Err(format!("{}: {}", ended.status, said.trim()))
            }
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::{Value, json};

    use super::*;

    fn asking(profile: &Value) -> Pod {
        let container = json!({"name": "a", "securityContext": {"appArmorProfile": profile}});
        let pod = json!({"metadata": {}, "spec": {"containers": [container]}});
        serde_json::from_value(pod).unwrap()
    }

    fn asked(machine: &AppArmor, profile: &Value) -> Result<Option<String>, String> {
        let pod = asking(profile);
        machine.profile(&pod, &pod.spec.as_ref().unwrap().containers[0])
    }

    #[test]
    fn the_default_is_loaded_once_and_others_must_be() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let machine = AppArmor {
            enabled: at("enabled"),
            profiles: at("profiles"),
            parser: at("parser"),
            loaded: Mutex::default(),
        };
        let (default, own) = (
            json!({"type": "RuntimeDefault"}),
            json!({"type": "Localhost", "localhostProfile": "own"}),
        );
        let knows = |profile: &Value| {
            let pod = asking(profile);
            machine.knows(&pod, &pod.spec.as_ref().unwrap().containers[0])
        };
        fs::write(at("enabled"), "N\n").unwrap();
        assert_eq!(asked(&machine, &json!(null)), Ok(None));
        assert!(knows(&json!(null)));
        fs::write(at("enabled"), "Y\n").unwrap();
        assert_eq!(
            machine.machine(),
            Machine {
                enabled: true,
                loads: false
            }
        );
        // Stand-in for `apparmor_parser`: records its input, and fails the first time.
        let (list, got, broken) = (at("profiles"), at("got"), at("broken"));
        let script = format!(
            "#!/bin/sh\ncat >> {}\n[ -e {} ] && {{ echo no room >&2; exit 3; }}\necho 'skiff-default (enforce)' >> {}\n",
            got.display(),
            broken.display(),
            list.display()
        );
        fs::write(at("parser"), script).unwrap();
        fs::set_permissions(at("parser"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&list, "other (enforce)\n").unwrap();
        assert_eq!(asked(&machine, &own).unwrap_err(), "apparmor profile not found own");
        fs::write(&broken, "").unwrap();
        assert_eq!(
            asked(&machine, &default).unwrap_err(),
            "cannot load AppArmor profile \"skiff-default\": exit status: 3: no room"
        );
        assert_eq!(asked(&machine, &json!(null)), Ok(None), "who asks for nothing runs");
        assert!(
            !knows(&default) && !knows(&own),
            "a program would have to be waited for"
        );
        fs::remove_file(&broken).unwrap();
        fs::remove_file(&got).unwrap();
        for profile in [json!(null), default] {
            assert_eq!(asked(&machine, &profile), Ok(Some("skiff-default".to_owned())));
        }
        assert!(knows(&json!(null)));
        assert_eq!(fs::read_to_string(&got).unwrap(), DEFAULT_TEXT);
        fs::write(list, "own (complain)\n").unwrap();
        assert_eq!(asked(&machine, &own), Ok(Some("own".to_owned())));
        // As after `aa-remove-unknown`.
        assert_eq!(asked(&machine, &json!(null)), Ok(Some("skiff-default".to_owned())));
        assert_eq!(fs::read_to_string(got).unwrap(), DEFAULT_TEXT.repeat(2));
    }
}
