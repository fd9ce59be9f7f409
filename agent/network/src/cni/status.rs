//! Whether the plugins of the configured list say that they could attach a pod, asked now and then. Lists older than 1.1 have
//! no way to say it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::list::{Capabilities, List};
use super::plugin::{self, Failure, Verb};
use super::{Cni, Inner};
use crate::Error;

/// What was said counts for so long without being asked for again.
const FRESH: Duration = Duration::from_secs(5);
/// Who wants to know waits for so long. A plugin may take longer, and what was said before counts meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Settings that show packets on bridges to tables of addresses.
const BRIDGED: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];

/// What plugins said.
#[derive(Default)]
pub(super) struct Status {
    last: Mutex<Option<Said>>,
    /// Held by who asks.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Said {
    /// By whose plugins.
    list: List,
    /// Why they would attach nobody.
    problem: Option<String>,
    at: Instant,
}

impl Status {
    fn last(&self) -> MutexGuard<'_, Option<Said>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the plugins of this list said last.
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
    /// Why nobody can be attached now, if that is so.
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
        // However it ended, what the plugins said last stands.
        drop(timeout(PATIENCE, asking).await);
        match self.inner.status.of(&list) {
            Some(said) => said.problem,
            None => Some(format!("network {:?} has not said yet whether it is ready", list.name)),
        }
    }
}

impl Inner {
    /// Asks the plugins of a list, unless somebody has meanwhile.
    pub(super) async fn ask_status(&self, list: &List) {
        let _turn = self.status.asking.lock().await;
        if self.status.of(list).is_some_and(|said| said.is_fresh()) {
            return;
        }
        let said = self.run_status(list).await;
        self.status.note(list, said.err().map(|failure| failure.what));
    }

    /// Names the setting by which what a plugin's bridge leads between pods is not shown to tables of addresses.
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

    /// The first plugin that is not ready speaks for all.
    async fn run_status(&self, list: &List) -> Result<(), Failure> {
        let around = self.of_the_node();
        // Of these alone some know whether they have addresses.
        let capabilities = Capabilities {
            ports: &[],
            ranges: self.ranges(),
        };
        for plugin in &list.plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            let request = list.request(plugin, &capabilities, None).to_string();
            plugin::run(Verb::Status, kind, request.as_bytes(), &around).await?;
        }
        Ok(())
    }
}
