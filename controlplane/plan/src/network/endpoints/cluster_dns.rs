//! The Service `kube-system/kube-dns`, by which charts and tools find the cluster's DNS servers:
//! the nodes' servers are its endpoints, each one for the clients on its own node.
//!
//! Pods use their node's server directly, so DNS does not depend on the Service. A Service of that
//! name that is not ours, or that has a selector by now, belongs to another DNS server, and so does
//! the cluster IP if another Service has it.

use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use serde_json::json;

use super::slices::{Group, Work, own_groups};
use super::{IPV6, families, has_selector};
use crate::node::node_health::is_unknown;
use crate::objects::{annotation, name};
use crate::step::{Outcome, Plan, SERVICES, Step};

/// The namespace of the Service.
pub const NAMESPACE: &str = "kube-system";
/// The name of the Service.
pub const NAME: &str = "kube-dns";
/// Annotation with the addresses of a node's DNS server.
const SERVERS: &str = "skiff.dev/name-servers";
const MANAGER: &str = "cluster-dns-controller.skiff.dev";
/// Label of a Service that Skiff manages.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "skiff");
/// Offset of the cluster IP in the Service range (`GetDNSIP` in
/// `cmd/kubeadm/app/constants/constants.go`).
const OFFSET: u128 = 10;
/// Ports of the Service and of the servers: name, protocol.
const PORTS: [(&str, &str); 2] = [("dns", "UDP"), ("dns-tcp", "TCP")];
const PORT: i32 = 53;

/// Endpoint of a node: the addresses of its DNS server, and whether its heartbeats arrive.
pub fn server(node: &Node) -> (Vec<IpAddr>, bool) {
    let told = annotation(&node.metadata, SERVERS).unwrap_or_default();
    let addresses = told.split(',').filter_map(|text| text.parse().ok()).collect();
    (addresses, !is_unknown(node))
}

/// Makes the plan. `own` is the Service of this name, `services` are all, `slices` those of its
/// namespace, and `range` is the first Service CIDR.
pub fn plan(
    own: Option<&Service>,
    services: &[Arc<Service>],
    slices: &[&EndpointSlice],
    nodes: &[Arc<Node>],
    range: Option<&str>,
) -> Plan {
    let mut plan = Plan::default();
    match own {
        Some(service) if is_ours(service) => {
            let mut work = Work::new(service, MANAGER);
            let mut own = own_groups(service, slices, MANAGER);
            for family in families(service) {
                let wanted = group(family, nodes);
                let there = own.remove(&wanted.key()).unwrap_or_default();
                work.fill(wanted, &there);
            }
            work.abandon(own.into_values().flatten());
            plan.stage(work.steps());
        }
        Some(service) => {
            let own = own_groups(service, slices, MANAGER);
            plan.stage(own.into_values().flatten().map(super::slice::delete).collect());
        }
        None => {
            let is_served = nodes.iter().any(|node| !server(node).0.is_empty());
            let address = range.and_then(address).filter(|_| is_served);
            let address = address.filter(|address| !services.iter().any(|service| has(service, *address)));
            plan.stage(address.map(create).into_iter().collect());
        }
    }
    plan
}

fn is_ours(service: &Service) -> bool {
    let label = service.metadata.labels.as_ref().and_then(|all| all.get(MANAGED_BY.0));
    let external = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    label.is_some_and(|by| by == MANAGED_BY.1)
        && !external
        && !has_selector(service)
        && service.metadata.deletion_timestamp.is_none()
}

fn has(service: &Service, address: IpAddr) -> bool {
    let all = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    all.into_iter().any(|own| own.parse() == Ok(address))
}

/// The Service's address in a range, such as `10.96.0.0/16`.
fn address(range: &str) -> Option<IpAddr> {
    let range: Cidr = range.parse().ok()?;
    (range.host_bits() >= 4).then(|| range.at(OFFSET).address)
}

/// The Service with the labels and ports of `CoreDNS`' in
/// `cmd/kubeadm/app/phases/addons/dns/manifests.go`.
fn create(address: IpAddr) -> Step {
    let ports =
        PORTS.map(|(name, protocol)| json!({"name": name, "protocol": protocol, "port": PORT, "targetPort": PORT}));
    Step::Create {
        resource: SERVICES,
        namespace: NAMESPACE.to_owned(),
        body: Box::new(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "labels": {
                    "k8s-app": NAME,
                    "kubernetes.io/cluster-service": "true",
                    "kubernetes.io/name": "CoreDNS",
                    MANAGED_BY.0: MANAGED_BY.1,
                },
            },
            "spec": {"clusterIP": address, "internalTrafficPolicy": "Local", "ports": ports},
        })),
        outcome: Outcome::default(),
    }
}

