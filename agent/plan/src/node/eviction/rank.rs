//! Order in which pods are evicted.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;

use super::{Contents, Layout, Signal};
use crate::node::storage::DiskUse;

/// Current usage of a pod; unknown values are `None`.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// Bytes of memory that its containers need.
    pub memory: Option<i64>,
    /// The same per container.
    pub containers: Vec<(String, i64)>,
    /// Usage of the node's disk.
    pub disk: Option<DiskUse>,
    /// Processes.
    pub processes: Option<i64>,
}

/// A pod that may be evicted.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Current usage.
    pub used: Used,
}

/// The fields are in the order of comparison.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    unknown: Reverse<bool>,
    exceeds: Reverse<bool>,
    priority: i32,
    above: Reverse<i64>,
}

fn place(candidate: &Candidate<'_>, signal: Signal, contents: Contents) -> Place {
    let spec = candidate.pod.spec.as_ref();
    let request = |resource: &str| {
        let requests = spec.map(api::pod::requests).unwrap_or_default();
        requests.get(resource).map_or(0, |quantity| quantity.value())
    };
    let used = &candidate.used;
    let on_disk = used.disk.as_ref().map(|disk| contents.of(disk));
    let (amount, requested) = match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => (used.memory, request("memory")),
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            (on_disk.map(|own| own.bytes), request("ephemeral-storage"))
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (on_disk.map(|own| own.inodes), 0),
        Signal::PidAvailable => (used.processes, 0),
    };
    // PIDs have no requests, so no pod exceeds them.
    let exceeds = signal != Signal::PidAvailable && amount.is_some_and(|amount| amount > requested);
    Place {
        unknown: Reverse(amount.is_none()),
        exceeds: Reverse(exceeds),
        priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
        above: Reverse(amount.unwrap_or(0).saturating_sub(requested)),
    }
}

/// Sorts the pods by the order of their eviction: pods that exceed their requests, then lower
/// priority, then higher usage. For a file system only the usage on it counts.
pub fn rank(candidates: &mut [Candidate<'_>], signal: Signal, layout: Layout) {
    let contents = layout.contents(signal);
    candidates.sort_by_cached_key(|candidate| place(candidate, signal, contents));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::node::storage::{self, ContainerUse};

    fn candidate<'a>(pod: &'a Pod, disk: &DiskUse) -> Candidate<'a> {
        let used = Used {
            disk: Some(disk.clone()),
            ..Used::default()
        };
        Candidate { pod, used }
    }

    fn pod(name: &str, priority: i32, request: &str) -> Pod {
        let resources = json!({"requests": {"memory": request, "ephemeral-storage": request}});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "priority": priority, "containers": [{"name": "a", "resources": resources}]}}))
        .unwrap()
    }

    fn order(signal: Signal, pods: &[(&Pod, Option<i64>)]) -> String {
        let used = |amount: Option<i64>| Used {
            memory: amount,
            processes: amount,
            ..Used::default()
        };
        let candidates = pods.iter().map(|(pod, amount)| Candidate {
            pod,
            used: used(*amount),
        });
        ranked(candidates.collect(), signal, Layout::default())
    }

    fn ranked(mut candidates: Vec<Candidate<'_>>, signal: Signal, layout: Layout) -> String {
        rank(&mut candidates, signal, layout);
        let names = candidates.iter().map(|candidate| crate::pod::pods::name(candidate.pod));
        names.collect::<Vec<_>>().join(" ")
    }

    /// Each file has as many inodes as bytes.
    fn wrote(layer: i64, log: i64, volume: i64) -> DiskUse {
        let all = |amount| storage::Used {
            bytes: amount,
            inodes: amount,
        };
        let own = ContainerUse {
            layer: all(layer),
            log: all(log),
        };
        DiskUse {
            containers: BTreeMap::from([("a".to_owned(), own)]),
            volumes: BTreeMap::from([("data".to_owned(), all(volume))]),
            own: storage::Used::default(),
        }
    }

    #[test]
    fn those_above_their_requests_go_first_then_the_least_important_then_the_largest() {
        let modest = pod("modest", -5, "100");
        let greedy = pod("greedy", 10, "10");
        let large = pod("large", 10, "10");
        let vital = pod("vital", 20, "1");
        let lost = pod("lost", 99, "1");
        let all = [
            (&modest, Some(99)),
            (&greedy, Some(30)),
            (&large, Some(40)),
            (&vital, Some(900)),
            (&lost, None),
        ];
        for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
            assert_eq!(order(signal, &all), "lost large greedy vital modest");
        }
        assert_eq!(order(Signal::PidAvailable, &all), "lost modest large greedy vital");
    }

    #[test]
    fn who_fills_another_file_system_does_not_go_for_it() {
        let all = [
            (pod("layers", 0, "3"), wrote(300, 10, 0)),
            (pod("logs", 0, "1"), wrote(20, 200, 0)),
            (pod("volumes", 0, "2"), wrote(30, 0, 100)),
        ];
        let candidates = || all.iter().map(|(pod, disk)| candidate(pod, disk));
        let (space, inodes) = (Signal::NodefsAvailable, Signal::NodefsInodesFree);
        let (image_space, image_inodes) = (Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
        for (layout, signals, expected) in [
            (Layout::Together, [space, inodes], "layers logs volumes"),
            (Layout::Together, [image_space, image_inodes], "layers logs volumes"),
            (Layout::Apart, [space, inodes], "logs volumes layers"),
            (Layout::Apart, [image_space, image_inodes], "layers volumes logs"),
            (Layout::Split, [space, inodes], "layers logs volumes"),
        ] {
            for signal in signals {
                assert_eq!(
                    ranked(candidates().collect(), signal, layout),
                    expected,
                    "{layout:?} {signal:?}"
                );
            }
        }
        let split = ranked(candidates().collect(), image_space, Layout::Split);
        assert_eq!(split, "logs volumes layers", "who asked for least");
    }

    #[test]
    fn requests_are_compared_with_what_lies_there() {
        let modest = (pod("modest", 0, "100"), wrote(90, 90, 0));
        let greedy = (pod("greedy", 9, "10"), wrote(0, 20, 0));
        let order = |signal, layout| {
            let candidates = [&greedy, &modest].map(|(pod, disk)| candidate(pod, disk));
            ranked(candidates.into(), signal, layout)
        };
        assert_eq!(order(Signal::NodefsAvailable, Layout::Together), "modest greedy");
        assert_eq!(order(Signal::NodefsAvailable, Layout::Apart), "greedy modest");
    }
}
