//! Preemption by critical pods: as few victims as possible, and as few as possible of the highest
//! `QoS` class.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::room::{Missing, missing, units};
use super::{Host, active_pods, rejection};
use crate::node::eviction::is_critical;
use crate::pod::pods;
use crate::pod::termination::{Rejection, Termination};

/// `status.reason` of a preempted pod, and the reason of the event.
pub const REASON: &str = "Preempting";

/// Fixed-point unit of the fraction of the needs that a pod would free.
const PARTS: i128 = 1_000_000_000;

/// Termination of a preempted pod.
pub fn termination(pod: &Pod) -> Termination {
    Termination {
        reason: REASON,
        message: "Preempted in order to admit critical pod".to_owned(),
        grace: pods::grace(pod),
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
        annotations: BTreeMap::new(),
    }
}

/// Returns the first resource that a critical pod lacks.
pub fn signal(pod: &Pod, host: &Host) -> String {
    let missing = pod.spec.as_ref().map(|spec| missing(spec, host));
    let first = missing.and_then(|missing| missing.into_iter().next());
    first.map(|missing| missing.resource).unwrap_or_default()
}

/// Resources to free: names and amounts, in their units.
type Needs = Vec<(String, i64)>;

/// A pod that may be preempted.
struct Candidate<'a> {
    pod: &'a Arc<Pod>,
    requests: api::pod::Resources,
}

impl Candidate<'_> {
    fn gives(&self, resource: &str) -> i64 {
        if resource == "pods" {
            return 1;
        }
        let amount = self.requests.get(resource);
        amount.map_or(0, |amount| units(resource, amount.milli()))
    }

    /// Distance to the needs: a sum over the resources, each of the same weight.
    fn distance(&self, needs: &Needs) -> i128 {
        let each = needs.iter().map(|(resource, amount)| {
            let left = i128::from(amount.saturating_sub(self.gives(resource)).max(0));
            let part = left * PARTS / i128::from((*amount).max(1));
            part * part
        });
        each.sum()
    }
}

/// Returns the victims of `pod`, or a rejection if all candidates together do not free enough.
pub(super) fn victims(pod: &Pod, host: &Host, missing: &[Missing]) -> Result<Vec<Arc<Pod>>, Rejection> {
    let needs: Needs = missing.iter().map(|own| (own.resource.clone(), own.amount())).collect();
    let below: Vec<Candidate<'_>> = active_pods(host)
        .filter(|other| gives_way(other, pod))
        .filter_map(|other| {
            let requests = api::pod::requests(other.spec.as_ref()?);
            Some(Candidate { pod: other, requests })
        })
        .collect();
    let of = |class: &str| -> Vec<&Candidate<'_>> {
        let has = |own: &&Candidate<'_>| own.pod.spec.as_ref().is_some_and(|spec| api::pod::qos(spec) == class);
        below.iter().filter(has).collect()
    };
    let (best_effort, burstable, guaranteed) = (of("BestEffort"), of("Burstable"), of("Guaranteed"));
    let everybody = without(&needs, &below.iter());
    if !everybody.is_empty() {
        return Err(not_enough(&everybody));
    }
    // Of each class, only what is missing once all lower classes and the chosen ones of the higher
    // classes have ended.
    let lower = best_effort.iter().chain(&burstable).copied();
    let guaranteed = choose(guaranteed, without(&needs, &lower))?;
    let others = best_effort.iter().chain(&guaranteed).copied();
    let burstable = choose(burstable, without(&needs, &others))?;
    let others = burstable.iter().chain(&guaranteed).copied();
    let best_effort = choose(best_effort.clone(), without(&needs, &others))?;
    let chosen = best_effort.iter().chain(&burstable).chain(&guaranteed);
    Ok(chosen.map(|candidate| Arc::clone(candidate.pod)).collect())
}

/// True if a pod may be preempted by a critical one.
fn gives_way(other: &Pod, critical: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    !is_critical(other) || matches!((priority(other), priority(critical)), (Some(other), Some(own)) if own > other)
}

/// Returns the needs that remain without these pods.
fn without<'a>(needs: &Needs, ended: &(impl Iterator<Item = &'a Candidate<'a>> + Clone)) -> Needs {
    let left = needs.iter().map(|(resource, amount)| {
        let given = ended.clone().map(|candidate| candidate.gives(resource));
        (resource.clone(), given.fold(*amount, i64::saturating_sub))
    });
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// Picks, one by one, the pod that frees most of the needs, and the smallest of those that free the
/// same.
fn choose<'a>(mut all: Vec<&'a Candidate<'a>>, mut needs: Needs) -> Result<Vec<&'a Candidate<'a>>, Rejection> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let place = |candidate: &Candidate<'_>| {
            let own = (candidate.gives("memory"), candidate.gives("cpu"));
            (candidate.distance(&needs), own)
        };
        let best = (0..all.len()).min_by_key(|index| (all.get(*index).map(|own| place(own)), Reverse(*index)));
        let Some(best) = best else {
            return Err(not_enough(&needs));
        };
        let best = all.swap_remove(best);
        needs = without(&needs, &std::iter::once(best));
        chosen.push(best);
    }
    Ok(chosen)
}

