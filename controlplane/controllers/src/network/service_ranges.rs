//! Controller of Service CIDRs: protects them while they are in use.

use std::net::IpAddr;
use std::sync::Arc;

use controlplane_plan::network::service_ranges;
use controlplane_plan::objects::{Meta as _, Object as _, name};
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Plans each range.
pub(crate) struct ServiceRanges(pub(crate) Arc<Caches>);

impl Controller for ServiceRanges {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(range) = self.0.service_ranges.get(key) else {
            return Plan::default();
        };
        let mut addresses: Vec<IpAddr> = Vec::new();
        if range.metadata.deletion_timestamp.is_some() {
            let all = self.0.addresses.all();
            let managed = all.iter().filter(|address| {
                let labels = address.meta().labels();
                let by = labels.and_then(|labels| labels.get("ipaddress.kubernetes.io/managed-by"));
                by.is_some_and(|by| by == "ipallocator.k8s.io")
            });
            addresses.extend(managed.filter_map(|address| name(&**address).parse::<IpAddr>().ok()));
        }
        service_ranges::plan(&range, &self.0.service_ranges.all(), &addresses, now)
    }
}

/// Wakes all ranges on a change of one, and deleted ones on a change of an address.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("ipaddresses");
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.service_ranges.listen(move |_change| {
        let Some(caches) = all.upgrade() else { return };
        for range in caches.service_ranges.all() {
            wake.push(Key::of(&range.metadata));
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.addresses.listen(move |_change| {
        let Some(caches) = all.upgrade() else { return };
        for range in caches.service_ranges.all() {
            if range.metadata.deletion_timestamp.is_some() {
                wake.push(Key::of(&range.metadata));
            }
        }
    });
    queue
}