/// Endpoints of one family, by the names of their nodes.
fn group(family: &'static str, nodes: &[Arc<Node>]) -> Group {
    let mut nodes: Vec<&Node> = nodes.iter().map(Arc::as_ref).collect();
    nodes.sort_by_key(|node| name(*node));
    let endpoints = nodes.into_iter().flat_map(|node| {
        let (addresses, ready) = server(node);
        let of_family = addresses
            .into_iter()
            .filter(|address| address.is_ipv6() == (family == IPV6));
        of_family.map(move |address| Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(ready),
                serving: Some(ready),
                terminating: Some(false),
            }),
            node_name: Some(name(node).to_owned()),
            ..Endpoint::default()
        })
    });
    let endpoints: Vec<Endpoint> = endpoints.collect();
    let ports = PORTS.map(|(name, protocol)| EndpointPort {
        name: Some(name.to_owned()),
        port: Some(PORT),
        protocol: Some(protocol.to_owned()),
        app_protocol: None,
    });
    Group {
        family,
        ports: ports.to_vec(),
        endpoints,
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::step::PatchKind;

    fn node(name: &str, servers: Option<&str>, ready: &str) -> Arc<Node> {
        let node = json!({
            "metadata": {"name": name, "annotations": servers.map(|servers| json!({SERVERS: servers}))},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn service(name: &str, address: &str, labels: &serde_json::Value, selector: &serde_json::Value) -> Arc<Service> {
        let service = json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": "s", "labels": labels},
            "spec": {"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "selector": selector},
        });
        Arc::new(serde_json::from_value(service).unwrap())
    }

    fn planned(services: &[Arc<Service>], slices: &[&EndpointSlice], nodes: &[Arc<Node>], range: &str) -> Vec<Step> {
        let own = services.iter().find(|service| name(&***service) == NAME);
        let plan = plan(own.map(Arc::as_ref), services, slices, nodes, Some(range));
        plan.stages.into_iter().flatten().collect()
    }

    #[test]
    fn the_service_is_there_when_a_node_answers_and_nobody_has_its_address() {
        let range = "10.96.0.0/16";
        let [silent, answers] = [node("a", None, "True"), node("b", Some("10.244.1.1"), "True")];
        assert_eq!(planned(&[], &[], from_ref(&silent), range), []);
        let made = planned(&[], &[], &[silent.clone(), answers.clone()], range);
        let [Step::Create { body, .. }] = &*made else {
            panic!("{made:?}")
        };
        assert_eq!(body.pointer("/spec/clusterIP"), Some(&json!("10.96.0.10")));
        let other = service("coredns", "10.96.0.10", &json!({}), &json!({"k8s-app": "coredns"}));
        assert_eq!(planned(&[other], &[], from_ref(&answers), range), []);
        assert_eq!(
            planned(&[], &[], &[answers], "10.96.0.0/29"),
            [],
            "there is no such address"
        );
    }

    #[test]
    fn each_node_that_answers_is_an_endpoint_until_somebody_brings_another_server() {
        let ours = json!({MANAGED_BY.0: MANAGED_BY.1});
        let own = service(NAME, "10.96.0.10", &ours, &json!(null));
        let nodes = [
            node("b", Some("fd00::1,10.244.1.1"), "Unknown"),
            node("a", Some("10.244.0.1"), "False"),
            node("c", None, "True"),
        ];
        let made = planned(from_ref(&own), &[], &nodes, "10.96.0.0/16");
        let [Step::Create { body, .. }] = &*made else {
            panic!("{made:?}")
        };
        let endpoint = |node: &str, address: &str, ready: bool| {
            json!({"addresses": [address], "nodeName": node,
                "conditions": {"ready": ready, "serving": ready, "terminating": false}})
        };
        let expected = [endpoint("a", "10.244.0.1", true), endpoint("b", "10.244.1.1", false)];
        assert_eq!(body.get("endpoints"), Some(&json!(expected)));

        let mut slice: EndpointSlice = serde_json::from_value((**body).clone()).unwrap();
        slice.metadata.name = Some("kube-dns-x".to_owned());
        assert_eq!(planned(from_ref(&own), &[&slice], &nodes, "10.96.0.0/16"), []);
        let changed = planned(&[own], &[&slice], &nodes[1..], "10.96.0.0/16");
        assert!(
            matches!(
                &*changed,
                [Step::Patch {
                    kind: PatchKind::Merge,
                    ..
                }]
            ),
            "{changed:?}"
        );

        let applied_over = service(NAME, "10.96.0.10", &ours, &json!({"k8s-app": NAME}));
        let by_hand = service(NAME, "10.96.0.10", &json!({}), &json!(null));
        for others in [applied_over, by_hand] {
            let left = planned(from_ref(&others), &[&slice], &nodes, "10.96.0.0/16");
            assert!(matches!(&*left, [Step::Delete { .. }]), "{left:?}");
            assert_eq!(planned(&[others], &[], &nodes, "10.96.0.0/16"), []);
        }
    }
}
