//! What an update of a service keeps of what was handed out, and what a change of its type drops.

use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

use super::{is, is_reachable_from_outside, needs_cluster_ip, needs_health_port, needs_node_ports};

/// Brings a new spec into the form that it has after the old one.
pub(super) fn prepare(new: &mut ServiceSpec, old: &ServiceSpec) {
    agree(new, old);
    keep_allocated(new, old);
    drop_dependent(new, old);
}

/// Clients that know only `clusterIP` change or clear the list with it.
fn agree(new: &mut ServiceSpec, old: &ServiceSpec) {
    let same_list = new.cluster_ips == old.cluster_ips;
    if new.cluster_ip == old.cluster_ip || !same_list {
        return;
    }
    new.cluster_ips = match new.cluster_ip.as_deref() {
        None | Some("") => None,
        Some(address) => Some(vec![address.to_owned()]),
    };
}

/// What was handed out stays where the client leaves it out, so that the same manifest can be sent again.
fn keep_allocated(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        if new.cluster_ip.as_ref().is_none_or(String::is_empty) {
            new.cluster_ip.clone_from(&old.cluster_ip);
        }
        if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) && new.cluster_ip == old.cluster_ip {
            new.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let taken: Vec<i32> = numbers(new);
        let known = old.ports.as_deref().unwrap_or_default();
        for port in new.ports.iter_mut().flatten().filter(|port| port.node_port.is_none()) {
            let mut same = known.iter().filter(|old| is_same(old, port));
            port.node_port = same
                .find_map(|old| old.node_port)
                .filter(|number| !taken.contains(number));
        }
    }
    if needs_health_port(old) && needs_health_port(new) && new.health_check_node_port.unwrap_or(0) == 0 {
        new.health_check_node_port = old.health_check_node_port;
    }
}

fn numbers(spec: &ServiceSpec) -> Vec<i32> {
    spec.ports.iter().flatten().filter_map(|port| port.node_port).collect()
}

fn is_same(one: &ServicePort, other: &ServicePort) -> bool {
    (one.port, &one.protocol) == (other.port, &other.protocol)
}

/// Drops what the new type cannot have, where the client only left it as it was.
fn drop_dependent(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        if new.cluster_ip == old.cluster_ip && new.cluster_ips == old.cluster_ips {
            new.cluster_ip = None;
            new.cluster_ips = None;
        }
        forget(&mut new.ip_families, old.ip_families.as_ref());
        forget(&mut new.ip_family_policy, old.ip_family_policy.as_ref());
        forget(&mut new.internal_traffic_policy, old.internal_traffic_policy.as_ref());
    }
    if needs_node_ports(old) && !needs_node_ports(new) && numbers(new) == numbers(old) {
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
