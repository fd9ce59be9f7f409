//! Allocated values that an update of a service keeps, and those that a change of its type drops.

use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

use super::{is, is_reachable_from_outside, needs_cluster_ip, needs_health_port, needs_node_ports};

/// Normalizes a new spec with regard to the old one.
pub(super) fn prepare(new: &mut ServiceSpec, old: &ServiceSpec) {
    keep_allocated(new, old);
    agree(new, Some(old));
    drop_dependent(new, old);
}

/// Clients that know only `clusterIP` set, change or clear the list with it (`normalizeClusterIPs`
/// in `pkg/registry/core/service/storage/storage.go`).
pub(super) fn agree(new: &mut ServiceSpec, old: Option<&ServiceSpec>) {
    let lists = |spec: &ServiceSpec| spec.cluster_ips.clone().filter(|list| !list.is_empty());
    let old_address = old.and_then(|old| old.cluster_ip.as_deref());
    let (own, known) = (lists(new), old.and_then(lists));
    match new.cluster_ip.as_deref().filter(|address| !address.is_empty()) {
        None if own == known && old_address.is_some() => new.cluster_ips = None,
        Some(address) if own == known && old_address != Some(address) => {
            new.cluster_ips = Some(vec![address.to_owned()]);
        }
        address if own.is_none() && address == old_address => new.cluster_ips = known,
        Some(_) | None => {}
    }
}

/// Keeps allocated values that the client leaves out, so that the same manifest can be applied
/// again (`patchAllocatedValues`, there).
fn keep_allocated(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        if new.cluster_ip.as_ref().is_none_or(String::is_empty) {
            new.cluster_ip.clone_from(&old.cluster_ip);
        }
        if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
            new.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let (own, known) = (numbers(new), numbers(old));
        let name = |port: &ServicePort| port.name.clone().unwrap_or_default();
        for port in new.ports.iter_mut().flatten().filter(|port| port.node_port.is_none()) {
            // The last port with a name counts, as in upstream's map.
            let mut same = old.ports.iter().flatten().rev().filter(|old| name(old) == name(port));
            let is_free = |number: &i32| !(own.contains(number) && known.contains(number));
            port.node_port = same.next().and_then(|old| old.node_port).filter(is_free);
        }
    }
    if needs_health_port(old) && needs_health_port(new) && new.health_check_node_port.unwrap_or(0) == 0 {
        new.health_check_node_port = old.health_check_node_port;
    }
}

fn numbers(spec: &ServiceSpec) -> Vec<i32> {
    spec.ports.iter().flatten().filter_map(|port| port.node_port).collect()
}

/// Drops fields that the new type does not support, if the client left them unchanged
/// (`dropTypeDependentFields` in `pkg/registry/core/service/strategy.go`).
fn drop_dependent(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        if new.cluster_ip == old.cluster_ip && new.cluster_ips == old.cluster_ips {
            new.cluster_ip = None;
            new.cluster_ips = None;
        }
        forget(&mut new.ip_families, old.ip_families.as_ref());
        forget(&mut new.ip_family_policy, old.ip_family_policy.as_ref());
    }
    let has_node_ports = |spec: &ServiceSpec| is(spec, "NodePort") || is(spec, "LoadBalancer");
    let known = numbers(old);
    let adds = numbers(new).iter().any(|number| !known.contains(number));
    if has_node_ports(old) && !has_node_ports(new) && !adds {
        for port in new.ports.iter_mut().flatten() {
            port.node_port = None;
        }
    }
    if needs_health_port(old) && !needs_health_port(new) {
        forget(&mut new.health_check_node_port, old.health_check_node_port.as_ref());
    }
    if is(old, "LoadBalancer") && !is(new, "LoadBalancer") {
        forget(
            &mut new.allocate_load_balancer_node_ports,
            old.allocate_load_balancer_node_ports.as_ref(),
        );
        forget(&mut new.load_balancer_class, old.load_balancer_class.as_ref());
    }
    if is_reachable_from_outside(old) && !is_reachable_from_outside(new) {
        forget(&mut new.external_traffic_policy, old.external_traffic_policy.as_ref());
    }
}

fn forget<T: PartialEq>(new: &mut Option<T>, old: Option<&T>) {
    if new.as_ref() == old {
        *new = None;
    }
}
