//! Controller of the Service `kube-system/kube-dns`, whose endpoints are the nodes' DNS servers.

use std::sync::Arc;

use controlplane_plan::network::endpoints::cluster_dns::{self, NAME, NAMESPACE};
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, of_service, service_of};
use crate::machinery::queue::Queue;

/// Name of the default Service CIDR.
const RANGE: &str = "kubernetes";

/// Plans the Service.
pub(crate) struct ClusterDns(pub(crate) Arc<Caches>);

impl Controller for ClusterDns {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let (own, services) = (self.0.services.get(key), self.0.services.all());
        let slices = self.0.endpoint_slices.indexed(&of_service(key));
        let slices: Vec<&EndpointSlice> = slices.iter().map(Arc::as_ref).collect();
        let range = self.0.service_ranges.get(&Key::new("", RANGE));
        let ranges = range.as_ref().and_then(|range| range.spec.as_ref()?.cidrs.as_deref());
        let first = ranges.and_then(|ranges| ranges.first()).map(String::as_str);
        cluster_dns::plan(own.as_deref(), &services, &slices, &self.0.nodes.all(), first)
    }
}

/// Wakes the Service on changes of itself, its slices, the nodes' servers and the range, and when
/// another Service that may have had its cluster IP is deleted.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("cluster_dns");
    let own = || Key::new(NAMESPACE, NAME);
    let wake = queue.clone();
    caches.services.listen(move |change| {
        let is_own = |metadata: &ObjectMeta| Key::of(metadata) == own();
        if change.new.is_none() || change.sides().any(|service| is_own(&service.metadata)) {
            wake.push(own());
        }
    });
    let wake = queue.clone();
    caches.endpoint_slices.listen(move |change| {
        let is_own = |slice: &EndpointSlice| service_of(slice) == Some(own());
        if change.sides().any(is_own) {
            wake.push(own());
        }
    });
    let wake = queue.clone();
    caches.nodes.listen(move |change| {
        let told = |node: &Node| cluster_dns::server(node);
        if change.old.map(told) != change.new.map(told) {
            wake.push(own());
        }
    });
    let wake = queue.clone();
    caches.service_ranges.listen(move |_change| wake.push(own()));
    queue
}
