//! A cluster of these parts, and what is asked of it by kubectl.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Output, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::machine::{Machine, eventually};
use tests::parts::Parts;
use tests::process;

use super::daemon;
use super::start::Started;

pub(crate) struct Cluster {
    pub(crate) parts: Parts,
    pub(crate) machine: Machine,
    containerd: Option<daemon::Daemon>,
    /// CNI's configuration and addresses, containerd's directory, and the machine's files that pods
    /// mount.
    pub(crate) folder: tempfile::TempDir,
}

type Pods = BTreeMap<String, Value>;

impl Cluster {
    pub(crate) async fn start(parts: Parts) -> anyhow::Result<Self> {
        let started = Started::with(parts, "parts", &[]).await?;
        std::fs::create_dir(started.folder.path().join("host"))?;
        let Started {
            machine,
            containerd,
            folder,
        } = started;
        Ok(Self {
            parts,
            machine,
            containerd,
            folder,
        })
    }

    /// Returns the text that containers wrote to a file of the machine.
    pub(crate) fn written(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("host").join(name)).unwrap_or_default()
    }

    pub(crate) fn apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let output = self.talk(&["apply", "-f", "-"], &list)?;
        ensure!(output.status.success(), "{}", process::both(&output));
        Ok(())
    }

    /// Runs kubectl with this input.
    pub(crate) fn talk(&self, words: &[&str], input: &str) -> anyhow::Result<Output> {
        let newest = process::kubectls()?.pop().context("a kubectl")?;
        let mut child = self
            .machine
            .kubectl_command(&newest)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("an input")?;
        stdin.write_all(input.as_bytes())?;
        drop(stdin);
        Ok(child.wait_with_output()?)
    }

    pub(crate) fn exec(&self, pod: &str, script: &str) -> anyhow::Result<String> {
        self.machine.kubectl(["exec", pod, "--", "sh", "-c", script])
    }

    pub(crate) fn logs(&self, pod: &str) -> anyhow::Result<String> {
        self.machine.kubectl(["logs", pod])
    }

    /// Waits for the log of a pod that has ended: with containerd, its writer may be behind on a busy machine.
    pub(crate) fn has_said(&self, pod: &str, wanted: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        eventually(&format!("{pod} has said it all"), || match self.logs(pod) {
            Ok(said) if wanted(&said) => Ok(()),
            seen => Err(format!("{seen:?}")),
        })
    }

    fn pods(&self) -> anyhow::Result<Pods> {
        let list: Value = serde_json::from_str(&self.machine.kubectl(["get", "pods", "-o", "json"])?)?;
        let items = list["items"].as_array().context("items")?;
        let named = |pod: &Value| {
            (
                pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                pod.clone(),
            )
        };
        Ok(items.iter().map(named).collect())
    }

    /// Waits until a pod is so, and returns it.
    pub(crate) fn until(&self, pod: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        eventually(&format!("{pod} {what}"), || {
            let pods = self.pods().map_err(|error| error.to_string())?;
            match pods.get(pod) {
                Some(found) if wanted(found) => Ok(found.clone()),
                Some(found) => Err(found["status"].to_string()),
                None => Err("there is no such pod".to_owned()),
            }
        })
    }

    pub(crate) fn delete(&self, words: &[&str]) -> anyhow::Result<()> {
        let words = ["delete", "pod", "--timeout=60s"]
            .into_iter()
            .chain(words.iter().copied());
        self.machine.kubectl(words).map(drop)
    }

    /// Returns the read-only snapshots (views) in containerd.
    pub(crate) fn views(&self) -> Vec<String> {
        let listed = self.containerd.as_ref().map(|daemon| daemon.ctr(&["snapshots", "ls"]));
        let listed = listed.unwrap_or_default();
        let views = listed.lines().filter(|line| line.contains(" View"));
        views.map(str::to_owned).collect()
    }

    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        let (machine, containerd, folder) = (self.machine, self.containerd, self.folder);
        let started = Started {
            machine,
            containerd,
            folder,
        };
        started.finish().await
    }
}

pub(crate) fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array();
    statuses.is_some_and(|all| !all.is_empty() && all.iter().all(|status| status["ready"] == true))
}

pub(crate) fn ended(pod: &Value) -> bool {
    container(pod)["state"]["terminated"].is_object()
}

pub(crate) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(crate) fn address(pod: &Value) -> &str {
    pod["status"]["podIP"].as_str().unwrap_or_default()
}
