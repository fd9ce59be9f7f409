//! Which pod goes first.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;

use super::Signal;
use crate::storage::DiskUse;

/// What a pod uses now; what is not known is missing.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// Bytes of memory that its containers need.
    pub memory: Option<i64>,
    /// The same by container.
    pub containers: Vec<(String, i64)>,
    /// On the node's disk.
    pub disk: Option<DiskUse>,
    /// Processes.
    pub processes: Option<i64>,
}

/// A pod that may have to go.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What it uses.
    pub used: Used,
}

/// First the fields that decide first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    unknown: Reverse<bool>,
    exceeds: Reverse<bool>,
    priority: i32,
    above: Reverse<i64>,
}

fn place(candidate: &Candidate<'_>, signal: Signal) -> Place {
    let spec = candidate.pod.spec.as_ref();
    let request = |resource: &str| {
        let requests = spec.map(api::pod::requests).unwrap_or_default();
        requests.get(resource).map_or(0, |quantity| quantity.value())
    };
    let used = &candidate.used;
    let disk = used.disk.as_ref();
    let on_disk = |value: fn(&DiskUse) -> i64| disk.map(value);
    let (amount, requested) = match signal {
        Signal::MemoryAvailable => (used.memory, request("memory")),
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            (on_disk(|disk| disk.total().bytes), request("ephemeral-storage"))
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (on_disk(|disk| disk.total().inodes), 0),
        Signal::PidAvailable => (used.processes, 0),
    };
    // Nobody asks for processes, so nobody has more of them than asked for.
    let exceeds = signal != Signal::PidAvailable && amount.is_some_and(|amount| amount > requested);
    Place {
        unknown: Reverse(amount.is_none()),
        exceeds: Reverse(exceeds),
        priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
        above: Reverse(amount.unwrap_or(0).saturating_sub(requested)),
    }
}

/// Puts those first that have to go first: who uses more than was asked for, who matters less, who uses most of all.
pub fn rank(candidates: &mut [Candidate<'_>], signal: Signal) {
    candidates.sort_by_cached_key(|candidate| place(candidate, signal));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let mut candidates: Vec<_> = candidates.collect();
        rank(&mut candidates, signal);
        let names = candidates.iter().map(|candidate| crate::pods::name(candidate.pod));
        names.collect::<Vec<_>>().join(" ")
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
        assert_eq!(order(Signal::MemoryAvailable, &all), "lost large greedy vital modest");
        assert_eq!(order(Signal::PidAvailable, &all), "lost modest large greedy vital");
    }
}
