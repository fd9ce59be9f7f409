//! Fit of a pod's requests beside those of the node's other pods.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::PodSpec;

use super::{Host, active, rejection};
use crate::pod::termination::Rejection;

/// An insufficient resource, in its own unit: millicores, bytes, pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) resource: String,
    wanted: i64,
    used: i64,
    capacity: i64,
}

impl Missing {
    /// Amount to free.
    pub(super) fn amount(&self) -> i64 {
        self.wanted.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    fn rejection(&self) -> Rejection {
        let Self {
            resource,
            wanted,
            used,
            capacity,
        } = self;
        let what = format!("{resource}, requested: {wanted}, used: {used}, capacity: {capacity}");
        let message = format!("Node didn't have enough resource: {what}");
        rejection(format!("OutOf{resource}"), message)
    }
}

/// Resources that are checked before all others.
const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Returns the rejection of a pod whose requests do not fit.
pub fn room(spec: &PodSpec, host: &Host) -> Option<Rejection> {
    missing(spec, host).first().map(Missing::rejection)
}

/// Converts thousandths of a resource to the unit in which it is counted: millicores for `cpu`,
/// whole units otherwise.
pub(super) fn units(resource: &str, milli: i64) -> i64 {
    if resource == "cpu" { milli } else { milli / 1000 }
}

/// Returns all insufficient resources for a pod.
pub(super) fn missing(spec: &PodSpec, host: &Host) -> Vec<Missing> {
    let mut all = Vec::new();
    let others = i64::try_from(active(host).count()).unwrap_or(i64::MAX);
    if others >= host.pods {
        all.push(Missing {
            resource: "pods".to_owned(),
            wanted: 1,
            used: others,
            capacity: host.pods,
        });
    }
    let wanted = api::pod::requests(spec);
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in active(host) {
        for (resource, amount) in api::pod::requests(other) {
            let sum = used.entry(resource).or_default();
            *sum = sum.saturating_add(amount.milli());
        }
    }
    let others = wanted.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    all.extend(FIRST.into_iter().chain(others).filter_map(|resource| {
        let wanted = wanted.get(resource)?.milli();
        let capacity = capacity(resource, host)?;
        let used = used.get(resource).copied().unwrap_or(0);
        let short = wanted > 0 && wanted > capacity.saturating_sub(used);
        short.then(|| Missing {
            resource: resource.to_owned(),
            wanted: units(resource, wanted),
            used: units(resource, used),
            capacity: units(resource, capacity),
        })
    }));
    all
}

/// Capacity for a resource: the node's own allocatable, or that of the Node's status, where others
/// may set extended resources. Unknown resources are ignored, except that huge pages of a size that
/// the machine lacks count as 0.
fn capacity(resource: &str, host: &Host) -> Option<i64> {
    let told = || {
        let allocatable = host.node.as_ref()?.status.as_ref()?.allocatable.as_ref()?;
        Some(Quantity::of(allocatable.get(resource)?).milli())
    };
    let own = host.allocatable.get(resource).copied();
    own.or_else(told)
        .or_else(|| resource.starts_with("hugepages-").then_some(0))
}
