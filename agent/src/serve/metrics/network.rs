//! Network usage, for `/stats/summary`.

use std::collections::BTreeMap;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::node::measure::PodLook;

/// Default interface, whose counters are also those of the whole.
const DEFAULT: &str = "eth0";
/// Prefixes of interfaces that are not counted: their traffic passes other interfaces too.
const IGNORED: [&str; 3] = ["lo", "veth", "docker"];

/// Network interface with its counters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(in crate::serve) name: String,
    pub(super) received: Counted,
    pub(in crate::serve) sent: Counted,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(in crate::serve) bytes: u64,
    pub(super) packets: u64,
    pub(in crate::serve) errors: u64,
    pub(in crate::serve) dropped: u64,
}

/// Returns a process in each pod's network namespace, by the pods' UIDs.
pub(super) async fn processes(context: &Context) -> BTreeMap<String, i32> {
    let sandboxes = context.parts.runtime.sandboxes().await.unwrap_or_default();
    let running = sandboxes.into_iter().filter_map(|sandbox| {
        let mut pids = sandbox.containers.iter().filter_map(|container| match container.state {
            runtime::State::Running { pid, .. } => Some(pid),
            runtime::State::Created | runtime::State::Exited { .. } => None,
        });
        Some((sandbox.pod.uid, pids.next()?))
    });
    running.collect()
}

/// Returns the interfaces of a pod that is not on the host network.
pub(super) fn interfaces(pod: &PodLook, processes: &BTreeMap<String, i32>) -> Vec<Interface> {
    let own = pod.pod.spec.as_ref().is_none_or(|spec| !pods::host_network(spec));
    let pid = processes.get(pods::uid(&pod.pod)).filter(|_| own);
    let table = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok());
    table.as_deref().map(parse).unwrap_or_default()
}

/// Returns the node's own interfaces.
pub(super) fn of_machine() -> Vec<Interface> {
    parse(&std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default())
}

/// Adds the node's own interfaces.
pub(super) fn of_node(time: Timestamp, node: &mut Map<String, Value>) {
    let read = std::fs::read_to_string("/proc/self/net/dev");
    node.extend(read.ok().map(|table| ("network".to_owned(), told(&table, time))));
}

/// Adds interfaces of a pod that is not on the host network.
pub(in crate::serve) fn of_pod(
    pod: &PodLook,
    processes: &BTreeMap<String, i32>,
    time: Timestamp,
    into: &mut Map<String, Value>,
) {
    let spec = pod.pod.spec.as_ref();
    if spec.is_some_and(pods::host_network) {
        return;
    }
    let pid = processes.get(pods::uid(&pod.pod));
    // The process may have ended.
    let table = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok());
    into.extend(table.map(|table| ("network".to_owned(), told(&table, time))));
}

fn told(table: &str, time: Timestamp) -> Value {
    let all = parse(table);
    let one = |interface: &Interface| {
        json!({
            "name": interface.name,
            "rxBytes": interface.received.bytes,
            "rxErrors": interface.received.errors,
            "txBytes": interface.sent.bytes,
            "txErrors": interface.sent.errors,
        })
    };
    let default = all.iter().find(|interface| interface.name == DEFAULT);
    let mut told = default.map_or_else(|| json!({"name": ""}), one);
    if let Some(members) = told.as_object_mut() {
        members.insert("time".to_owned(), json!(Time(time)));
        members.insert("interfaces".to_owned(), all.iter().map(one).collect());
    }
    told
}

/// Parses `/proc/net/dev`: the name, eight counters of received and eight of transmitted data.
fn parse(table: &str) -> Vec<Interface> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let counted = |at: usize| {
            Some(Counted {
                bytes: *numbers.get(at)?,
                packets: *numbers.get(at + 1)?,
                errors: *numbers.get(at + 2)?,
                dropped: *numbers.get(at + 3)?,
            })
        };
        let ignored = IGNORED.iter().any(|prefix| name.starts_with(prefix));
        (!ignored).then_some(())?;
        Some(Interface {
            name: name.to_owned(),
            received: counted(0)?,
            sent: counted(8)?,
        })
    };
    table.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_counted_but_for_those_that_repeat_others() {
        let table = "Inter-|   Receive                        |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
             lo:  100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  \
             eth0: 1500 10 2 0 0 0 0 0 2500 20 3 0 0 0 0 0\nveth1: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n  \
             pods0: 7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        let told = told(table, Timestamp::UNIX_EPOCH);
        let eth0 = json!({"name": "eth0", "rxBytes": 1500, "rxErrors": 2, "txBytes": 2500, "txErrors": 3});
        let pods0 = json!({"name": "pods0", "rxBytes": 7, "rxErrors": 0, "txBytes": 8, "txErrors": 0});
        let mut expected = eth0.clone();
        expected["time"] = json!("1970-01-01T00:00:00Z");
        expected["interfaces"] = json!([eth0, pods0]);
        assert_eq!(told, expected);
        assert_eq!(super::told("", Timestamp::UNIX_EPOCH)["interfaces"], json!([]));
    }
}
