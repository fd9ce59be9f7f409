//! `skiff check`: requirements of a cluster or a node that this machine does not meet, and how to
//! fix them. Failures prevent `up` and `join`; warnings are reported by `check` alone.

mod cgroups;
mod kernel;
mod links;
mod machine;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::Serialize;

use crate::terminal::{green, red};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    Warn,
    Fail,
}

/// Result of one check.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    name: &'static str,
    pub(crate) level: Level,
    found: String,
    /// Advice to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            level: Level::Ok,
            found: found.into(),
            mend: None,
        }
    }

    pub(crate) fn bad(level: Level, name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            name,
            level,
            found: found.into(),
            mend: Some(mend.into()),
        }
    }

    pub(crate) fn line(&self) -> String {
        let level = match self.level {
            Level::Ok => green("ok"),
            Level::Warn => "warn".to_owned(),
            Level::Fail => red("fail"),
        };
        let mend = self.mend.as_ref().map(|mend| format!(": {mend}"));
        format!(
            "{level:<5} {:<13} {}{}",
            self.name,
            self.found,
            mend.unwrap_or_default()
        )
    }
}

/// Intended role of the machine.
pub(crate) struct Purpose {
    pub(crate) state_dir: PathBuf,
    pub(crate) ports: Vec<Port>,
    /// `None` for a control plane without a node.
    pub(crate) node: Option<Node>,
}

/// Port that must be free.
pub(crate) struct Port {
    pub(crate) number: u16,
    /// Flag that sets another port.
    pub(crate) flag: &'static str,
    /// True if the port is fixed: the next free one cannot be used instead.
    pub(crate) is_chosen: bool,
}

pub(crate) struct Node {
    /// True if the agent's own runtime and image store are used.
    pub(crate) embedded: bool,
    /// True if the agent's own pod network is used.
    pub(crate) bridge: bool,
}

/// Runs all checks; takes some milliseconds.
pub(crate) fn look(purpose: &Purpose) -> Vec<Finding> {
    let mut found = vec![kernel::version(), machine::clock_is_set()];
    if let Some(node) = &purpose.node {
        found.push(kernel::namespaces());
        if node.embedded {
            found.extend([kernel::overlay(), machine::takes_layers(&purpose.state_dir)]);
        }
        found.push(kernel::seccomp());
        found.extend(cgroups::look());
        let probed = links::probe();
        found.push(links::nftables(&probed));
        if node.bridge {
            found.extend([links::kinds(&probed), machine::program("nft", "nftables")]);
            // A node that is here has its pods' networks itself.
            if !purpose.state_dir.join("cluster.json").exists() {
                found.push(machine::ranges());
            }
        } else {
            found.push(machine::bridge_filter());
        }
        found.extend([machine::forwarding(), machine::swap(), machine::inotify()]);
        found.extend(machine::neighbors());
    }
    found.extend([machine::descriptors(), machine::disk(&purpose.state_dir)]);
    found.extend(purpose.ports.iter().map(is_free));
    found
}

fn is_free(port: &Port) -> Finding {
    let Port {
        number,
        flag,
        is_chosen,
    } = port;
    let Err(error) = TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *number))) else {
        return Finding::ok("port", format!("{number} is free"));
    };
    let (level, another) = if *is_chosen {
        (Level::Fail, "takes another one")
    } else {
        (Level::Warn, "takes another one; without it that is the next free one")
    };
    Finding::bad(
        level,
        "port",
        format!("{number}: {error}"),
        format!("`ss -ltnp 'sport = :{number}'` shows who has it; {flag} {another}"),
    )
}

/// Fails if the machine does not meet the requirements of its role.
pub(crate) fn preflight(purpose: &Purpose) -> anyhow::Result<()> {
    let failed: Vec<String> = look(purpose)
        .iter()
        .filter(|finding| finding.level == Level::Fail)
        .map(Finding::line)
        .collect();
    ensure!(
        failed.is_empty(),
        "this machine lacks what a node needs (--skip-checks goes on all the same):\n{}",
        failed.join("\n")
    );
    Ok(())
}

/// Returns the closest existing ancestor of a path.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"))
}

/// Reads a file of the kernel without surrounding spaces.
fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Reads the first number of such a file.
fn number(path: &str) -> Option<u64> {
    text(path)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_told_with_its_mend() {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let purpose = Purpose {
            state_dir: std::env::temp_dir(),
            ports: vec![Port {
                number: port,
                flag: "--listen-port",
                is_chosen: true,
            }],
            node: None,
        };
        let said = preflight(&purpose).unwrap_err().to_string();
        let expected = format!("port          {port}: Address already in use");
        assert!(said.contains(&expected) && said.contains("--listen-port"), "{said}");
    }
}
