//! Readiness of the configured list's plugins (STATUS), polled from time to time. Lists older than
//! 1.1 do not support it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::list::{Capabilities, List};
use super::plugin::{self, Failure, Verb};
use super::{Cni, Inner};
use crate::Error;

/// Time for which a status is cached.
const FRESH: Duration = Duration::from_secs(5);
/// Time for which a caller waits. A plugin may take longer; meanwhile the last status is used.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Sysctls that pass bridged packets to iptables and nftables.
const BRIDGED: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];

/// Cached status of the plugins.
#[derive(Default)]
pub(super) struct Status {
    last: Mutex<Option<Said>>,
    /// Held by the task that asks the plugins.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Said {
    /// List of the plugins that were asked.
    list: List,
    /// Error message if the plugins are not ready.
    problem: Option<String>,
    at: Instant,
}

impl Status {
    fn last(&self) -> MutexGuard<'_, Option<Said>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Last status of the plugins of this list.
    fn of(&self, list: &List) -> Option<Said> {
        self.last().clone().filter(|said| said.list == *list)
    }

    fn note(&self, list: &List, problem: Option<String>) {
        let before = self.of(list).and_then(|said| said.problem);
        match &problem {
            Some(problem) if before.as_ref() != Some(problem) => {
                tracing::warn!(network = list.name, problem, "the network plugins are not ready");
            }
            None if before.is_some() => tracing::info!(network = list.name, "the network plugins are ready"),
            Some(_) | None => {}
        }
        *self.last() = Some(Said {
            list: list.clone(),
            problem,
            at: Instant::now(),
        });
    }
}

impl Said {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

impl Cni {
    /// Error message if no pod can be attached now.
    pub(super) async fn problem(&self) -> Option<String> {
        let Some(list) = self.inner.first_valid(|_, _| ()) else {
            return Some("cni plugin not initialized".to_owned());
        };
        if !list.since("1.1.0") {
            return None;
        }
        if let Some(said) = self.inner.status.of(&list).filter(Said::is_fresh) {
            return said.problem;
        }
        let asked = list.clone();
        let asking = self.run(move |inner| async move {
            inner.ask_status(&asked).await;
            Ok::<(), Error>(())
        });
        // After a timeout, the last known status is used.
        drop(timeout(TIMEOUT, asking).await);
        match self.inner.status.of(&list) {
            Some(said) => said.problem,
            None => Some(format!("network {:?} has not said yet whether it is ready", list.name)),
        }
    }
}

impl Inner {
    /// Asks the plugins of a list, unless another task has done so meanwhile.
    pub(super) async fn ask_status(&self, list: &List) {
        let _turn = self.status.asking.lock().await;
        if self.status.of(list).is_some_and(|said| said.is_fresh()) {
            return;
        }
        let said = self.run_status(list).await;
        self.status.note(list, said.err().map(|failure| failure.what));
    }

    /// Problem with a sysctl (`bridge-nf-call-iptables` or its IPv6 counterpart) that is off
    /// although a plugin uses a bridge, so that packets between pods bypass nftables.
    pub(super) fn bypass(&self) -> Option<String> {
        let list = self.first_valid(|_, _| ())?;
        let bridged = |plugin: &Map<String, Value>| plugin.get("type").and_then(Value::as_str) == Some("bridge");
        if !list.plugins.iter().any(bridged) {
            return None;
        }
        // The files come with the kernel's module `br_netfilter`.
        let shown = |setting: &str| std::fs::read_to_string(format!("/proc/sys/net/bridge/{setting}"));
        let off = BRIDGED
            .into_iter()
            .find(|setting| !shown(setting).is_ok_and(|text| text.trim() == "1"))?;
        Some(format!(
            "network {:?} has a bridge, and net.bridge.{off} is not 1: between pods of this node Services do not answer and \
             NetworkPolicies do not hold",
            list.name
        ))
    }

    /// Runs STATUS of all plugins; the first one that is not ready determines the result.
    async fn run_status(&self, list: &List) -> Result<(), Failure> {
        let around = self.of_the_node();
        // Some plugins need the ranges to know whether they have free addresses.
        let capabilities = Capabilities {
            ranges: self.ranges(),
            ..Capabilities::default()
        };
        for plugin in &list.plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            let request = list.request(plugin, &capabilities, None).to_string();
            plugin::run(Verb::Status, kind, request.as_bytes(), &around).await?;
        }
        Ok(())
    }
}
