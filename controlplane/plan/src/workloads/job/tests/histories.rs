//! Random event sequences of a Job's pods, with plans of which some steps are lost: no index runs
//! twice at once, there are never more pods than allowed, and each finished one is counted once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::World;
use crate::step::Step;
use crate::workloads::job::{INDEX, TRACKING};

#[derive(Debug, Clone)]
enum Happening {
    /// A pod ends with this exit code.
    Ends(usize, i32),
    /// A pod is deleted.
    Deleted(usize),
    /// A plan is made, and the first of its steps succeed.
    Planned(usize),
    Suspended(bool),
    Scaled(u32),
    /// Time passes, in seconds.
    Passed(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (any::<usize>(), 0..3_i32).prop_map(|(pod, code)| Happening::Ends(pod, code)),
        1 => any::<usize>().prop_map(Happening::Deleted),
        6 => prop_oneof![Just(usize::MAX), 0..6_usize].prop_map(Happening::Planned),
        1 => any::<bool>().prop_map(Happening::Suspended),
        1 => (0..4_u32).prop_map(Happening::Scaled),
        2 => (1..900_u64).prop_map(Happening::Passed),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let modes = prop_oneof![Just("NonIndexed"), Just("Indexed")];
    let replacement = prop_oneof![Just("Failed"), Just("TerminatingOrFailed")];
    let limit = prop_oneof![Just(json!(null)), (0..3_i32).prop_map(|limit| json!(limit))];
    (modes, replacement, limit, 1..6_u32, any::<bool>()).prop_map(|(mode, replacement, limit, completions, policy)| {
        let rules = json!({ "rules": [{ "action": "Ignore", "onExitCodes": { "operator": "In", "values": [2] } }] });
        json!({
            "completionMode": mode, "completions": completions, "parallelism": 3, "backoffLimit": 9,
            "podReplacementPolicy": replacement,
            "podFailurePolicy": if policy { rules } else { json!(null) },
            "backoffLimitPerIndex": if mode == "Indexed" { limit } else { json!(null) },
        })
    })
}

/// All pods that were ever listed as uncounted.
#[derive(Default)]
struct Ledger {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

fn listed(world: &World, list: &str) -> BTreeSet<String> {
    let list = world.job["status"]["uncountedTerminatedPods"][list]
        .as_array()
        .cloned()
        .unwrap_or_default();
    list.iter().map(|uid| uid.as_str().unwrap().to_owned()).collect()
}

fn counter(world: &World, name: &str) -> usize {
    usize::try_from(world.job["status"][name].as_u64().unwrap_or(0)).unwrap()
}

fn is_active(pod: &Value) -> bool {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    !ended && pod["metadata"]["deletionTimestamp"].is_null()
}

fn is_tracked(pod: &Value) -> bool {
    pod["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|held| held.contains(&json!(TRACKING)))
}

impl Ledger {
    fn check(&mut self, world: &World) {
        for (name, all) in [("succeeded", &mut self.succeeded), ("failed", &mut self.failed)] {
            let listed = listed(world, name);
            let indexed = world.job["spec"]["completionMode"] == "Indexed" && name == "succeeded";
            all.extend(listed.iter().cloned());
            if !indexed {
                assert_eq!(
                    counter(world, name) + listed.len(),
                    all.len(),
                    "{name}: {}",
                    world.job["status"]
                );
            }
        }
        assert!(self.succeeded.is_disjoint(&self.failed), "counted as both");
    }
}

fn perform(world: &mut World, ledger: &mut Ledger, most: usize) {
    let plan = world.plan().0;
    let mut left = most;
    'stages: for stage in &plan.stages {
        let mut worked = true;
        for step in stage {
            if left == 0 {
                break 'stages;
            }
            left -= 1;
            before(world, ledger, step);
            worked &= world.perform(step);
            ledger.check(world);
            if matches!(step, Step::Create { .. }) {
                after_creation(world);
            }
        }
        if !worked {
            break;
        }
    }
}

/// A finalizer is removed only from a pod that still runs, or is counted.
fn before(world: &World, ledger: &Ledger, step: &Step) {
    let Step::Patch { target, .. } = step else { return };
    let Some(pod) = world.pods.get(&target.name) else {
        return;
    };
    let indexed = world.job["spec"]["completionMode"] == "Indexed";
    if pod["status"]["phase"] == "Succeeded" && !indexed {
        let counted = ledger.succeeded.contains(&target.uid) || ledger.failed.contains(&target.uid);
        assert!(counted, "{} was lost", target.name);
    }
    if pod["status"]["phase"] == "Succeeded" && indexed && is_tracked(pod) {
        let index: u32 = pod["metadata"]["annotations"][INDEX].as_str().unwrap().parse().unwrap();
        let told = world.job["status"]["completedIndexes"].as_str().unwrap_or_default();
        let counted = super::super::Indexes::parse(told, u32::MAX).has(index) || ledger.failed.contains(&target.uid);
        assert!(counted, "{} was lost: {told}", target.name);
    }
}

fn after_creation(world: &World) {
    let active: Vec<&Value> = world.pods.values().filter(|pod| is_active(pod)).collect();
    let most = usize::try_from(world.job["spec"]["parallelism"].as_u64().unwrap()).unwrap();
    assert!(active.len() <= most, "{} are active, {most} may be", active.len());
    let waits =
        world.job["spec"]["podReplacementPolicy"] == "Failed" || !world.job["spec"]["podFailurePolicy"].is_null();
    let runs = |pod: &&Value| {
        is_active(pod) || (waits && !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded")))
    };
    let indexes = world
        .pods
        .values()
        .filter(runs)
        .map(|pod| pod["metadata"]["annotations"][INDEX].clone());
    let indexes: Vec<String> = indexes
        .filter(|index| !index.is_null())
        .map(|index| index.to_string())
        .collect();
    let distinct: BTreeSet<&String> = indexes.iter().collect();
    assert_eq!(distinct.len(), indexes.len(), "an index runs twice: {indexes:?}");
}

fn happen(world: &mut World, ledger: &mut Ledger, happening: &Happening) {
    let running = |world: &World, number: usize| {
        let names = world
            .pods
            .iter()
            .filter(|(_, pod)| !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded")));
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then(|| names[number % names.len()].clone())
    };
    match *happening {
        Happening::Ends(number, code) => {
            let Some(name) = running(world, number) else { return };
            let (now, pod) = (world.now.to_string(), world.pods.get_mut(&name).unwrap());
            pod["metadata"]["resourceVersion"] =
                json!(format!("{}0", pod["metadata"]["resourceVersion"].as_str().unwrap()));
            pod["status"] = json!({
                "phase": if code == 0 { "Succeeded" } else { "Failed" },
                "containerStatuses": [{
                    "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": code, "finishedAt": now } },
                }],
            });
            world.sweep(&name);
        }
        Happening::Deleted(number) => {
            let Some(name) = running(world, number) else { return };
            let now = world.now.to_string();
            world.pods.get_mut(&name).unwrap()["metadata"]["deletionTimestamp"] = json!(now);
        }
        Happening::Planned(most) => perform(world, ledger, most),
        Happening::Suspended(suspended) => world.job["spec"]["suspend"] = json!(suspended),
        Happening::Scaled(parallelism) => world.job["spec"]["parallelism"] = json!(parallelism),
        Happening::Passed(seconds) => world.now += std::time::Duration::from_secs(seconds),
    }
}

fn is_finished(world: &World) -> bool {
    let conditions = world.job["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .iter()
        .any(|one| one["status"] == "True" && (one["type"] == "Complete" || one["type"] == "Failed"))
}

proptest! {
    #[test]
    fn pods_are_bounded_and_counted_once(spec in spec(), happenings in prop::collection::vec(happening(), 0..80)) {
        let mut world = World::new(&spec, &json!({}));
        let mut ledger = Ledger::default();
        for happening in happenings {
            happen(&mut world, &mut ledger, &happening);
        }
        // Without further events the Job ends.
        for round in 0.. {
            if is_finished(&world) {
                break;
            }
            assert!(round < 200, "no end: {}", world.job["status"]);
            for happening in [
                Happening::Suspended(false), Happening::Scaled(3), Happening::Planned(usize::MAX),
                Happening::Ends(0, 0), Happening::Passed(700),
            ] {
                happen(&mut world, &mut ledger, &happening);
            }
        }
        prop_assert_eq!(listed(&world, "succeeded").len() + listed(&world, "failed").len(), 0);
        prop_assert_eq!(counter(&world, "active"), 0);
        let plan = world.plan().0;
        prop_assert!(plan.is_empty(), "{}", plan);
    }
}
