//! `SELinux` on this machine: whether it is enabled, and the labels of containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_plan::container::oci::selinux::{self, Defaults, Labels};
use k8s_openapi::api::core::v1::{Container, Pod};

/// Paths to `SELinux` files on this machine, and the level of each pod.
pub(crate) struct SeLinux {
    /// Exists if `SELinux` is enabled.
    enforce: PathBuf,
    /// Label of this process: the kernel's own before a policy is loaded.
    current: PathBuf,
    /// Configuration that selects a policy, beside which the policies are stored by name.
    configuration: PathBuf,
    /// Default labels of containers, used before the policy's own.
    contexts: PathBuf,
    /// By sandbox; rebuilt from the runtime when the agent starts.
    levels: Mutex<BTreeMap<String, String>>,
}

impl Default for SeLinux {
    fn default() -> Self {
        Self {
            enforce: "/sys/fs/selinux/enforce".into(),
            current: "/proc/self/attr/current".into(),
            configuration: "/etc/selinux/config".into(),
            contexts: "/usr/share/containers/selinux/contexts".into(),
            levels: Mutex::default(),
        }
    }
}

impl SeLinux {
    fn is_enabled(&self) -> bool {
        let label = read_to_string(&self.current).unwrap_or_default();
        self.enforce.exists() && label.trim_end_matches(['\0', '\n']) != "kernel"
    }

    /// Returns the container contexts of the machine's policy.
    fn policy(&self) -> Option<String> {
        let contexts = read_to_string(&self.contexts).or_else(|_| {
            let configuration = read_to_string(&self.configuration)?;
            let policy = selinux::policy(&configuration).unwrap_or("targeted");
            let own = self.configuration.with_file_name(policy);
            read_to_string(own.join("contexts/lxc_contexts"))
        });
        contexts.ok()
    }

    /// `None` if the machine's policy has no container contexts.
    fn defaults(&self) -> Option<Defaults> {
        selinux::defaults(&self.policy()?)
    }

    /// Labels the images' directory so that containers can read and execute its files: a file
    /// inherits the label of its directory. Blocks.
    pub(crate) fn label_images(&self, directory: &Path) {
        let wanted = self.policy().filter(|_| self.is_enabled());
        let Some(wanted) = wanted.as_deref().and_then(selinux::of_images) else {
            return;
        };
        if volume::has_label(directory, &wanted) {
            return;
        }
        if let Err(error) = volume::label(directory, &wanted) {
            let error = image::chain(&error);
            tracing::warn!(error, "containers may not be let into their images");
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts a sandbox of an earlier agent.
    pub(crate) fn adopt(&self, sandbox: &runtime::Sandbox) {
        if let Some(level) = &sandbox.se_linux_level {
            self.held().insert(sandbox.id.clone(), level.clone());
        }
    }

    /// Releases the level of a removed sandbox.
    pub(crate) fn release(&self, sandbox: &str) {
        self.held().remove(sandbox);
    }

    /// Returns the level of a sandbox, the same for each call; `None` if `SELinux` is disabled.
    pub(crate) fn level(&self, sandbox: &str) -> Result<Option<String>, String> {
        if !self.is_enabled() {
            return Ok(None);
        }
        let mut held = self.held();
        if let Some(known) = held.get(sandbox) {
            return Ok(Some(known.clone()));
        }
        let taken: BTreeSet<String> = held.values().cloned().collect();
        let found = selinux::level(&taken, uuid::Uuid::new_v4().as_u128());
        let found = found.ok_or("no two SELinux categories are left")?;
        held.insert(sandbox.to_owned(), found.clone());
        Ok(Some(found))
    }

    /// Returns the labels of a container; `None` if `SELinux` is disabled. Blocks.
    pub(crate) fn labels(&self, pod: &Pod, container: &Container, sandbox: &str) -> Result<Option<Labels>, String> {
        let Some(level) = self.level(sandbox)? else {
            return Ok(None);
        };
        match self.defaults() {
            Some(defaults) => selinux::labels(pod, container, &defaults, &level).map(Some),
            None if selinux::asks(pod, container) => Err("the node's policy has no labels for containers".to_owned()),
            // No label was requested.
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    fn asked(machine: &SeLinux, options: &Value, sandbox: &str) -> Result<Option<String>, String> {
        let container = json!({"name": "a", "securityContext": {"seLinuxOptions": options}});
        let pod = json!({"metadata": {}, "spec": {"containers": [container]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let labels = machine.labels(&pod, &pod.spec.as_ref().unwrap().containers[0], sandbox)?;
        Ok(labels.and_then(|labels| labels.process))
    }

    #[test]
    fn containers_are_labelled_where_the_kernel_does() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let machine = SeLinux {
            enforce: at("enforce"),
            current: at("current"),
            configuration: at("config"),
            contexts: at("everywhere"),
            levels: Mutex::default(),
        };
        let (plain, high) = (json!(null), json!({"level": "s0:c5,c6"}));
        fs::write(at("current"), "kernel\0").unwrap();
        assert_eq!(asked(&machine, &high, "a"), Ok(None), "options mean nothing");
        fs::write(at("enforce"), "1").unwrap();
        assert_eq!(asked(&machine, &high, "a"), Ok(None), "no policy is loaded");
        fs::write(at("current"), "system_u:system_r:init_t:s0\0").unwrap();
        assert_eq!(asked(&machine, &plain, "a"), Ok(None));
        assert_eq!(
            asked(&machine, &high, "a").unwrap_err(),
            "the node's policy has no labels for containers"
        );
        fs::create_dir_all(at("own/contexts")).unwrap();
        fs::write(at("config"), "SELINUXTYPE=own\n").unwrap();
        let contexts = |kind: &str| format!("process = \"u:r:{kind}:s0\"\nfile = \"u:o:f:s0\"\n");
        fs::write(at("own/contexts/lxc_contexts"), contexts("own_t")).unwrap();
        assert_eq!(asked(&machine, &high, "a"), Ok(Some("u:r:own_t:s0:c5,c6".to_owned())));
        let first = asked(&machine, &plain, "a").unwrap().unwrap();
        assert!(first.starts_with("u:r:own_t:s0:c"), "{first}");
        assert_eq!(
            asked(&machine, &plain, "a"),
            Ok(Some(first.clone())),
            "a pod keeps its level"
        );
        assert_ne!(
            asked(&machine, &plain, "b"),
            Ok(Some(first)),
            "and shares it with no other"
        );
        fs::write(at("everywhere"), contexts("all_t")).unwrap();
        assert_eq!(asked(&machine, &high, "a"), Ok(Some("u:r:all_t:s0:c5,c6".to_owned())));
        assert!(asked(&machine, &json!({"level": "high"}), "a").is_err());
    }
}
