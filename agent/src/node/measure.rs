//! Resource usage of the node, its pods and their containers. Nothing is read without a query.
//!
//! CPU usage is CPU time between two samples. The sample of the last query is one of them if it is
//! recent enough and has all containers that run now; otherwise two samples are taken, a moment
//! apart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use api::kinds::metrics::{self, Measures, PodUsage};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use runtime::Usage;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::context::{Context, Place, Run};

/// Least time between two samples; a query within it gets the previous answer.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum age of a sample that is used.
const LONGEST: Duration = Duration::from_mins(1);

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

impl Context {
    /// Returns the usage, measured at most once in a second for all callers.
    pub(crate) async fn measure(self: &Arc<Self>) -> Option<Arc<Measured>> {
        let mut last = self.measured.0.lock().await;
        let age = last.as_ref().map(|last| last.look.at.elapsed());
        if age.is_some_and(|age| age < SHORTEST) {
            return last.clone();
        }
        let look = self.look().await?;
        let before = last.as_ref().map(|last| &last.look);
        let before = before.filter(|before| age.is_some_and(|age| age < LONGEST) && look.follows(before));
        let measured = if let Some(before) = before {
            Measured::between(before, look)
        } else {
            tokio::time::sleep(SHORTEST).await;
            Measured::between(&look, self.look().await?)
        };
        let measured = Arc::new(measured);
        *last = Some(Arc::clone(&measured));
        Some(measured)
    }

    /// Takes a sample. The kernel's files do not wait for a disk, but there are many of them.
    pub(crate) async fn look(self: &Arc<Self>) -> Option<Look> {
        let context = Arc::clone(self);
        common::task::spawn_blocking(move || context.look_now()).await.ok()
    }

    fn look_now(&self) -> Look {
        let runtime = &self.parts.runtime;
        let mut running: BTreeMap<String, Vec<(Run, Place)>> = BTreeMap::new();
        for (run, place) in self.running.borrow().iter() {
            let of_pod = running.entry(run.pod.clone()).or_default();
            of_pod.push((run.clone(), place.clone()));
        }
        let (at, time) = (Instant::now(), self.now());
        let pods = self.known_pods().into_iter().map(|pod| {
            let places = running.remove(pods::uid(&pod)).unwrap_or_default();
            let sandbox = places.first().map(|(_, place)| place.sandbox.clone());
            let usage = sandbox.map(|sandbox| runtime.usage(Some((&sandbox, None))));
            let containers = places.into_iter().map(|(run, place)| ContainerLook {
                usage: runtime.usage(Some((&place.sandbox, Some(&place.instance)))),
                name: run.container,
                sandbox: place.sandbox,
                instance: place.instance,
            });
            PodLook {
                usage: usage.unwrap_or_default(),
                containers: containers.collect(),
                pod,
            }
        });
        Look {
            pods: pods.collect(),
            node: runtime.usage(None),
            parts: vec![("kubelet", own()), ("pods", runtime.usage_of_all())],
            at,
            time,
        }
    }
}

/// Resource usage of this process.
fn own() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name: &str| {
        let mut lines = status
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kibibytes: u64 = lines.next()?.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes.saturating_mul(1024))
    };
    let resident = bytes("VmRSS");
    let mut usage = Usage {
        memory: resident,
        working_set: resident,
        rss: resident,
        ..Usage::default()
    };
    usage.details.swap = bytes("VmSwap");
    let Ok(spent) = getrusage(UsageWho::RUSAGE_SELF) else {
        return usage;
    };
    let time = |value: nix::sys::time::TimeVal| {
        let microseconds = u64::try_from(value.num_microseconds()).unwrap_or(0);
        Duration::from_micros(microseconds)
    };
    let count = |faults: i64| u64::try_from(faults).ok();
    usage.cpu = Some(time(spent.user_time()) + time(spent.system_time()));
    usage.major_page_faults = count(spent.major_page_faults());
    usage.page_faults = count(spent.minor_page_faults() + spent.major_page_faults());
    usage
}
