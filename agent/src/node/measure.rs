//! Resource usage of the node, its pods and their containers. Nothing is read without a query.
//!
//! CPU usage is CPU time between two samples. The sample of the last query is one of them if it is
//! recent enough and has all containers that run now; otherwise two samples are taken, a moment
//! apart.

mod sampling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use api::kinds::metrics::{self, Measures, PodUsage};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::Usage;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Previous answer.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Option<Arc<Measured>>>);

/// Sample.
pub(crate) struct Look {
    at: Instant,
    pub(crate) time: Timestamp,
    pub(crate) node: Usage,
    /// System containers of the node, and all pods together, by a kubelet's names.
    pub(crate) parts: Vec<(&'static str, Usage)>,
    pub(crate) pods: Vec<PodLook>,
}

/// Pod with its usage.
pub(crate) struct PodLook {
    pub(crate) pod: Arc<Pod>,
    pub(crate) usage: Usage,
    pub(crate) containers: Vec<ContainerLook>,
}

/// Running container with its usage.
pub(crate) struct ContainerLook {
    pub(crate) name: String,
    pub(crate) sandbox: String,
    pub(crate) instance: String,
    pub(crate) usage: Usage,
}

/// Sample, with the rate of CPU usage before it.
pub(crate) struct Measured {
    pub(crate) look: Look,
    pub(crate) window: Duration,
    /// Nanocores of the node, of sandboxes and of containers.
    rates: BTreeMap<Subject, u64>,
}

/// Sandbox and container ID; without a container the sandbox, without both the node, and without a
/// sandbox a system container.
type Subject = (String, String);

impl ContainerLook {
    fn subject(&self) -> Subject {
        (self.sandbox.clone(), self.instance.clone())
    }
}

impl PodLook {
    fn subject(&self) -> Option<Subject> {
        let container = self.containers.first()?;
        Some((container.sandbox.clone(), String::new()))
    }
}

impl Look {
    fn subjects(&self) -> BTreeMap<Subject, Usage> {
        let mut all = BTreeMap::from([(Subject::default(), self.node)]);
        let part = |(name, usage): &(&str, Usage)| ((String::new(), (*name).to_owned()), *usage);
        all.extend(self.parts.iter().map(part));
        for pod in &self.pods {
            all.extend(pod.subject().map(|subject| (subject, pod.usage)));
            all.extend(
                pod.containers
                    .iter()
                    .map(|container| (container.subject(), container.usage)),
            );
        }
        all
    }

    /// True if an earlier sample has all of the subjects.
    fn follows(&self, before: &Self) -> bool {
        let known = before.subjects();
        self.subjects().keys().all(|subject| known.contains_key(subject))
    }
}

impl Measured {
    fn between(before: &Look, look: Look) -> Self {
        let window = look.at.duration_since(before.at);
        let known = before.subjects();
        let rate = |(subject, now): (Subject, Usage)| {
            let spent = now.cpu?.saturating_sub(known.get(&subject)?.cpu?);
            let nanocores = spent.as_nanos() * 1_000_000_000 / window.as_nanos().max(1);
            Some((subject, u64::try_from(nanocores).unwrap_or(u64::MAX)))
        };
        let rates = look.subjects().into_iter().filter_map(rate).collect();
        Self { look, window, rates }
    }

    pub(crate) fn node_rate(&self) -> Option<u64> {
        self.rates.get(&Subject::default()).copied()
    }

    pub(crate) fn part_rate(&self, name: &str) -> Option<u64> {
        self.rates.get(&(String::new(), name.to_owned())).copied()
    }

    pub(crate) fn pod_rate(&self, pod: &PodLook) -> Option<u64> {
        self.rates.get(&pod.subject()?).copied()
    }

    pub(crate) fn container_rate(&self, container: &ContainerLook) -> Option<u64> {
        self.rates.get(&container.subject()).copied()
    }

    /// Usage for the metrics API. A container without both values is left out.
    pub(crate) fn measures(&self) -> Measures {
        let usage = |rate: Option<u64>, usage: &Usage| {
            Some(metrics::Usage {
                nanocores: rate?,
                working_set_bytes: usage.working_set?,
            })
        };
        let of_container = |container: &ContainerLook| {
            let used = usage(self.container_rate(container), &container.usage)?;
            Some((container.name.clone(), used))
        };
        Measures {
            time: Time(self.look.time),
            window_millis: u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX),
            node: usage(self.node_rate(), &self.look.node).unwrap_or_default(),
            pods: self
                .look
                .pods
                .iter()
                .map(|pod| PodUsage {
                    uid: pods::uid(&pod.pod).to_owned(),
                    containers: pod.containers.iter().filter_map(of_container).collect(),
                })
                .collect(),
        }
    }
}