fn not_enough(needs: &Needs) -> Rejection {
    let each = needs
        .iter()
        .map(|(resource, amount)| format!("(res: {resource}, q: {amount}), "));
    let list = each.collect::<Vec<_>>().concat();
    let what = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: \
         no set of running pods found to reclaim resources: [{list}]"
    );
    rejection("UnexpectedAdmissionError", what)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::check;
    use super::*;

    /// `name class cpu`: the pod's request, which is also its limit in the class `Guaranteed`.
    fn pod(text: &str, priority: i32) -> Arc<Pod> {
        let words: Vec<&str> = text.split(' ').collect();
        let asks = json!({"cpu": words[2], "memory": "1Mi"});
        let resources = match words[1] {
            "guaranteed" => json!({"requests": asks, "limits": asks}),
            "burstable" => json!({"requests": {"cpu": words[2]}}),
            _ => json!({}),
        };
        let container = json!({"name": "a", "resources": resources});
        let spec = json!({"priority": priority, "containers": [container]});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": words[0]}, "spec": spec})).unwrap())
    }

    /// Result for a critical pod with such requests on a node with four CPUs and five pods.
    fn judged(cpu: &str, others: &[Arc<Pod>]) -> String {
        let host = Host {
            pods: 5,
            allocatable: BTreeMap::from([("cpu".to_owned(), 4000), ("memory".to_owned(), 1 << 40)]),
            others: others.to_vec(),
            ..Host::default()
        };
        let critical = pod(&format!("critical burstable {cpu}"), 2_000_000_000);
        match check(&critical, &host) {
            Ok(victims) => {
                let names = victims.iter().map(|pod| pods::name(pod));
                names.collect::<Vec<_>>().join(" ")
            }
            Err(refused) => format!("{}: {}", refused.reason, refused.message),
        }
    }

    fn plain(all: &[&str]) -> Vec<Arc<Pod>> {
        all.iter().map(|text| pod(text, 0)).collect()
    }

    #[test]
    fn pods_are_counted_by_the_first_resource_that_is_missing() {
        let host = |memory| Host {
            pods: 5,
            allocatable: BTreeMap::from([("cpu".to_owned(), 4000), ("memory".to_owned(), memory)]),
            ..Host::default()
        };
        let critical = |cpu| pod(&format!("critical guaranteed {cpu}"), 2_000_000_000);
        assert_eq!(signal(&critical("5"), &host(1)), "cpu");
        assert_eq!(signal(&critical("1"), &host(1)), "memory");
        assert_eq!(signal(&critical("1"), &host(1 << 40)), "");
    }

    #[test]
    fn as_few_pods_as_possible_end_for_a_critical_one() {
        let full = plain(&[
            "g guaranteed 1",
            "s burstable 500m",
            "m burstable 1",
            "l burstable 1500m",
        ]);
        for (cpu, victims) in [
            ("0", ""),
            ("100m", "s"),
            ("500m", "s"),
            ("600m", "m"),
            ("1", "m"),
            ("1500m", "l"),
            ("1600m", "l s"),
            ("2500m", "l m"),
            ("3", "l m s"),
            ("3500m", "l m g"),
            ("4", "l m s g"),
        ] {
            assert_eq!(judged(cpu, &full), victims, "{cpu}");
        }
    }

    #[test]
    fn a_seat_is_given_by_who_asks_for_least() {
        let full = [
            "b guaranteed 1m",
            "c burstable 2m",
            "d burstable 1m",
            "e burstable 3m",
            "f best 0",
        ];
        assert_eq!(judged("1m", &plain(&full)), "f");
        assert_eq!(
            judged("1m", &plain(&[full[0], full[1], full[2], full[3], full[1]])),
            "d"
        );
    }

    #[test]
    fn who_matters_as_much_stays_and_what_is_missing_is_named() {
        let others = [pod("small burstable 1", 0), pod("other burstable 3", 2_000_000_000)];
        assert_eq!(judged("1", &others), "small");
        assert_eq!(
            judged("1500m", &others),
            "UnexpectedAdmissionError: Pod was rejected: Unexpected error while attempting to recover from admission failure: \
             preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: \
             [(res: cpu, q: 500), ]"
        );
        assert!(gives_way(&others[1], &pod("higher burstable 1", 2_000_001_000)));
    }

    #[test]
    fn nobody_ends_for_a_pod_that_is_not_taken_for_another_reason() {
        let port = json!([{"containerPort": 80, "hostPort": 80}]);
        let container = json!({"name": "a", "ports": port, "resources": {"requests": {"cpu": "3"}}});
        let with = |priority: i32| -> Pod {
            let spec = json!({"priority": priority, "containers": [container]});
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
        };
        let host = Host {
            pods: 5,
            allocatable: BTreeMap::from([("cpu".to_owned(), 4000)]),
            others: vec![Arc::new(with(0))],
            ..Host::default()
        };
        let reason = |priority: i32| check(&with(priority), &host).unwrap_err().reason;
        assert_eq!(reason(2_000_000_000), "NodePorts");
        assert_eq!(reason(1_999_999_999), "OutOfcpu");
    }
}
