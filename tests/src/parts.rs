//! Runtimes and networks of a node, in every combination.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::machine::Namespace;
use crate::process;

/// A runtime and a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// containerd makes the containers; otherwise the agent does.
    pub containerd: bool,
    /// CNI plugins connect the pods; otherwise the agent does.
    pub cni: bool,
}

impl Parts {
    /// A short name, for namespaces and folders.
    #[must_use]
    pub fn name(self, test: &str) -> String {
        let letter = |set: bool, yes: char, no: char| if set { yes } else { no };
        format!(
            "{test}-{}{}",
            letter(self.containerd, 'c', 'e'),
            letter(self.cni, 'c', 'b')
        )
    }

    /// Directories with the agent's state of the runtime and the network, below its state
    /// directory.
    #[must_use]
    pub const fn folders(self) -> (&'static str, &'static str) {
        let runtime = if self.containerd { "containerd" } else { "runtime" };
        (runtime, if self.cni { "cni" } else { "network" })
    }

    /// Returns the arguments for `skiff up`; `folder` gets the CNI configuration, `machine` the
    /// objects that CNI plugins never remove.
    ///
    /// # Errors
    /// Fails if that cannot be made.
    pub fn options(self, machine: &Namespace, folder: &Path, containerd: (&Path, &str)) -> anyhow::Result<Vec<String>> {
        let (address, namespace) = containerd;
        let mut options = vec![format!("--pod-logs-dir={}", folder.join("log/pods").display())];
        if self.containerd {
            options.extend([
                "--runtime=containerd".to_owned(),
                format!("--containerd-address={}", address.display()),
                format!("--containerd-namespace={namespace}"),
            ]);
        }
        if self.cni {
            let configuration = folder.join("cni");
            std::fs::create_dir_all(&configuration)?;
            let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
                {"type": "bridge", "bridge": "cnitest", "isGateway": true, "hairpinMode": true, "capabilities": {"ipRanges": true},
                 "ipam": {"type": "host-local", "dataDir": folder.join("ipam"), "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
            ]});
            std::fs::write(configuration.join("10-pods.conflist"), list.to_string())?;
            // Objects that the plugins keep as long as the machine runs are created beforehand, so
            // that they do not count as leaks.
            for (program, words) in [
                ("ip", "link add cnitest type bridge"),
                ("nft", "add table ip nat"),
                ("nft", "add table ip6 nat"),
            ] {
                process::run(machine.command(program).args(words.split(' ')))?;
            }
            options.extend([
                "--network=cni".to_owned(),
                format!("--cni-conf-dir={}", configuration.display()),
            ]);
        }
        Ok(options)
    }
}

/// Addresses that the CNI plugins have allocated.
///
/// # Errors
/// Fails if their folder cannot be read.
pub fn addresses_held(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = folder.join("ipam/pods");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut held = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(|letter: char| letter.is_ascii_digit()) {
            held.push(path);
        }
    }
    Ok(held)
}
