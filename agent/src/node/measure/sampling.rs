//! Takes samples of the usage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use runtime::Usage;
use tokio::time::Instant;

use super::{ContainerLook, Look, Measured, PodLook};
use crate::context::Context;
use crate::pod::instances::{Place, Run};

/// Least time between two samples; a query within it gets the previous answer.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum age of a sample that is used.
const LONGEST: Duration = Duration::from_mins(1);

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
